"""A tree of jobs as a picture: which box stands where, and which line joins which. Pure.

Boxes stand in columns: right of whoever submitted a job, and right of what it waits for. Many alike siblings become a
few and one box that says how many more there are, so that a fan of five hundred is still a picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.statuses import Status

BOX_WIDTH, BOX_HEIGHT = 160, 46
GAP_X, GAP_Y = 42, 12
MARGIN = 6
ALIKE_MAX = 7  # alike siblings that stand each for itself; of more, so many and a box for the rest
LINES_MAX = 1_500  # between everything and everything; beyond it they are a blot
_SWEEPS = 4  # over the columns, to untangle lines; more change nothing worth seeing
_URGENT = (Status.FAILED, Status.PROCESSING, Status.RETRYING, Status.CANCELLED, Status.PENDING)


@dataclass(frozen=True, slots=True)
class Member:
    """A job of the picture."""

    job_id: str
    job_type: str
    status: Status
    stage: str = ""
    progress: float = 0.0
    parent: str | None = None
    depends_on: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    unseen: int = 0  # children that were not loaded


@dataclass(frozen=True, slots=True)
class Box:
    """A job, or (`counts`) several that are alike."""

    member: Member
    x: float = 0
    y: float = 0
    counts: Mapping[Status, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.member.job_id}+" if self.counts else self.member.job_id

    @property
    def more(self) -> int:
        return sum(self.counts.values())

    @property
    def summary(self) -> str:
        """How those stand that have no box of their own."""
        return ", ".join(f"{number:,} {status.value}" for status, number in self.counts.items())


@dataclass(frozen=True, slots=True)
class Line:
    kind: str  # "child" or "waits"
    path: str


@dataclass(frozen=True, slots=True)
class Picture:
    width: float
    height: float
    boxes: Sequence[Box]
    lines: Sequence[Line]


def draw(members: Sequence[Member], asked: str | None = None) -> Picture:
    """`asked`: the job from which one came; it keeps a box of its own."""
    boxes, place_of = _folded(members, asked)
    edges = _edges(members, place_of)
    columns = _columns(boxes, edges)
    _untangle(columns, edges)
    heights = _heights(columns, edges)
    placed = {
        key: replace(boxes[key], x=MARGIN + number * (BOX_WIDTH + GAP_X), y=MARGIN + heights[key])
        for number, column in enumerate(columns)
        for key in column
    }
    return Picture(
        width=2 * MARGIN + len(columns) * BOX_WIDTH + max(0, len(columns) - 1) * GAP_X,
        height=2 * MARGIN + max((heights[key] for key in placed), default=0) + BOX_HEIGHT,
        boxes=list(placed.values()),
        lines=[_line(placed[source], placed[target], kind) for (source, target), kind in edges.items()][:LINES_MAX],
    )


# What is alike


def _folded(members: Sequence[Member], asked: str | None) -> tuple[dict[str, Box], dict[str, str]]:
    """Boxes by key, and in which of them each job is."""
    after = _dependents(members)
    parents = {each.parent for each in members}
    alike: dict[object, list[Member]] = {}
    for each in members:
        own = each.job_id in parents or each.unseen or each.parent is None
        kind = each.job_id if own else (each.parent, each.job_type, each.stage, each.depends_on, after[each.job_id])
        alike.setdefault(kind, []).append(each)
    boxes: dict[str, Box] = {}
    place_of: dict[str, str] = {}
    for group in alike.values():
        shown, rest = _split(group, asked)
        for each in shown:
            boxes[each.job_id] = Box(each)
            place_of[each.job_id] = each.job_id
        if rest:
            box = Box(rest[0], counts=dict(Counter(each.status for each in rest).most_common()))
            boxes[box.key] = box
            place_of |= {each.job_id: box.key for each in rest}
    return boxes, place_of


def _dependents(members: Sequence[Member]) -> dict[str, frozenset[str]]:
    """A record lists a part of its edges from either end, so both are read."""
    found: dict[str, set[str]] = {each.job_id: set() for each in members}
    for each in members:
        found[each.job_id].update(other for other in each.dependents if other in found)
        for other in each.depends_on:
            if other in found:
                found[other].add(each.job_id)
    return {job_id: frozenset(others) for job_id, others in found.items()}


def _split(group: list[Member], asked: str | None) -> tuple[list[Member], list[Member]]:
    if len(group) <= ALIKE_MAX + 1:
        return group, []
    urgency = {status: place for place, status in enumerate(_URGENT)}
    chosen = sorted(
        range(len(group)),
        key=lambda place: (group[place].job_id != asked, urgency.get(group[place].status, len(_URGENT)), place),
    )
    shown = set(chosen[:ALIKE_MAX])
    return [group[place] for place in sorted(shown)], [group[place] for place in sorted(chosen[ALIKE_MAX:])]


# Which lines there are


def _edges(members: Sequence[Member], place_of: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """From box to box. Whoever waits for a sibling hangs on that one, not on its parent as well."""
    by_id = {each.job_id: each for each in members}
    found: dict[tuple[str, str], str] = {}
    after = _dependents(members)
    for each in members:
        for other in sorted(after[each.job_id]):
            found[place_of[each.job_id], place_of[other]] = "waits"
    hanging = {
        other
        for job_id, others in after.items()
        for other in others
        if by_id[other].parent is not None and by_id[job_id].parent == by_id[other].parent
    }
    for each in members:
        if each.parent in place_of and each.job_id not in hanging:
            found.setdefault((place_of[str(each.parent)], place_of[each.job_id]), "child")
    return {(source, target): kind for (source, target), kind in found.items() if source != target}


# Where boxes stand


def _columns(boxes: Mapping[str, Box], edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    before: dict[str, list[str]] = {key: [] for key in boxes}
    for source, target in edges:
        before[target].append(source)
    column: dict[str, int] = {}
    for start in boxes:
        _place(start, before, column)
    found: list[list[str]] = [[] for _ in range(max(column.values(), default=-1) + 1)]
    for key in boxes:
        found[column[key]].append(key)
    return found


def _place(start: str, before: Mapping[str, list[str]], column: dict[str, int]) -> None:
    """One behind the last of those before it. Without recursion: a chain may be long. Jobs that wait for one another
    in a ring are cut open where the walk comes round."""
    path = {start: iter(before[start])} if start not in column else {}
    while path:
        key, rest = next(reversed(path.items()))
        ahead = next((each for each in rest if each not in column and each not in path), None)
        if ahead is not None:
            path[ahead] = iter(before[ahead])
            continue
        column[key] = 1 + max((column[each] for each in before[key] if each in column), default=-1)
        del path[key]


def _neighbours(edges: Iterable[tuple[str, str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for source, target in edges:
        before.setdefault(target, []).append(source)
        after.setdefault(source, []).append(target)
    return before, after


def _untangle(columns: list[list[str]], edges: Iterable[tuple[str, str]]) -> None:
    """Each box about as high in its column as those that it is joined to are in theirs."""
    before, after = _neighbours(edges)
    rank = {key: place / len(column) for column in columns for place, key in enumerate(column)}
    for sweep in range(_SWEEPS):
        forwards = sweep % 2 == 0
        for column in columns if forwards else reversed(columns):
            beside = before if forwards else after
            wanted = {key: _mean([rank[each] for each in beside.get(key, ())], rank[key]) for key in column}
            column.sort(key=wanted.__getitem__)
            rank |= {key: place / len(column) for place, key in enumerate(column)}


def _heights(columns: list[list[str]], edges: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Stacked first, then drawn towards what each is joined to, from the right and then from the left."""
    before, after = _neighbours(edges)
    step = BOX_HEIGHT + GAP_Y
    heights = {key: float(place * step) for column in columns for place, key in enumerate(column)}
    for beside, order in ((after, columns[::-1]), (before, columns)):
        for column in order:
            wanted = [_mean([heights[each] for each in beside.get(key, ())], heights[key]) for key in column]
            heights |= zip(column, _apart(wanted, step), strict=True)
    lowest = min(heights.values(), default=0)
    return {key: height - lowest for key, height in heights.items()}


def _apart(wanted: list[float], step: float) -> list[float]:
    """As near to where each wants to be as their order and the gap between them allow."""
    found: list[float] = []
    for place, height in enumerate(wanted):
        found.append(height if place == 0 else max(height, found[-1] + step))
    drift = _mean([have - want for have, want in zip(found, wanted, strict=True)], 0.0)
    return [height - drift for height in found]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _line(source: Box, target: Box, kind: str) -> Line:
    x, y = source.x + BOX_WIDTH, source.y + BOX_HEIGHT / 2
    end_x, end_y = target.x, target.y + BOX_HEIGHT / 2
    bend = max(GAP_X, abs(end_x - x)) / 2
    return Line(kind, f"M{x:g} {y:.1f}C{x + bend:g} {y:.1f} {end_x - bend:g} {end_y:.1f} {end_x:g} {end_y:.1f}")
