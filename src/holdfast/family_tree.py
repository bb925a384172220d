"""A tree of jobs, loaded from its top: jobs with their children."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import msgspec

from holdfast.errors import IllegalTransition, JobNotFound
from holdfast.job import Job
from holdfast.limits import TREE_EDIT_MAX, TREE_JOBS_MAX
from holdfast.statuses import Status
from holdfast.store.port import Store
from holdfast.store.types import JobRecord

PAGE = 500  # children read, or changed, at once; others get the store in between


class Tree(msgspec.Struct):
    """A job and what it has submitted, down to the last. `complete`: whether all of it was loaded."""

    job: Job
    children: list[Tree] = []
    complete: bool = True

    def __iter__(self) -> Iterator[Tree]:
        """This one and all below it, each before its children."""
        waiting = [self]
        while waiting:
            tree = waiting.pop()
            yield tree
            waiting.extend(reversed(tree.children))

    @property
    def jobs(self) -> dict[str, Job]:
        """All of them by id."""
        return {tree.job.job_id: tree.job for tree in self}


class Node(msgspec.Struct, gc=False):
    """What a change of a tree needs to know of each of its jobs; a payload each would be too much."""

    job_id: str
    job_type: str
    queue: str
    priority: int
    status: Status
    attempt: int
    version: int
    parent_job_id: str | None
    job_stage: str | None
    children: int
    dependencies: tuple[str, ...]
    dependents: tuple[str, ...]
    is_archived: bool
    depth: int = 0

    @classmethod
    def of(cls, record: JobRecord, depth: int = 0) -> Node:
        return cls(
            job_id=record.job_id,
            job_type=record.job_type,
            queue=record.queue,
            priority=record.priority,
            status=record.status,
            attempt=record.attempt,
            version=record.version,
            parent_job_id=record.parent_job_id,
            job_stage=record.job_stage,
            children=max(record.children, record.open_children),
            dependencies=record.dependencies,
            dependents=record.dependent_jobs,
            is_archived=record.archived_at is not None,
            depth=depth,
        )

    @property
    def name(self) -> str:
        return f"{self.job_stage or self.job_type} ({self.job_id})"


async def record_of(store: Store, job_id: str) -> JobRecord:
    [record] = await store.get([job_id])
    if record is None:
        raise JobNotFound(f"no job {job_id}")
    return record


async def children_of(store: Store, job_id: str) -> AsyncIterator[tuple[JobRecord, ...]]:
    after: str | None = None
    while True:
        page = await store.children(job_id, after, PAGE)
        if page.items:
            yield page.items
        if (after := page.next) is None:
            return


async def nodes(store: Store, top: JobRecord) -> dict[str, Node]:
    """A job and all below it, each before its children."""
    found = {top.job_id: Node.of(top)}
    waiting = [found[top.job_id]]
    while waiting:
        parent = waiting.pop()
        if not parent.children:
            continue
        async for page in children_of(store, parent.job_id):
            below = [Node.of(record, parent.depth + 1) for record in page]
            found |= {node.job_id: node for node in below}
            waiting += below
            check_size(len(found), top.job_id)
    return found


def check_size(count: int, job_id: str) -> None:
    if count > TREE_EDIT_MAX:
        raise IllegalTransition(
            f"the tree of job {job_id} has more than {TREE_EDIT_MAX:,} jobs (TREE_EDIT_MAX): change parts of it"
        )


async def load(store: Store, top: JobRecord, as_job: Callable[[JobRecord], Job]) -> Tree:
    """The first so many of a tree, level by level."""
    tree = Tree(as_job(top))
    left = TREE_JOBS_MAX - 1
    level = [tree]
    while level:
        below: list[Tree] = []
        for parent in level:
            if not max(parent.job.record.children, parent.job.record.open_children):
                continue
            page = await store.children(parent.job.job_id, None, max(1, left))
            kept = page.items[:left]
            parent.children = [Tree(as_job(record)) for record in kept]
            parent.complete = page.next is None and len(kept) == len(page.items)
            left -= len(kept)
            below += parent.children
        level = below
    tree.complete = all(each.complete for each in tree)
    return tree
