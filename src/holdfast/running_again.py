"""Running ended jobs again in an order that is right: nobody before what it depends on.

Children of a job that runs again "from here" are run again when it is entered, not before: they may read what comes
before their parent, and that has to be there anew. What tells such a run from a retry, which keeps what has completed,
is the reason that history keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import lifecycle, trees
from holdfast.clock import Clock, Instant
from holdfast.errors import DedupConflict, IllegalTransition
from holdfast.family_tree import PAGE, Node, children_of
from holdfast.lifecycle import TERMINAL, Event
from holdfast.store.port import Store
from holdfast.store.types import JobRecord, Verdict

_NAMED_MAX = 3  # jobs that a message names
_TRIES = 20  # each lost race means that someone else made progress
_FROM = "run again from "


def mark(job_id: str, reason: str | None) -> str:
    """The reason of a job that runs again with all its children."""
    return f"{_FROM}{job_id}" + (f": {reason}" if reason else "")


def marked_at(record: JobRecord) -> Instant | None:
    """When it was asked to run again with all its children, if that is how it came to run."""
    last = next((each for each in reversed(record.history) if each.event is Event.MANUAL_RETRY), None)
    return last.at if last is not None and (last.reason or "").startswith(_FROM) else None


async def children_again(store: Store, clock: Clock, parent: JobRecord, by: str | None) -> None:
    """Run the children again that ended before their parent was asked to. Cut off, it goes on when it is said again."""
    since = marked_at(parent)
    if since is None:
        return
    found: dict[str, Node] = {}
    async for page in children_of(store, parent.job_id):
        ended = [each for each in page if each.status in TERMINAL and (each.completed_at or 0) < since]
        found |= {each.job_id: Node.of(each) for each in ended}
    for level in levels(found):
        if blocked := await run_again(store, clock, level, by, mark(parent.job_id, None)):
            raise said_of_blocked(found, blocked)


async def run_again(
    store: Store, clock: Clock, chosen: Sequence[Node], by: str | None, reason: str | None
) -> list[Node]:
    """Those that the store says are blocked. Who is active meanwhile is left alone."""
    blocked: list[Node] = []
    for start in range(0, len(chosen), PAGE):
        page = list(chosen[start : start + PAGE])
        for _ in range(_TRIES):
            now = clock.now()
            edits = [lifecycle.manual_retry(node, now=now, by=by, reason=reason, rewait=True) for node in page]
            lost = _judged(page, await store.apply(edits, now), blocked)
            page = [node for node in await _read_again(store, lost) if node.status in TERMINAL]
            if not page:
                break
    return blocked


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


async def _read_again(store: Store, lost: Sequence[Node]) -> list[Node]:
    found = await store.get([node.job_id for node in lost]) if lost else []
    return [Node.of(record) for record in found if record is not None and record.archived_at is None]


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


def said_of_blocked(tree: dict[str, Node], blocked: Sequence[Node]) -> IllegalTransition:
    named = "; ".join(f"{node.name} depends on {_culprits(tree, node)}" for node in blocked[:_NAMED_MAX])
    more = f"; and {len(blocked) - _NAMED_MAX} more" if len(blocked) > _NAMED_MAX else ""
    return IllegalTransition(f"{named}{more}")


def _culprits(tree: dict[str, Node], node: Node) -> str:
    outside = [job_id for job_id in node.dependencies if job_id not in tree]
    if outside:
        return f"{', '.join(outside[:_NAMED_MAX])}, which did not complete outside this tree: retry that first"
    return "jobs that did not complete: retry those first"
