"""The jobs that hang together with one: its tree, and what they wait for outside of it, as far as a picture goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.app import Holdfast
from holdfast.dashboard.picture import Member, Picture, draw
from holdfast.job import Job
from holdfast.limits import PICTURE_JOBS_MAX
from holdfast.server.principals import Principal
from holdfast.statuses import Status
from holdfast.store.types import JobRecord
from holdfast.trees import Cycle, order

_BELOW_MAX = 50  # children of a job that was not come upon from its root
_ABOVE_MAX = 50  # parents of parents that are looked up, where a tree is too large to come upon the job from its root


class Row(msgspec.Struct, frozen=True):
    """A line of the tree as a table."""

    job: Job
    depth: int
    unseen: int  # children that are not listed


class Family(msgspec.Struct, frozen=True):
    """Jobs by id, each after its parent. `unseen`: how many children of each are not among them."""

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
        """Parents before their children, which stand under them."""
        below: dict[str | None, list[Job]] = {}
        for job in _in_order(self.jobs):
            parent = job.parent_job_id if job.parent_job_id in self.jobs else None
            below.setdefault(parent, []).append(job)
        waiting = [(job, 0) for job in reversed(below.get(None, []))]
        while waiting:
            job, depth = waiting.pop()
            yield Row(job, depth, self.unseen.get(job.job_id, 0))
            waiting += [(child, depth + 1) for child in reversed(below.get(job.job_id, []))]


async def gather(app: Holdfast, who: Principal, job: Job, most: int = PICTURE_JOBS_MAX) -> Family:
    found = _Gathering(app, who, most)
    root_id = job.root_job_id or job.job_id
    if root_id == job.job_id:
        found.add([job.record])
    else:
        found.add(await app.store.get([root_id]))
    await found.below(root_id)
    if job.job_id not in found.records:
        await found.line_to(job.record)
        await found.below(job.job_id)
    await found.others()
    return Family(root_id, job.job_id, {key: Job(each) for key, each in found.records.items()}, found.unseen())


class _Gathering:
    def __init__(self, app: Holdfast, who: Principal, most: int) -> None:
        self.records: dict[str, JobRecord] = {}
        self._app, self._who, self._most = app, who, most

    def add(self, records: Sequence[JobRecord | None]) -> None:
        """Those of them that the key sees and there is room for."""
        for record in records:
            if record is not None and self._who.sees(record.queue) and len(self.records) < self._most:
                self.records.setdefault(record.job_id, record)

    def unseen(self) -> dict[str, int]:
        """How many children of each are not here."""
        here = Counter(record.parent_job_id for record in self.records.values())
        left = {
            job_id: max(record.children, record.open_children) - here[job_id] for job_id, record in self.records.items()
        }
        return {job_id: count for job_id, count in left.items() if count > 0}

    async def below(self, top: str) -> None:
        """Level by level, so that of a large tree its upper part is shown."""
        level = [top]
        while level:
            following: list[str] = []
            for parent in level:
                record = self.records.get(parent)
                there = 0 if record is None else max(record.children, record.open_children)
                if there == 0:
                    continue
                room = self._most - len(self.records)
                page = await self._app.store.children(parent, None, room) if room > 0 else None
                self.add(page.items if page is not None else ())
                following += [each.job_id for each in page.items] if page is not None else []
            level = following

    async def line_to(self, record: JobRecord) -> None:
        """A job of a tree too large, with those above it: it gets a place in any case."""
        self._most += _ABOVE_MAX + _BELOW_MAX
        line = [record]
        while line[-1].parent_job_id is not None and line[-1].parent_job_id not in self.records:
            if len(line) > _ABOVE_MAX:
                break
            [above] = await self._app.store.get([line[-1].parent_job_id])
            if above is None:
                break
            line.append(above)
        self.add(line[::-1])

    async def others(self) -> None:
        """What is waited for, or waits, beyond the tree."""
        tied = dict.fromkeys(
            job_id for each in self.records.values() for job_id in (*each.dependencies, *each.dependent_jobs)
        )
        missing = [job_id for job_id in tied if job_id not in self.records]
        room = self._most - len(self.records)
        if missing and room > 0:
            self.add(await self._app.store.get(missing[:room]))


def _in_order(jobs: dict[str, Job]) -> list[Job]:
    """Whoever waits for another comes after it; a record lists a part of its edges from either end."""
    needs = {job_id: [*job.dependencies] for job_id, job in jobs.items()}
    for job_id, job in jobs.items():
        for other in job.dependent_jobs:
            if other in needs:
                needs[other].append(job_id)
    try:
        places = order(list(needs.items()))
    except Cycle:  # they wait for one another: as they were found, then
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
