"""The tree pages: a root with all its descendants, as a diagram and as a table.

In the diagram a job is right of its parent and right of its dependencies. Only a few of many similar siblings are
drawn, with one box that counts the rest, so that a fan-out of five hundred is still readable. Dependencies outside of
the tree are included, up to what a diagram can show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec
from fastapi import Depends, Request, Response

from backstay.app import Backstay
from backstay.core.dependencies import Cycle
from backstay.core.dependencies import order as order_of_dependencies
from backstay.core.states import Status
from backstay.dashboard import page, subjects
from backstay.errors import JobNotFound
from backstay.job import Job
from backstay.limits import FIND_LIMIT_MAX, PICTURE_JOBS_MAX
from backstay.server.auth import App, Principal, Who, needs, visible

BOX_WIDTH, BOX_HEIGHT = 160, 46
GAP_X, GAP_Y = 42, 12
MARGIN = 6
ALIKE_MAX = 7  # similar siblings drawn one by one; of more, this many and a box for the rest
LINES_MAX = 1_500  # beyond this the lines are a blot
_SWEEPS = 4  # over the columns, to untangle lines; more make no visible difference
_URGENT = (Status.FAILED, Status.PROCESSING, Status.RETRYING, Status.CANCELLED, Status.PENDING)


@dataclass(frozen=True, slots=True)
class Member:
    """A job in the diagram."""

    job_id: str
    job_type: str
    status: Status
    stage: str = ""
    progress: float = 0.0
    parent: str | None = None
    depends_on: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    unseen: int = 0  # children not loaded


@dataclass(frozen=True, slots=True)
class Box:
    """A job, or (with `counts`) several similar ones."""

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
        """The statuses of the jobs that have no box of their own."""
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
    """`asked`: the job whose page this is; it keeps a box of its own."""
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


# Grouping


def _folded(members: Sequence[Member], asked: str | None) -> tuple[dict[str, Box], dict[str, str]]:
    """Boxes by key, and the box of each job."""
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
    """A record may list only some of its edges, so both ends are read."""
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


# Lines


def _edges(members: Sequence[Member], place_of: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """From box to box. A job that depends on a sibling is connected to that sibling and not to its parent as well."""
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


# Positions


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
    """One column after the last of its predecessors. Without recursion, since a chain may be long. A cycle is cut where
    the walk returns to it."""
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
    """Order each column so that a box is about level with the boxes it is connected to."""
    before, after = _neighbours(edges)
    rank = {key: place / len(column) for column in columns for place, key in enumerate(column)}
    for sweep in range(_SWEEPS):
        forwards = sweep % 2 == 0
        for column in columns if forwards else reversed(columns):
            neighbours = before if forwards else after
            wanted = {key: _mean([rank[each] for each in neighbours.get(key, ())], rank[key]) for key in column}
            column.sort(key=wanted.__getitem__)
            rank |= {key: place / len(column) for place, key in enumerate(column)}


def _heights(columns: list[list[str]], edges: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Stack the boxes, then pull each towards those it is connected to, from the right and then from the left."""
    before, after = _neighbours(edges)
    step = BOX_HEIGHT + GAP_Y
    heights = {key: float(place * step) for column in columns for place, key in enumerate(column)}
    for neighbours, order in ((after, columns[::-1]), (before, columns)):
        for column in order:
            wanted = [_mean([heights[each] for each in neighbours.get(key, ())], heights[key]) for key in column]
            heights |= zip(column, _apart(wanted, step), strict=True)
    lowest = min(heights.values(), default=0)
    return {key: height - lowest for key, height in heights.items()}


def _apart(wanted: list[float], step: float) -> list[float]:
    """Return positions as close to the wanted ones as the order and the gap allow."""
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


_BELOW_MAX = 50  # children of a job that was not reached from its root
_ABOVE_MAX = 50  # ancestors to look up where the tree is too large to reach the job from its root


class Row(msgspec.Struct, frozen=True):
    """A row of the tree as a table."""

    job: Job
    depth: int
    unseen: int  # children not listed


class Family(msgspec.Struct, frozen=True):
    """The jobs of a tree by id, each after its parent. `unseen`: how many children of each are missing."""

    root_id: str
    asked: str
    jobs: dict[str, Job]
    unseen: dict[str, int]

    @property
    def alone(self) -> bool:
        return len(self.jobs) < 2 and not self.more

    @property
    def more(self) -> int:
        return sum(self.unseen.values())

    @property
    def counts(self) -> list[tuple[Status, int]]:
        return Counter(job.status for job in self.jobs.values()).most_common()

    def picture(self) -> Picture:
        return draw([_member(job, self.unseen.get(job.job_id, 0)) for job in self.jobs.values()], self.asked)

    def rows(self) -> Iterator[Row]:
        """Each parent followed by its children."""
        below: dict[str | None, list[Job]] = {}
        for job in _in_order(self.jobs):
            parent = job.parent_job_id if job.parent_job_id in self.jobs else None
            below.setdefault(parent, []).append(job)
        waiting = [(job, 0) for job in reversed(below.get(None, []))]
        while waiting:
            job, depth = waiting.pop()
            yield Row(job, depth, self.unseen.get(job.job_id, 0))
            waiting += [(child, depth + 1) for child in reversed(below.get(job.job_id, []))]


async def gather(app: Backstay, who: Principal, job: Job, most: int = PICTURE_JOBS_MAX) -> Family:
    found = _Gathering(app, who, most)
    root_id = job.root_job_id or job.job_id
    if root_id == job.job_id:
        found.add([job])
    else:
        found.add(await app.get_many([root_id]))
    await found.below(root_id)
    if job.job_id not in found.jobs:
        await found.line_to(job)
        await found.below(job.job_id)
    await found.others()
    return Family(root_id, job.job_id, found.jobs, found.unseen())


class _Gathering:
    def __init__(self, app: Backstay, who: Principal, most: int) -> None:
        self.jobs: dict[str, Job] = {}
        self._app, self._who, self._most = app, who, most

    def add(self, jobs: Sequence[Job | None]) -> None:
        """Add the jobs that the key can see, while there is room."""
        for job in jobs:
            if job is not None and self._who.sees(job.queue) and len(self.jobs) < self._most:
                self.jobs.setdefault(job.job_id, job)

    def unseen(self) -> dict[str, int]:
        """How many children of each are missing."""
        here = Counter(job.parent_job_id for job in self.jobs.values())
        left = {job_id: _children(job) - here[job_id] for job_id, job in self.jobs.items()}
        return {job_id: count for job_id, count in left.items() if count > 0}

    async def below(self, top: str) -> None:
        """Level by level, so that a large tree shows its upper part."""
        level = [top]
        while level:
            following: list[str] = []
            for parent in level:
                room = self._most - len(self.jobs)
                if parent in self.jobs and _children(self.jobs[parent]) and room > 0:
                    page = await self._app.children(parent, limit=min(room, FIND_LIMIT_MAX))
                    self.add(page)
                    following += [each.job_id for each in page]
            level = following

    async def line_to(self, job: Job) -> None:
        """Add a job of an oversized tree with its ancestors, beyond the limit: the job asked for is always shown."""
        self._most += _ABOVE_MAX + _BELOW_MAX
        line = [job]
        while line[-1].parent_job_id is not None and line[-1].parent_job_id not in self.jobs:
            if len(line) > _ABOVE_MAX:
                break
            [above] = await self._app.get_many([line[-1].parent_job_id])
            if above is None:
                break
            line.append(above)
        self.add(line[::-1])

    async def others(self) -> None:
        """Add dependencies and dependents outside the tree."""
        tied = dict.fromkeys(
            job_id for each in self.jobs.values() for job_id in (*each.dependencies, *each.dependent_jobs)
        )
        missing = [job_id for job_id in tied if job_id not in self.jobs]
        room = min(self._most - len(self.jobs), FIND_LIMIT_MAX)
        if missing and room > 0:
            self.add(await self._app.get_many(missing[:room]))


def _children(job: Job) -> int:
    return max(job.row.children, job.row.open_children)


def _in_order(jobs: dict[str, Job]) -> list[Job]:
    """Each job after its dependencies. A record may list only some of its edges, so both ends are read."""
    needs = {job_id: [*job.dependencies] for job_id, job in jobs.items()}
    for job_id, job in jobs.items():
        for other in job.dependent_jobs:
            if other in needs:
                needs[other].append(job_id)
    try:
        places = order_of_dependencies(list(needs.items()))
    except Cycle:  # they depend on one another: keep the order in which they were found
        return list(jobs.values())
    found = list(jobs.values())
    return [found[place] for place in places]


def _member(job: Job, unseen: int) -> Member:
    return Member(
        job_id=job.job_id,
        job_type=job.job_type,
        status=job.status,
        stage=job.job_stage or "",
        progress=job.progress,
        parent=job.parent_job_id,
        depends_on=tuple(job.dependencies),
        dependents=tuple(job.dependent_jobs),
        unseen=unseen,
    )


WANTED = 30  # trees per page, approximately

router = page.pages()


@router.get("/trees", dependencies=[Depends(needs("read"))])
async def index(request: Request, app: App, who: Who, after: str | None = None) -> Response:
    """The trees of a portion of jobs. A large tree shows up again in the next portion."""
    looked_at = await subjects.read(app, who, after, lambda jobs: len(_roots(jobs)), WANTED)
    return page.render(
        request,
        "trees.html",
        live="all" if after is None else None,
        roots=await _read(app, who, looked_at),
        looked_at=looked_at,
        first=page.url(request, "/trees") if after else None,
        next=page.url(request, "/trees", after=looked_at.next) if looked_at.next else None,
    )


def _roots(jobs: Sequence[Job]) -> list[str]:
    """Root ids without duplicates, in the order in which their jobs were found."""
    in_trees = (job for job in jobs if job.child_count or job.parent_job_id is not None)
    return list(dict.fromkeys(job.root_job_id or job.job_id for job in in_trees))


async def _read(app: Backstay, who: Principal, jobs: Sequence[Job]) -> list[Job]:
    wanted, own = _roots(jobs), {job.job_id: job for job in jobs}
    missing = [job_id for job_id in wanted if job_id not in own]
    own |= {each.job_id: each for each in await app.get_many(missing) if each is not None}
    return [own[each] for each in wanted if each in own and who.sees(own[each].queue)]


@router.get("/trees/{job_id}", dependencies=[Depends(needs("read"))])
async def tree(request: Request, app: App, who: Who, job_id: str) -> Response:
    """The whole tree of a job, which may be any job in it."""
    job = await visible(app, who, job_id)
    root = job
    if job.root_job_id not in (None, job.job_id):
        # A root that is gone or that the key cannot see: the part below it is shown.
        with suppress(JobNotFound):
            root = await visible(app, who, str(job.root_job_id))
    related = await gather(app, who, job)
    return page.render(
        request,
        "tree.html",
        live=f"tree:{job.job_id}",
        root=root,
        asked=job,
        family=related,
        picture=related.picture(),
        rows=list(related.rows()),
    )
