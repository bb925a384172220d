"""Running ended jobs again in an order that is right: nobody before what it depends on.

Children of a job that runs again "from here" are run again when it is entered, not before: they may read what comes
before their parent, and that has to be there anew. What tells such a run from a retry, which keeps what has completed,
is a mark in history, which no reason of a person's can be. Marks are told apart by the version of the event that made
them, never by a time: hosts do not agree on that.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import lifecycle, trees
from holdfast.checks import is_mark
from holdfast.clock import Clock
from holdfast.errors import DedupConflict, IllegalTransition
from holdfast.family_tree import PAGE, Node, children_of
from holdfast.lifecycle import TERMINAL, Event
from holdfast.store.port import Store
from holdfast.store.types import JobRecord, Verdict

_NAMED_MAX = 3  # jobs that a message names
_TRIES = 20  # each lost race means that someone else made progress


class Again(msgspec.Struct):
    """What became of jobs that were to run again, where it is not that they do."""

    blocked: list[Node] = []  # for what they depend on has come to nothing
    overtaken: list[Node] = []  # somebody else made them active meanwhile, for a reason of their own


def mark(job_id: str, reason: str | None, version: int | None = None) -> str:
    """The reason of a job that runs again with all its children: from itself, or because its parent did, by the event
    of this version."""
    made_by = "" if version is None else f", version {version}"
    return f"run again from {job_id}{made_by}" + (f": {reason}" if reason else "")


def marked_version(record: JobRecord) -> int | None:
    """The event that asked it to run again with all its children, if that is how it came to run."""
    last = next((each for each in reversed(record.history) if each.event is Event.MANUAL_RETRY), None)
    return last.version if last is not None and is_mark(last.reason) else None


async def children_again(
    store: Store, clock: Clock, parent: JobRecord, version: int, by: str | None
) -> tuple[dict[str, Node], Again]:
    """Run all children again, once for the event that asked their parent to. Cut off, it goes on when it is said again.
    Those that it found, and what of them it left as they are: those that are blocked, and those that someone else has
    made to run, who are not stopped for it."""
    reason = mark(parent.job_id, None, version)
    found: dict[str, Node] = {}
    left = Again()
    async for page in children_of(store, parent.job_id):
        ours = [each for each in page if not _was_marked(each, reason)]
        found |= {each.job_id: Node.of(each) for each in ours if each.status in TERMINAL}
        left.overtaken += [Node.of(each) for each in ours if each.status not in TERMINAL]
    for level in levels(found):
        again = await run_again(store, clock, level, by, reason)
        left.blocked += again.blocked
        left.overtaken += again.overtaken
    return found, left


def _was_marked(record: JobRecord, reason: str) -> bool:
    return any(each.event is Event.MANUAL_RETRY and each.reason == reason for each in record.history)


async def run_again(store: Store, clock: Clock, chosen: Sequence[Node], by: str | None, reason: str | None) -> Again:
    """Who is active meanwhile is left alone."""
    again = Again()
    for start in range(0, len(chosen), PAGE):
        page = list(chosen[start : start + PAGE])
        for _ in range(_TRIES):
            now = clock.now()
            edits = [lifecycle.manual_retry(node, now=now, by=by, reason=reason, rewait=True) for node in page]
            lost = _judged(page, await store.apply(edits, now), again.blocked)
            records = await _read_again(store, lost)
            again.overtaken += [Node.of(each) for each in records if _is_anothers(each, reason)]
            page = [Node.of(each) for each in records if each.status in TERMINAL]
            if not page:
                break
    return again


def _is_anothers(record: JobRecord, reason: str | None) -> bool:
    """Whether it runs because of someone who asked for something else; the same may be asked for twice at a time."""
    last = next((each for each in reversed(record.history) if each.event is Event.MANUAL_RETRY), None)
    return record.status not in TERMINAL and (last is None or last.reason != reason)


def _judged(page: Sequence[Node], verdicts: Sequence[Verdict], blocked: list[Node]) -> list[Node]:
    """Those that have changed meanwhile."""
    lost = []
    for node, verdict in zip(page, verdicts, strict=True):
        match verdict:
            case Verdict.BLOCKED:
                blocked.append(node)
            case Verdict.TAKEN:
                raise DedupConflict(f"{node.name} cannot run again: its dedup key belongs to another job now")
            case Verdict.STALE:
                lost.append(node)
            case _:
                pass
    return lost


async def _read_again(store: Store, lost: Sequence[Node]) -> list[JobRecord]:
    found = await store.get([node.job_id for node in lost]) if lost else []
    return [record for record in found if record is not None and record.archived_at is None]


def levels(chosen: dict[str, Node]) -> list[list[Node]]:
    """Such that whoever depends on another comes after it: one that ran again before what it depends on would take the
    old result."""
    listed = list(chosen.values())
    needs = {node.job_id: [each for each in node.dependencies if each in chosen] for node in listed}
    for node in listed:  # a record lists a part of its edges from either end
        for dependent in node.dependents:
            if dependent in needs:
                needs[dependent].append(node.job_id)
    try:
        places = trees.order([(node.job_id, needs[node.job_id]) for node in listed])
    except trees.Cycle as cycle:
        ring = " → ".join(listed[place].name for place in cycle.path)
        raise IllegalTransition(f"these wait for one another: {ring}") from None
    depth: dict[str, int] = {}
    found: list[list[Node]] = []
    for node in (listed[place] for place in places):
        level = depth[node.job_id] = 1 + max((depth[each] for each in needs[node.job_id]), default=-1)
        if level == len(found):
            found.append([])
        found[level].append(node)
    return found


def said_of_overtaken(overtaken: Sequence[Node]) -> str:
    """For whoever runs the parent: what below these had ended well is not run again."""
    named = ", ".join(node.name for node in overtaken[:_NAMED_MAX])
    more = f" and {len(overtaken) - _NAMED_MAX} more" if len(overtaken) > _NAMED_MAX else ""
    return f"left to whoever had them run at the same time: {named}{more}"


def said_of_blocked(tree: dict[str, Node], blocked: Sequence[Node]) -> IllegalTransition:
    named = "; ".join(f"{node.name} depends on {_culprits(tree, node)}" for node in blocked[:_NAMED_MAX])
    more = f"; and {len(blocked) - _NAMED_MAX} more" if len(blocked) > _NAMED_MAX else ""
    return IllegalTransition(f"{named}{more}")


def _culprits(tree: dict[str, Node], node: Node) -> str:
    outside = [job_id for job_id in node.dependencies if job_id not in tree]
    if outside:
        return f"{', '.join(outside[:_NAMED_MAX])}, which did not complete outside this tree: retry that first"
    return "jobs that did not complete: retry those first"
