"""Runs retention in every process while jobs are submitted, run and retried, and processes are killed."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from backstay.core.port import Store
from backstay.core.records import JobRecord
from backstay.testing.history import Evidence, Operation, Outcome
from backstay.testing.history.checker import check, unfinished
from backstay.testing.history.evidence import Item
from tests.campaigns.fleet import Fleet, Process, dump, worker_names
from tests.campaigns.kills import EXTERNAL
from tests.campaigns.processes.retention import MEDDLE, PURGE, SUBMIT, WORK, make_app
from tests.campaigns.retention_judge import Books, install_witness, judge, read_books
from tests.support.eventually import eventually

# Where each kind of process dies, and the highest pass of that point.
KILL_POINTS = {
    "worker": {"retire.uncommitted": 3, "retire.committed": 3, "cleaned.uncommitted": 2, "cleaned.committed": 2},
    "purger": {"retire.uncommitted": 2, "retire.committed": 2},
    "meddler": {"apply.uncommitted": 6, "apply.committed": 6},
    "lane": {"insert.uncommitted": 20, "insert.committed": 20},
}
RETIRE_POINTS = tuple(KILL_POINTS["worker"])
PROGRAMS = {"worker": WORK, "purger": PURGE, "meddler": MEDDLE, "lane": SUBMIT}
WORKERS, LANES = 8, 2
QUIET_SECONDS = 0.5


@dataclass
class RetirePlan:
    at_each_point: int
    from_outside: int
    seed: int
    jobs: int  # that leave at least
    retries: int = 0  # of ended jobs by hand, at least: how many there are by then depends on the machine's pace

    @property
    def kills(self) -> int:
        return self.at_each_point * sum(map(len, KILL_POINTS.values())) + self.from_outside


@dataclass
class RetireReport:
    kills: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    stayed: int = 0
    archived: Counter[str] = field(default_factory=Counter)  # by type
    retried_by_hand: int = 0
    resubmitted: int = 0  # and answered by a job that was there
    answered_from_the_archive: int = 0
    of_trees: int = 0  # archived, and of a tree
    faults: list[str] = field(default_factory=list)


class Retiring:
    def __init__(
        self, fleet: Fleet, plan: RetirePlan, progress: Callable[[RetireReport], None] = lambda report: None
    ) -> None:
        self.fleet = fleet
        self.plan = plan
        self.progress = progress
        self.draw = random.Random(plan.seed)
        self.report = RetireReport()
        self.fates: dict[str, deque[str]] = {}
        for kind, points in KILL_POINTS.items():
            fates = [
                f"{point}=kill9@{self.draw.randint(1, passes)}"
                for point, passes in points.items()
                for _ in range(plan.at_each_point)
            ]
            if kind == "worker":
                fates += [EXTERNAL] * plan.from_outside
            self.draw.shuffle(fates)
            self.fates[kind] = deque(fates)
        self.due = plan.kills
        self.fate_of: dict[Process, str] = {}
        self.deaths: asyncio.Queue[Process] = asyncio.Queue()

    async def run(self, within: float) -> RetireReport:
        self.fleet.on_death = self.deaths.put_nowait
        async with make_app(self.fleet.url) as app:
            install_witness(self.fleet.folder / "jobs.db")
            try:
                async with asyncio.timeout(within):
                    await self._kill(app.store)
            except TimeoutError:
                waiting = [fate for process, fate in self.fate_of.items() if process.alive]
                raise AssertionError(
                    f"{self.due} deaths did not come within {within} s; waiting: {waiting}\n{self.fleet.errors()}"
                ) from None
            await self._calm_down(app.store)
        return self.report

    async def _kill(self, store: Store) -> None:
        for number in range(LANES):
            await self._start(f"lane{number}")
        for kind in ("purger", "meddler", *["worker"] * WORKERS):
            await self._start(kind)
        while self.due or await self._left(store) < self.plan.jobs or await self._retried(store) < self.plan.retries:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    process = await self.deaths.get()
            except TimeoutError:
                continue
            self._count(process)
            await self._start(process.name.partition("-")[0])
            self.progress(self.report)

    async def _start(self, name: str) -> None:
        kind = "lane" if name.startswith("lane") else name
        fate = self.fates[kind].popleft() if self.fates[kind] else ""
        options: dict[str, Any] = {}
        if kind == "lane":
            options = {"lane": name, "until": 10**9}
        elif kind == "meddler":
            options = {"seed": self.draw.randrange(10**9)}
        process = await self.fleet.start(PROGRAMS[kind], name, "" if fate == EXTERNAL else fate, **options)
        self.fate_of[process] = fate
        if fate == EXTERNAL:
            asyncio.get_running_loop().call_later(self.draw.uniform(0.05, 1.0), process.send, signal.SIGKILL)

    def _count(self, process: Process) -> None:
        fate = self.fate_of[process]
        if fate == EXTERNAL and process.killed_by_us:
            self.report.kills[EXTERNAL] += 1
        elif fate and process.died_at_its_failpoint:
            self.report.kills[fate.partition("=")[0]] += 1
        else:
            self.report.faults.append(f"{process.name} ({fate or 'no fate'}): {process.death}\n{self.fleet.errors()}")
        self.due -= bool(fate)

    async def _left(self, store: Store) -> int:
        """Return the submitted jobs that are no longer in the job table."""
        submitted = sum(each.count for each in await store.counters(0, 2**62) if each.outcome == "submitted")
        return submitted - sum((await store.counts()).values())

    async def _retried(self, store: Store) -> int:
        return sum(each.count for each in await store.counters(0, 2**62) if each.outcome == "retried_by_hand")

    # The end

    async def _calm_down(self, store: Store) -> None:
        """Stop submitting: the remaining jobs finish, and expired ones are archived."""
        others = [each for each in self.fleet.processes.values() if not each.name.startswith("worker")]
        for process in others:
            process.send(signal.SIGTERM)
        async with asyncio.timeout(30):
            for process in others:
                await process.ended.wait()
        await self.fleet.all_ended(store, seconds=60)

        async def all_left() -> bool:
            return not _overdue(await dump(store)) and not await store.with_files(1)

        await eventually(all_left, seconds=30)
        await self.fleet.terminate()
        self.report.faults += [
            f"{each.name}: {each.death}" for each in self.fleet.all if each.death not in ("exited 0", "killed 9")
        ]
        operations = self.fleet.operations()
        books = read_books(self.fleet.folder / "jobs.db", await dump(store), operations)
        self._judge(books, await store.counts())

    def _judge(self, books: Books, counts: dict[str, int]) -> None:
        report = self.report
        report.faults += judge(books)
        left = [_purged(each.job_id) for each in books.gone]
        evidence = Evidence(books.jobs, [*books.operations, *left], counts=counts, dead_workers=self._dead(books))
        report.faults += [str(each) for each in check(evidence) + unfinished(evidence)]
        archived = books.archived
        granted = [op for op in books.operations if op.verb == "insert" and op.outcome is Outcome.OK]
        report.acknowledged = len({op.answer.job_id for op in granted})
        report.stayed = len(books.jobs)
        report.archived = Counter(each.record.job_type for each in books.archive)
        report.retried_by_hand = sum(
            times for (_, outcome), times in books.counters.items() if outcome == "retried_by_hand"
        )
        report.resubmitted = sum(op.answer.existing for op in granted)
        report.answered_from_the_archive = sum(
            op.answer.existing and op.answer.job_id in archived and op.now > archived[op.answer.job_id].archived_at
            for op in granted
        )
        report.of_trees = sum(each.record.root_job_id is not None for each in books.archive)

    def _dead(self, books: Books) -> set[str]:
        dead = {process.name for process in self.fleet.all if process.death.startswith("killed")}
        return {worker for worker, name in worker_names(list(books.operations)).items() if name in dead}


def _overdue(records: list[JobRecord]) -> list[JobRecord]:
    """Return the jobs that must be archived: of types with retention, in trees without a job that is kept."""
    staying = {record.root_job_id or record.job_id for record in records if record.job_type in ("kept", "purged")}
    return [record for record in records if (record.root_job_id or record.job_id) not in staying]


def _purged(job_id: str) -> Operation:
    """Mark a job as purged for the checker: the judge of retention has confirmed that it was archived correctly."""
    return Operation(
        process="retention", number=0, verb="purge", item=Item(job_id=job_id), outcome=Outcome.OK, invoked=0
    )
