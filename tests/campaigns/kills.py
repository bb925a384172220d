"""Kills processes by plan, at named points and at random moments, while jobs are submitted and run."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from backstay.core.states import Event, Status
from backstay.testing.history import Evidence
from backstay.testing.history.checker import Violation, check, unfinished
from tests.campaigns.fleet import Fleet, Process, opened, worker_names

# Where a process dies, and the highest pass of that point.
IN_WORKERS = {
    "fetch.before": 8,
    "claim.uncommitted": 8,
    "claim.committed": 8,
    "handler.before": 20,
    "handler.inside": 20,
    "handler.after": 20,
    "settle.before": 10,
    "apply.uncommitted": 10,
    "apply.committed": 10,
    "settle.after": 10,
    "extend.before": 2,
    "extend.uncommitted": 2,
    "extend.committed": 2,
    "beat.uncommitted": 2,
    "beat.committed": 2,
    "note.uncommitted": 1,
    "note.committed": 1,
    "promote.uncommitted": 4,
    "promote.committed": 4,
    "rescue.before": 1,
    "rescue.decided": 1,
    "release.uncommitted": 2,
    "release.committed": 2,
}
# The same for jobs with children. A plan with these sets the share of such jobs.
IN_TREES = {
    "insert_children.uncommitted": 2,
    "insert_children.committed": 2,
    "stage.uncommitted": 3,
    "stage.committed": 3,
    "unpack.uncommitted": 3,
    "unpack.committed": 3,
}
IN_SUBMITTERS = {"insert.uncommitted": 6, "insert.committed": 6}
POINTS = (*IN_WORKERS, *IN_SUBMITTERS)
EXTERNAL = "from outside"  # SIGKILL at a random moment
GRACEFUL = "asked to stop"  # SIGTERM at a random moment: not a kill, and must not lose anything either
# for processes that wait for a death to rescue from: it certainly leaves a claim behind
EXTRA = "handler.inside=kill9@1"
QUIET_SECONDS = 0.5


@dataclass
class Plan:
    """The number of kills at each point; the seed decides order, passes and moments."""

    at_each_point: int
    from_outside: int
    graceful: int
    seed: int
    workers: int = 5
    lanes: int = 2
    backlog: int = 60
    points: tuple[str, ...] = POINTS
    families: float = 0.0  # share of jobs with children

    @property
    def kills(self) -> int:
        return self.at_each_point * len(self.points) + self.from_outside


@dataclass
class Report:
    kills: Counter[str] = field(default_factory=Counter)
    graceful: int = 0
    extras: int = 0  # killed for processes that wait for a death
    deaths: list[str] = field(default_factory=list)  # unplanned deaths
    jobs: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)  # why jobs failed
    operations: int = 0
    unknown: int = 0
    rescue_seconds: list[float] = field(default_factory=list)
    rescued_from_the_living: int = 0
    violations: list[Violation] = field(default_factory=list)

    def rescue_percentile(self, percent: int) -> float | None:
        ordered = sorted(self.rescue_seconds)
        return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 3) if ordered else None


class Killing:
    def __init__(self, fleet: Fleet, plan: Plan, progress: Callable[[Report], None] = lambda report: None) -> None:
        self.fleet = fleet
        self.plan = plan
        self.draw = random.Random(plan.seed)
        self.report = Report()
        self.progress = progress
        of_workers = IN_WORKERS | IN_TREES
        worker_fates = [
            f"{point}=kill9@{self.draw.randint(1, of_workers[point])}" for point in self._spread(of_workers)
        ]
        worker_fates += [EXTERNAL] * plan.from_outside + [GRACEFUL] * plan.graceful
        self.draw.shuffle(worker_fates)
        submitter_fates = [
            f"{point}=kill9@{self.draw.randint(1, IN_SUBMITTERS[point])}" for point in self._spread(IN_SUBMITTERS)
        ]
        self.draw.shuffle(submitter_fates)
        self.fates = {"worker": deque(worker_fates), "submitter": deque(submitter_fates)}
        self.fate_of: dict[Process, str] = {}
        self.extras: list[Process] = []
        self.due = len(worker_fates) + len(submitter_fates)
        self.deaths: asyncio.Queue[Process] = asyncio.Queue()

    def _spread(self, points: dict[str, int]) -> list[str]:
        return [point for point in points if point in self.plan.points for _ in range(self.plan.at_each_point)]

    async def run(self, within: float) -> Report:
        self.fleet.on_death = self.deaths.put_nowait
        try:
            async with asyncio.timeout(within):
                await self._kill()
        except TimeoutError:
            calls = Counter(operation.process.partition(".")[0] for operation in self.fleet.operations())
            waiting = [
                f"{process.name} ({fate or 'no fate'}, {calls[process.name]} calls)"
                for process, fate in self.fate_of.items()
                if process.alive
            ]
            raise AssertionError(
                f"{self.due} deaths did not come within {within} s, {self.report.extras} extra ones did;"
                f" waiting: {', '.join(waiting)}\n{self.fleet.errors()}"
            ) from None
        await self._calm_down()
        return self.report

    async def _kill(self) -> None:
        for number in range(self.plan.lanes):
            await self._start(f"lane{number}")
        for _ in range(self.plan.workers):
            await self._start("worker")
        while self.due:
            process = await self._next_death()
            if process is None:
                if not any(process.alive for process in self.extras):
                    self.extras.append(await self.fleet.worker(EXTRA))
                continue
            self._count(process)
            if process not in self.extras:
                await self._start(process.name.partition("-")[0])
            self.progress(self.report)

    async def _next_death(self) -> Process | None:
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                return await self.deaths.get()
        except TimeoutError:
            return None

    async def _start(self, kind: str) -> None:
        """Start a successor with the next planned kill of its kind; without one, it just works."""
        fates = self.fates["worker" if kind == "worker" else "submitter"]
        fate = fates.popleft() if fates else ""
        failpoint = "" if fate in (EXTERNAL, GRACEFUL) else fate
        if kind == "worker":
            process = await self.fleet.worker(failpoint, concurrency=self.draw.choice((1, 4, 10)))
        else:
            process = await self.fleet.submitter(
                kind, failpoint, until=10**9, backlog=self.plan.backlog, families=self.plan.families
            )
        self.fate_of[process] = fate
        if fate in (EXTERNAL, GRACEFUL):
            number = signal.SIGTERM if fate == GRACEFUL else signal.SIGKILL
            asyncio.get_running_loop().call_later(self.draw.uniform(0.01, 0.6), process.send, number)

    def _count(self, process: Process) -> None:
        if process in self.extras and process.died_at_its_failpoint:
            self.report.extras += 1
            return
        fate = self.fate_of.get(process, "")
        if fate == GRACEFUL and process.death == "exited 0":
            self.report.graceful += 1
        elif fate == EXTERNAL and process.killed_by_us:
            self.report.kills[EXTERNAL] += 1
        elif fate and process.died_at_its_failpoint:
            self.report.kills[fate.partition("=")[0]] += 1
        else:
            self.report.deaths.append(f"{process.name} ({fate or 'no fate'}): {process.death}")
        self.due -= fate != ""

    async def _calm_down(self) -> None:
        """End the faults: all jobs must now finish, and then the records are checked."""
        for process in list(self.fleet.processes.values()):
            if process.name.startswith("lane"):
                process.send(signal.SIGTERM)
                await process.ended.wait()
        async with opened(self.fleet.url) as store:
            await self.fleet.all_ended(store, seconds=60)  # jobs of lost workers are deferred, one after another
            await self.fleet.terminate()
            while not self.deaths.empty():
                process = self.deaths.get_nowait()
                if process.death != "exited 0":
                    self._count(process)
            evidence = await self.fleet.evidence(store)
        self._judge(evidence)

    def _judge(self, evidence: Evidence) -> None:
        report = self.report
        report.violations = check(evidence) + unfinished(evidence)
        report.jobs = Counter(record.status.value for record in evidence.records)
        report.dead_letters = Counter(
            f"{record.job_type} after {record.failures} failures: {record.last_error}"
            for record in evidence.records
            if record.status is Status.FAILED
        )
        report.operations = len(evidence.operations)
        report.unknown = sum(operation.outcome == "info" for operation in evidence.operations)
        processes = {process.name: process for process in self.fleet.all}
        names = worker_names(list(evidence.operations))
        for record in evidence.records:
            holder = ""
            for event in record.history:
                if event.event is Event.CLAIM:
                    holder = names.get(event.by or "", "")
                process = processes.get(holder)
                if event.event is not Event.RESCUE or process is None or process.died_at is None:
                    continue
                noticed = (event.reason or "").endswith("died")  # perhaps before the zygote noticed
                if event.at < process.died_at and not noticed:
                    report.rescued_from_the_living += 1  # too late to extend, because the machine is busy
                elif process.death == "exited 0":
                    sentence = f"was abandoned by {holder}, which was asked to stop, and rescued"
                    report.violations.append(Violation("L4", record.job_id, sentence))
                else:
                    report.rescue_seconds.append(max(0.0, (event.at - process.died_at) / 1e6))
