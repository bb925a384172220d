"""A storm from its first job to its verdict."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backstay.core.port import Store
from backstay.core.records import JobRecord
from backstay.core.states import ACTIVE, TERMINAL
from tests.campaigns.fleet import Fleet, dump, opened
from tests.campaigns.rounds import say
from tests.campaigns.storm.app import SOON, TICK_SECONDS, Drop, make_app
from tests.campaigns.storm.hosts import Hosts
from tests.campaigns.storm.judge import Story, judge
from tests.campaigns.storm.ledger import FOLDER, Ledger, read
from tests.campaigns.storm.site import Fault, Site
from tests.campaigns.storm.transfer import Transfers

LEASE_SECONDS = 3.0
SWEEP_SECONDS = 5.0
RECONNECT_SECONDS = 10.0  # L3
BUSY_SECONDS = 30.0  # that a busy machine may add to any of it
QUIET_SECONDS = 0.5


@dataclass(frozen=True)
class Forecast:
    """What a storm is asked to be."""

    seed: int
    seconds: float
    hosts: int = 3
    workers: int = 2  # per host
    backlog: int = 120
    pause: float = 0.03  # of a submitter, between steps
    calm_seconds: float = 8.0  # before the storm, to measure the throughput
    gap_seconds: float = 1.5  # between faults, at most
    transfers: int = 1
    stalling: float = 0.3  # the share of workers that stop by themselves, with a claim in hand
    only: tuple[str, ...] = ()  # the faults to choose from; all
    lease: float = LEASE_SECONDS
    slack_seconds: float = 2 * SWEEP_SECONDS + RECONNECT_SECONDS + BUSY_SECONDS  # of the bound after the storm
    bug: str = ""  # planted into all processes


@dataclass
class Outcome:
    """The faults of a storm, and its result."""

    faults: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    unanswered: int = 0  # submits without an acknowledgement
    runs: int = 0
    rescued: int = 0
    throughput: float = 0.0  # jobs per second, before the storm
    backlog: int = 0  # when the faults stopped
    drain_seconds: float = 0.0
    drain_allowed: float = 0.0
    transfers: int = 0
    transfer_seconds: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)  # seconds
    broken: list[str] = field(default_factory=list)  # each as "promise: sentence"
    errors: str = ""  # the last that the processes wrote, if a promise is broken


class Storm:
    def __init__(self, site: Site, fleet: Fleet, folder: Path, forecast: Forecast) -> None:
        self._site = site
        self._fleet = fleet
        self._ledger = folder / "ledger"
        self._forecast = forecast
        self._draw = random.Random(forecast.seed)
        self._outcome = Outcome()
        self._hosts = Hosts(
            fleet,
            site,
            forecast.hosts,
            forecast.workers,
            self._submitter_options(),
            self._draw,
            forecast.lease,
            self._ledger,
            stalling=forecast.stalling,
            bug=forecast.bug,
        )
        self._transfers = Transfers(site, fleet.folder, forecast.lease)
        self._lasting: set[str] = set()
        self._began = 0.0

    @classmethod
    async def run(cls, site: Site, folder: Path, forecast: Forecast) -> Outcome:
        (folder / "ledger").mkdir()
        await site.open(folder)
        try:
            settings = {FOLDER: str(folder / "ledger")}
            async with Fleet.open(folder, lease=forecast.lease, **settings) as fleet:
                return await cls(site, fleet, folder, forecast)._run()
        finally:
            await site.close()

    def _submitter_options(self) -> dict[str, Any]:
        forecast = self._forecast
        return {"backlog": forecast.backlog, "pause": forecast.pause, "seed": forecast.seed}

    async def _run(self) -> Outcome:
        self._began = time.monotonic()
        async with make_app(self._site.direct) as app:
            await app.schedule("clock", f"@every {TICK_SECONDS}s", "tick", {"n": 0}, missed="all")
        await self._hosts.start()
        for phase in (self._measure, self._blow, self._drain):
            began = time.monotonic()
            await phase()
            self._outcome.phases[phase.__name__.strip("_")] = round(time.monotonic() - began, 1)
        return self._outcome

    # The storm

    async def _measure(self) -> None:
        """Measure the throughput of a quiet queue."""
        async with opened(self._site.direct) as store:
            await self._until(store, lambda counts: counts["completed"] > 0, BUSY_SECONDS + RECONNECT_SECONDS)
            before, began = await _ended(store), time.monotonic()
            await asyncio.sleep(self._forecast.calm_seconds)
            self._outcome.throughput = (await _ended(store) - before) / (time.monotonic() - began)

    async def _blow(self) -> None:
        """Let faults happen until the time is up. The first that fails ends the storm with its error."""
        ends = time.monotonic() + self._forecast.seconds
        faults: dict[str, Fault] = {**self._hosts.faults, **self._site.faults}
        names = self._forecast.only or tuple(faults)
        every = self._forecast.seconds / (self._forecast.transfers + 1)
        due = [ends - self._forecast.seconds + every * (number + 1) for number in range(self._forecast.transfers)]
        async with asyncio.TaskGroup() as group:
            upcoming: list[str] = []
            to_come = set(names)  # each happens at least once, however slow the machine is
            while time.monotonic() < ends or to_come or due:
                if due and time.monotonic() >= due[0] and "transfer" not in self._lasting:
                    due.pop(0)
                    self._begin(group, "transfer", self._transfer)
                # Each of them happens once before any happens again: a short storm has all.
                upcoming = upcoming or self._draw.sample(names, len(names))
                name = upcoming.pop()
                to_come.discard(name)
                if name not in self._lasting:
                    self._begin(group, name, faults[name])
                left = max(0.0, ends - time.monotonic())
                pause = self._draw.uniform(0, self._forecast.gap_seconds)
                say(f"{left:.0f} s left, {self._outcome.faults.total()} faults, {self._fleet_size()} processes")
                # What is still to come when the time is up comes at the same pace: without a pause, thousands of faults
                # a second would let no transfer through.
                await asyncio.sleep(min(left, pause) if left else pause)
            group.create_task(self._calm())

    def _begin(self, group: asyncio.TaskGroup, name: str, fault: Fault) -> None:
        draw = random.Random(self._draw.random())

        async def happen() -> None:
            try:
                if await fault(draw) is not False:
                    self._outcome.faults[name] += 1
            finally:
                self._lasting.discard(name)

        self._lasting.add(name)
        group.create_task(happen(), name=name)

    async def _transfer(self, draw: random.Random) -> None:
        await self._transfers.move(draw)
        await self._hosts.restart()

    async def _calm(self) -> None:
        """End the faults again and again until those under way have ended: one of them may begin another late."""
        while self._lasting:
            await self._hosts.calm()
            await self._site.calm()
            await asyncio.sleep(QUIET_SECONDS)

    def _fleet_size(self) -> int:
        return len(self._fleet.processes)

    # Afterwards

    async def _drain(self) -> None:
        """Wait until every job has ended, or the time that L1 allows is over, and judge."""
        await self._hosts.calm()
        await self._site.calm()
        await self._hosts.stop_submitters()
        async with make_app(self._site.direct) as app:
            await app.pause_schedule("clock")
        outcome, ledger = self._outcome, read(self._ledger)
        async with opened(self._site.direct) as store:
            began = time.monotonic()
            outcome.backlog = await _active(store)
            outcome.drain_allowed = self._allowed(outcome.backlog)
            while True:
                outcome.drain_seconds = time.monotonic() - began
                records = await _all_ended(store, ledger)
                if records is not None or outcome.drain_seconds > outcome.drain_allowed:
                    break  # the judge says who is stuck
                await asyncio.sleep(QUIET_SECONDS)
            seconds = time.monotonic() - self._began
            await self._hosts.terminate()
            await self._judge(records or await _records(store), seconds)

    def _allowed(self, backlog: int) -> float:
        """L1: the backlog at the throughput of the quiet queue, the backoff, a lease, a sweep, and what is engine's."""
        backoff = SOON.max * (1 + SOON.jitter)
        work = 2 * backlog / max(self._outcome.throughput, 1.0)
        return work + backoff + self._forecast.lease + self._site.skew_seconds + self._forecast.slack_seconds

    async def _judge(self, records: dict[str, JobRecord], seconds: float) -> None:
        outcome, ledger = self._outcome, read(self._ledger)
        rows: dict[str, list[tuple[int, str]]] = {}
        output: dict[str, list[tuple[str, int]]] = {}
        async with make_app(self._site.direct) as app:
            for record in records.values():
                if record.job_type == "rows" and record.status in TERMINAL:
                    rows[record.job_id] = [
                        (row.number, row.nonce) for row in await app.results(Drop).all(record.job_id)
                    ]
                if record.job_type == "told" and record.status in TERMINAL:
                    output[record.job_id] = [tuple(entry.value) for entry in await app.output(record.job_id)]
        story = Story(ledger, records, rows, output, seconds, tuple(self._transfers.ended), self._site.clock_jumps)
        outcome.broken = judge(story) + self._hosts.deaths
        if outcome.drain_seconds > outcome.drain_allowed:
            outcome.broken.append(f"late: after {outcome.drain_allowed:.0f} s not every job had ended")
        if outcome.broken:
            outcome.errors = self._fleet.errors()
        outcome.faults["stalls with a claim in hand"] = self._hosts.stalled
        outcome.transfers = len(self._transfers.ended)
        outcome.transfer_seconds = self._transfers.seconds
        outcome.jobs = Counter(record.status.value for record in records.values())
        outcome.kinds = Counter(record.job_type for record in records.values())
        outcome.acknowledged = len(ledger.acknowledged)
        answered = {each.job_ids for each in ledger.asked if each.acknowledged}
        outcome.unanswered = len({each.job_ids for each in ledger.asked} - answered)
        outcome.runs = sum(run.what == "begin" for run in ledger.runs)
        outcome.rescued = sum(event.event.value == "rescue" for record in records.values() for event in record.history)

    async def _until(self, store: Store, holds: Callable[[dict[str, int]], bool], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not holds(await store.counts()):  # noqa: ASYNC110 - killed processes send no signal
                await asyncio.sleep(QUIET_SECONDS)


async def _all_ended(store: Store, ledger: Ledger) -> dict[str, JobRecord] | None:
    """Return all jobs if each has ended, and each that was acknowledged is there. An index may be late."""
    if await _active(store):
        return None
    records = await _records(store)
    ended = all(record.status in TERMINAL for record in records.values())
    return records if ended and ledger.acknowledged <= records.keys() else None


async def _records(store: Store) -> dict[str, JobRecord]:
    return {record.job_id: record for record in await dump(store)}


async def _active(store: Store) -> int:
    counts = await store.counts()
    return sum(counts[status] for status in ACTIVE)


async def _ended(store: Store) -> int:
    counts = await store.counts()
    return sum(counts[status] for status in TERMINAL)
