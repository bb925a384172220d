"""Job trees: load one from its root; cancel, retry or rerun a job with everything that belongs to it.

Each change is a series of commits that may be interrupted anywhere. Repeating the call continues it, because jobs that
are already active are left alone. The order of the commits keeps a tree consistent in between; it is explained at each.

A rerun starts each job after its dependencies. Children of a job that is rerun "from here" are rerun when the parent
starts, not before: they may read results that come before their parent and must be computed again first. What
distinguishes such a run from a retry, which keeps completed children, is in the details of the event in history.
Reruns are told apart by the version of the event that made them, never by a time: the clocks of hosts disagree.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

import msgspec

from backstay.clock import Clock, Instant
from backstay.core import dependencies, lifecycle
from backstay.core.event_details import EventDetails, Rerun, RerunBelow, Subtree
from backstay.core.port import Store
from backstay.core.records import HistoryEvent, JobRecord, Node, Transition, Verdict
from backstay.core.states import TERMINAL, Event, Status
from backstay.errors import DedupConflict, IllegalTransition, VersionConflict
from backstay.job import Job, own_progress, rolled_up
from backstay.limits import SWEEP_BATCH_MAX, TREE_EDIT_MAX, TREE_JOBS_MAX
from backstay.ops.edit import AnyRecord, apply_edits, record_of

PAGE = 500  # children read, or changed, at once; others get the store in between


class Tree(msgspec.Struct):
    """A job and everything it has submitted, at every level. `complete`: whether all of it was loaded."""

    job: Job
    children: list[Tree] = []
    complete: bool = True

    def __iter__(self) -> Iterator[Tree]:
        """Iterate over this job and everything below it, each before its children."""
        waiting = [self]
        while waiting:
            tree = waiting.pop()
            yield tree
            waiting.extend(reversed(tree.children))

    @property
    def jobs(self) -> dict[str, Job]:
        """All jobs of the tree by id."""
        return {tree.job.job_id: tree.job for tree in self}


async def children_of(store: Store, job_id: str) -> AsyncIterator[tuple[JobRecord, ...]]:
    after: str | None = None
    while True:
        page = await store.children(job_id, after, PAGE)
        if page.items:
            yield page.items
        if (after := page.next) is None:
            return


async def nodes(store: Store, top: JobRecord) -> dict[str, Node]:
    """Return a job and everything below it by id, each before its children."""
    found = {top.job_id: Node.of(top)}
    waiting = [found[top.job_id]]
    while waiting:
        parent = waiting.pop()
        if not max(parent.children, parent.open_children):
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
    """Load the first jobs of a tree, level by level."""
    tree = Tree(as_job(top))
    left = TREE_JOBS_MAX - 1
    level = [tree]
    while level:
        below: list[Tree] = []
        for parent in level:
            if not max(parent.job.row.children, parent.job.row.open_children):
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


_NAMED_MAX = 3  # jobs that a message names


class Again(msgspec.Struct):
    """The jobs that a rerun could not start."""

    blocked: list[Node] = []  # a dependency of theirs did not complete
    overtaken: list[Node] = []  # someone else restarted them in the meantime, for another reason


def rerun_version(record: JobRecord) -> int | None:
    """Return the version of the event that asked for a rerun with all children; None if it runs for another reason."""
    last = _last_retry(record)
    return last.version if last is not None and isinstance(last.details, Rerun) else None


def _last_retry(record: JobRecord) -> HistoryEvent | None:
    return next((each for each in reversed(record.history) if each.event is Event.MANUAL_RETRY), None)


async def children_again(
    store: Store, clock: Clock, parent: JobRecord, version: int, by: str | None
) -> tuple[dict[str, Node], Again]:
    """Rerun all children, once for the event that asked their parent to. If interrupted, a repeat continues it.
    Return the children that it found, and those that it left as they are: blocked ones, and ones that someone else has
    restarted, which are not stopped for it."""
    last = _last_retry(parent)
    forget_steps = last is not None and last.forget_steps
    details = Rerun(parent.job_id, version)
    found: dict[str, Node] = {}
    left = Again()
    async for page in children_of(store, parent.job_id):
        ours = [each for each in page if not _was_rerun(each, details)]
        found |= {each.job_id: Node.of(each) for each in ours if each.status in TERMINAL}
        left.overtaken += [Node.of(each) for each in ours if each.status not in TERMINAL]
    for level in levels(found):
        again = await run_again(store, clock, level, by, None, details, forget_steps=forget_steps)
        left.blocked += again.blocked
        left.overtaken += again.overtaken
    return found, left


def _was_rerun(record: JobRecord, details: Rerun) -> bool:
    return any(each.event is Event.MANUAL_RETRY and each.details == details for each in record.history)


async def run_again(
    store: Store,
    clock: Clock,
    chosen: Sequence[Node],
    by: str | None,
    reason: str | None,
    details: EventDetails | None = None,
    *,
    forget_steps: bool = False,
) -> Again:
    """Rerun these jobs. A job that has become active in the meantime is left alone."""

    def decide(job: AnyRecord, now: Instant) -> Transition | None:
        if isinstance(job, JobRecord) and (job.status not in TERMINAL or job.archived_at is not None):
            return None
        return lifecycle.manual_retry(
            job, now=now, by=by, reason=reason, details=details, forget_steps=forget_steps, rewait=True
        )

    again = Again()
    for start in range(0, len(chosen), PAGE):
        for edited in await apply_edits(store, clock, chosen[start : start + PAGE], decide):
            node = edited.job if isinstance(edited.job, Node) else Node.of(edited.job)
            match edited.verdict:
                case Verdict.BLOCKED:
                    again.blocked.append(node)
                case Verdict.TAKEN:
                    raise DedupConflict(f"{node.name} cannot run again: its dedup key belongs to another job now")
                case Verdict.STALE:
                    raise VersionConflict(f"{node.name} kept changing: try again")
                case None if isinstance(edited.job, JobRecord) and _is_anothers(edited.job, details, forget_steps):
                    again.overtaken.append(node)
                case _:
                    pass
    return again


def _is_anothers(record: JobRecord, details: EventDetails | None, forget_steps: bool) -> bool:
    """Return whether the job runs because someone asked for something else. The same rerun may be requested twice."""
    last = _last_retry(record)
    asked = (details, forget_steps)
    return record.archived_at is None and (last is None or (last.details, last.forget_steps) != asked)


def levels(chosen: dict[str, Node]) -> list[list[Node]]:
    """Return the jobs in levels, each after the jobs it depends on: a job that ran again before its dependency would
    read the old result."""
    listed = list(chosen.values())
    needs = {node.job_id: [each for each in node.dependencies if each in chosen] for node in listed}
    for node in listed:  # a record lists a part of its edges from either end
        for dependent in node.dependent_jobs:
            if dependent in needs:
                needs[dependent].append(node.job_id)
    try:
        places = dependencies.order([(node.job_id, needs[node.job_id]) for node in listed])
    except dependencies.Cycle as cycle:
        ring = " → ".join(listed[place].name for place in cycle.path)
        raise IllegalTransition(f"these jobs wait for one another: {ring}") from None
    depth: dict[str, int] = {}
    found: list[list[Node]] = []
    for node in (listed[place] for place in places):
        level = depth[node.job_id] = 1 + max((depth[each] for each in needs[node.job_id]), default=-1)
        if level == len(found):
            found.append([])
        found[level].append(node)
    return found


def said_of_overtaken(overtaken: Sequence[Node]) -> str:
    """Return a message for the parent's log: completed jobs below these are not rerun."""
    named = ", ".join(node.name for node in overtaken[:_NAMED_MAX])
    more = f" and {len(overtaken) - _NAMED_MAX} more" if len(overtaken) > _NAMED_MAX else ""
    return f"not rerun, because they were restarted by someone else at the same time: {named}{more}"


def said_of_blocked(tree: dict[str, Node], blocked: Sequence[Node]) -> IllegalTransition:
    named = "; ".join(f"{node.name} depends on {_culprits(tree, node)}" for node in blocked[:_NAMED_MAX])
    more = f"; and {len(blocked) - _NAMED_MAX} more" if len(blocked) > _NAMED_MAX else ""
    return IllegalTransition(f"{named}{more}")


def _culprits(tree: dict[str, Node], node: Node) -> str:
    outside = [job_id for job_id in node.dependencies if job_id not in tree]
    if outside:
        return f"{', '.join(outside[:_NAMED_MAX])}, outside this tree, which did not complete: retry that first"
    return "jobs that did not complete: retry those first"


_STARTED = frozenset({Status.PROCESSING, Status.PENDING, Status.RETRYING})


class Subtrees:
    def __init__(
        self, store: Store, clock: Clock, by: str | None, reason: str | None, *, forget_steps: bool = False
    ) -> None:
        self._store = store
        self._clock = clock
        self._by, self._reason = by, reason
        self._forget_steps = forget_steps

    # Cancelling

    async def cancel(self, top: JobRecord) -> None:
        """Cancel everything below a job that was cancelled or has ended, and so submits no more children. Top down for
        the same reason: a cancelled job cannot submit more."""
        waiting, seen = [top.job_id], 1
        while waiting:
            job_id = waiting.pop()
            while await self._cancel_children(job_id, Subtree(top.job_id)):
                pass
            async for page in children_of(self._store, job_id):
                waiting += [each.job_id for each in page if max(each.children, each.open_children)]
                seen += len(page)
                check_size(seen, top.job_id)

    async def _cancel_children(self, job_id: str, details: Subtree) -> bool:
        """Make one pass over the children of a job; return whether there was something to do."""
        found = False
        async for page in children_of(self._store, job_id):
            active = [record for record in page if record.status not in TERMINAL]
            if active:
                found = True
                edits = [
                    lifecycle.cancel(record, by=self._by, reason=self._reason, details=details) for record in active
                ]
                await self._store.apply(edits, self._clock.now())
        if not found and (await record_of(self._store, job_id)).open_children:
            # Staged children that are not stored yet: they must be there to be cancelled.
            return bool(await self._store.release(self._clock.now(), SWEEP_BATCH_MAX))
        return found

    # Retrying

    async def retry(self, top: JobRecord) -> None:
        """Retry what failed or was cancelled, and nothing else: completed parts are kept. Children before their
        parents: a parent that starts again must find them active and wait; otherwise it would see the old failure."""
        tree = await nodes(self._store, top)
        left = [node for node in tree.values() if node.status in (Status.FAILED, Status.CANCELLED)]
        if not left:
            raise IllegalTransition(f"no job in the tree of {top.job_id} has failed or was cancelled")
        while left:
            above = _above(tree, left)
            ready = [node for node in left if node.job_id not in above]
            again = await run_again(
                self._store,
                self._clock,
                ready,
                self._by,
                self._reason,
                forget_steps=self._forget_steps,
            )
            blocked = again.blocked
            if len(blocked) == len(ready):
                raise said_of_blocked(tree, blocked)
            kept = {node.job_id for node in blocked}
            left = [node for node in left if node.job_id in above or node.job_id in kept]

    # Running again from here

    async def rerun(self, job: JobRecord) -> None:
        """Rerun this job and what in its tree depends on it or on something below it; then its parents. Children are
        rerun when their parents start. Results of upstream jobs are kept, and read again. Its parents keep their
        recorded steps even if these jobs forget theirs: most are about what comes before this job."""
        root = job if job.root_job_id in (None, job.job_id) else await record_of(self._store, str(job.root_job_id))
        tree = await nodes(self._store, root)
        if job.job_id not in tree:  # someone edited its tree by hand
            tree |= await nodes(self._store, job)
        here = _closure([job.job_id], _children(tree))
        after = _after(tree, here)
        ancestors = _ancestors(tree, job.job_id)
        _check(tree, job, after - here, ancestors)
        tops = [job.job_id, *(each for each in after - here if tree[each].parent_job_id not in after)]
        chosen = {job_id: tree[job_id] for job_id in tops if tree[job_id].status in TERMINAL}
        for level in levels(chosen):
            if overtaken := await self._again(tree, level, Rerun(job.job_id), forget_steps=self._forget_steps):
                raise IllegalTransition(
                    f"{overtaken[0].name} was just restarted by someone else: repeat this when it has ended"
                )
        for ancestor in ancestors:
            if ancestor.status in TERMINAL:  # an ancestor that someone else restarted waits for this job as well
                await self._again(tree, [ancestor], RerunBelow(job.job_id))

    async def _again(
        self, tree: dict[str, Node], chosen: list[Node], details: Rerun | RerunBelow, *, forget_steps: bool = False
    ) -> list[Node]:
        """Rerun these jobs; return those that someone else has restarted in the meantime."""
        again = await run_again(
            self._store, self._clock, chosen, self._by, self._reason, details, forget_steps=forget_steps
        )
        if again.blocked:
            raise said_of_blocked(tree, again.blocked)
        return again.overtaken


def _check(tree: dict[str, Node], job: JobRecord, dependents: Iterable[str], ancestors: Iterable[Node]) -> None:
    """Refuse before anything is changed: a job must not be running with a result that is about to be replaced."""
    if job.archived_at is not None:
        raise IllegalTransition(f"job {job.job_id} was archived and its payload deleted: submit it again")
    begun = job.status not in TERMINAL  # an earlier call was interrupted: its parents may be running because of it
    if begun and rerun_version(job) is None:
        raise IllegalTransition(
            f"job {job.job_id} is {job.status.value}, and can be rerun once it has ended: wait for it"
        )
    for node in (*(tree[job_id] for job_id in dependents), *(() if begun else ancestors)):
        if node.status in _STARTED:
            what = "is running" if node.status is Status.PROCESSING else "is about to run"
            raise IllegalTransition(f"{node.name} {what}: cancel it, or wait")


def _children(tree: dict[str, Node]) -> Callable[[str], list[str]]:
    children: dict[str, list[str]] = {}
    for node in tree.values():
        if node.parent_job_id is not None:
            children.setdefault(node.parent_job_id, []).append(node.job_id)
    return lambda job_id: children.get(job_id, [])


def _closure(start: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        job_id = waiting.pop()
        if job_id not in found:
            found.add(job_id)
            waiting += following(job_id)
    return found


def _after(tree: dict[str, Node], here: set[str]) -> set[str]:
    """Return these jobs, the jobs of the tree that depend on one of them, and all below those. A record lists only some
    of its edges, from either end, so both ends are read."""
    dependents: dict[str, set[str]] = {job_id: set(node.dependent_jobs) & tree.keys() for job_id, node in tree.items()}
    for node in tree.values():
        for job_id in node.dependencies:
            if job_id in dependents:
                dependents[job_id].add(node.job_id)
    below = _children(tree)
    return _closure(here, lambda job_id: (*dependents[job_id], *below(job_id)))


def _above(tree: dict[str, Node], some: Iterable[Node]) -> set[str]:
    """Return all jobs that have one of these below them."""
    found: set[str] = set()
    for node in some:
        parent = node.parent_job_id
        while parent is not None and parent not in found:
            found.add(parent)
            parent = tree[parent].parent_job_id if parent in tree else None
    return found


def _ancestors(tree: dict[str, Node], job_id: str) -> list[Node]:
    """Return the ancestors of a job, its parent first."""
    found = []
    parent = tree[job_id].parent_job_id
    while parent is not None and parent in tree:
        found.append(tree[parent])
        parent = tree[parent].parent_job_id
    return found


_RUNNING_MAX = 100  # children whose own progress counts for their parent's; beyond, only whether they have ended


async def with_progress(store: Store, record: JobRecord) -> JobRecord:
    """Return the record; a parent that reports no progress of its own has the progress of its children."""
    if not record.open_children or own_progress(record) is not None:
        return record
    running: list[JobRecord] = []
    for status in (Status.PROCESSING, Status.WAITING):  # which may be a parent itself
        running += (await store.children(record.job_id, None, _RUNNING_MAX, status)).items
    return msgspec.structs.replace(record, progress=rolled_up(record, running))
