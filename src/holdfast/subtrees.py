"""Cancelling, retrying and running again a job with all that belongs to it.

Each is a series of commits that may be cut off anywhere: said again, it goes on, because what is active already is left
alone. The order of the commits is what keeps a tree right in between, and it is explained at each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast import lifecycle
from holdfast.clock import Clock
from holdfast.errors import IllegalTransition
from holdfast.family_tree import Node, check_size, children_of, nodes, record_of
from holdfast.lifecycle import TERMINAL, Status
from holdfast.limits import SWEEP_BATCH_MAX
from holdfast.running_again import levels, mark, marked_version, run_again, said_of_blocked
from holdfast.store.port import Store
from holdfast.store.types import JobRecord

_STARTED = frozenset({Status.PROCESSING, Status.PENDING, Status.RETRYING})


class Subtrees:
    def __init__(self, store: Store, clock: Clock, by: str | None, reason: str | None) -> None:
        self._store = store
        self._clock = clock
        self._by, self._reason = by, reason

    # Cancelling

    async def cancel(self, top: JobRecord) -> None:
        """Everything below a job that has been cancelled, or has ended: it brings no more children. Top down for the
        same reason: whoever is cancelled cannot make more."""
        reason = self._reason or f"subtree of {top.job_id} cancelled"
        waiting, seen = [top.job_id], 1
        while waiting:
            job_id = waiting.pop()
            while await self._cancel_children(job_id, reason):
                pass
            async for page in children_of(self._store, job_id):
                waiting += [each.job_id for each in page if max(each.children, each.open_children)]
                seen += len(page)
                check_size(seen, top.job_id)

    async def _cancel_children(self, job_id: str, reason: str) -> bool:
        """One pass over the children of a job; whether there was something to do."""
        found = False
        async for page in children_of(self._store, job_id):
            active = [record for record in page if record.status not in TERMINAL]
            if active:
                found = True
                edits = [lifecycle.cancel(record, by=self._by, reason=reason) for record in active]
                await self._store.apply(edits, self._clock.now())
        if not found and (await record_of(self._store, job_id)).open_children:
            # Staged children that are not stored yet: they must be there to be cancelled.
            return bool(await self._store.release(self._clock.now(), SWEEP_BATCH_MAX))
        return found

    # Retrying

    async def retry(self, top: JobRecord) -> None:
        """What failed or was cancelled, and nothing else: finished parts are kept. Children before their parents: a
        parent that is entered again must find them active, and waits; else it would see the old failure."""
        tree = await nodes(self._store, top)
        left = [node for node in tree.values() if node.status in (Status.FAILED, Status.CANCELLED)]
        if not left:
            raise IllegalTransition(f"nothing in the tree of job {top.job_id} has failed or was cancelled")
        while left:
            above = _above(tree, left)
            ready = [node for node in left if node.job_id not in above]
            blocked = (await run_again(self._store, self._clock, ready, self._by, self._reason)).blocked
            if len(blocked) == len(ready):
                raise said_of_blocked(tree, blocked)
            kept = {node.job_id for node in blocked}
            left = [node for node in left if node.job_id in above or node.job_id in kept]

    # Running again from here

    async def rerun(self, job: JobRecord) -> None:
        """This job and what in its tree depends on it or on something below it; then its parents. Children are run
        again when their parents are entered. What comes before it is kept, and read again."""
        root = job if job.root_job_id in (None, job.job_id) else await record_of(self._store, str(job.root_job_id))
        tree = await nodes(self._store, root)
        if job.job_id not in tree:  # its tree was taken apart by hand
            tree |= await nodes(self._store, job)
        here = _closure([job.job_id], _children(tree))
        after = _after(tree, here)
        ancestors = _ancestors(tree, job.job_id)
        _check(tree, job, after - here, ancestors)
        tops = [job.job_id, *(each for each in after - here if tree[each].parent_job_id not in after)]
        chosen = {job_id: tree[job_id] for job_id in tops if tree[job_id].status in TERMINAL}
        for level in levels(chosen):
            if overtaken := await self._again(tree, level, mark(job.job_id, self._reason)):
                raise IllegalTransition(
                    f"{overtaken[0].name} was made to run by someone else just now: say this again when it has ended"
                )
        for ancestor in ancestors:
            if ancestor.status in TERMINAL:  # one that another has made active waits for us as well
                await self._again(tree, [ancestor], f"after {job.job_id}, which is run again")

    async def _again(self, tree: dict[str, Node], chosen: list[Node], reason: str) -> list[Node]:
        """Those that someone else has made active meanwhile."""
        again = await run_again(self._store, self._clock, chosen, self._by, reason)
        if again.blocked:
            raise said_of_blocked(tree, again.blocked)
        return again.overtaken


def _check(tree: dict[str, Node], job: JobRecord, dependents: Iterable[str], ancestors: Iterable[Node]) -> None:
    """Before anything is changed. Whoever has read what it would read anew must not be under way with the old."""
    if job.archived_at is not None:
        raise IllegalTransition(f"job {job.job_id} was archived, and its payload is gone: submit it anew")
    begun = job.status not in TERMINAL  # this was said before, and cut off: its parents may be under way because of it
    if begun and marked_version(job) is None:
        raise IllegalTransition(
            f"job {job.job_id} is {job.status.value}, and runs again once it has ended: wait for it"
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
    """These, what of the tree depends on one of them, and all below that. A record lists a part of its edges from
    either end, so both are read."""
    dependents: dict[str, set[str]] = {job_id: set(node.dependents) & tree.keys() for job_id, node in tree.items()}
    for node in tree.values():
        for job_id in node.dependencies:
            if job_id in dependents:
                dependents[job_id].add(node.job_id)
    below = _children(tree)
    return _closure(here, lambda job_id: (*dependents[job_id], *below(job_id)))


def _above(tree: dict[str, Node], some: Iterable[Node]) -> set[str]:
    """All that have one of these below them."""
    found: set[str] = set()
    for node in some:
        parent = node.parent_job_id
        while parent is not None and parent not in found:
            found.add(parent)
            parent = tree[parent].parent_job_id if parent in tree else None
    return found


def _ancestors(tree: dict[str, Node], job_id: str) -> list[Node]:
    """From below."""
    found = []
    parent = tree[job_id].parent_job_id
    while parent is not None and parent in tree:
        found.append(tree[parent])
        parent = tree[parent].parent_job_id
    return found
