"""Processes under test: start, stop, kill and wait for them, by signals only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backstay.clock import within
from backstay.core.port import Store
from backstay.core.records import JobRecord, Query, Signal
from backstay.core.states import ACTIVE
from backstay.engines import open_url
from backstay.testing.history import Evidence, Operation, read_operations
from tests.campaigns.places import File, Place, Tables

WORKER = "tests.campaigns.processes.worker:work"
STALLING_WORKER = "tests.campaigns.processes.worker:stall"
SUBMITTER = "tests.campaigns.processes.submit:submit"
ROOT = Path(__file__).parents[2]
QUIET_SECONDS = 0.5


@dataclass(eq=False)
class Process:
    name: str
    failpoint: str
    pid: int = 0
    killed_by_us: bool = False
    terminated_by_us: bool = False
    died_at: int | None = None  # wall clock, microseconds
    death: str = ""  # "killed 9", "exited 0"
    spawned: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def alive(self) -> bool:
        return not self.ended.is_set()

    @property
    def died_at_its_failpoint(self) -> bool:
        return self.death == f"killed {signal.SIGKILL.value}" and bool(self.failpoint) and not self.killed_by_us

    def send(self, number: signal.Signals) -> None:
        """Send a signal. The zygote reaps a child and reports it: until then its pid cannot be reused."""
        if self.alive:
            self.killed_by_us |= number is signal.SIGKILL
            self.terminated_by_us |= number is signal.SIGTERM
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Fleet:
    def __init__(self, folder: Path, place: Place, zygote: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.calls.mkdir(exist_ok=True)
        self.place = place
        self.url = place.url
        self.processes: dict[int, Process] = {}
        self.all: list[Process] = []
        self.on_death: Callable[[Process], None] = lambda process: None
        self._zygote = zygote
        self._requested: dict[int, Process] = {}
        self._count = 0
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, folder: Path, *, lease: float, place: Place | None = None, **settings: str
    ) -> AsyncIterator[Fleet]:
        """Open a store on a file in the folder, or at another place."""
        environment = {
            **os.environ,
            "BACKSTAY_LEASE": str(lease),
            "BACKSTAY_POLL_INTERVAL": "0.5",
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
            **settings,
        }
        with (folder / "zygote.log").open("wb") as errors:
            zygote = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.campaigns.zygote",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=ROOT,
                limit=1 << 20,
            )
        fleet = cls(folder, place or File(folder / "jobs.db"), zygote)
        try:
            yield fleet
        finally:
            assert zygote.stdin is not None
            zygote.stdin.close()  # the zygote kills what is left, and ends
            await zygote.wait()
            await fleet._listening

    # Starting

    async def worker(self, failpoint: str = "", **options: Any) -> Process:
        return await self.start(WORKER, "worker", failpoint, **options)

    async def stalling_worker(self, where: str, **options: Any) -> Process:
        """A worker that stops (SIGSTOP) at a failpoint."""
        return await self.start(STALLING_WORKER, "worker", f"{where}=stop", **options)

    async def submitter(self, lane: str, failpoint: str = "", **options: Any) -> Process:
        return await self.start(SUBMITTER, lane, failpoint, lane=lane, **options)

    async def start(self, program: str, kind: str, failpoint: str, **options: Any) -> Process:
        self._count += 1
        process = Process(f"{kind}-{self._count}", failpoint)
        request = {
            "request": self._count,
            "program": program,
            "failpoints": failpoint,
            "errors": str(self.folder / "errors.log"),
            "options": {"url": self.url, "calls": str(self.calls), "name": process.name, **options},
        }
        self._requested[self._count] = process
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(request).encode() + b"\n")
        await process.spawned.wait()
        assert process.pid, f"the zygote died:\n{(self.folder / 'zygote.log').read_text()[-2000:]}"
        return process

    async def _listen(self) -> None:
        assert self._zygote.stdout is not None
        async for line in self._zygote.stdout:
            event = json.loads(line)
            match event["event"]:
                case "spawned":
                    process = self._requested.pop(event["request"])
                    process.pid = event["pid"]
                    self.processes[process.pid] = process
                    self.all.append(process)
                    process.spawned.set()
                case "stopped":
                    self.processes[event["pid"]].stopped.set()
                case "continued":
                    self.processes[event["pid"]].stopped.clear()
                case "killed" | "exited":
                    process = self.processes.pop(event["pid"])
                    process.died_at = event["at"]
                    process.death = f"{event['event']} {event['code']}"
                    process.ended.set()
                    self.on_death(process)
        for process in self._requested.values():
            process.spawned.set()  # it will never be ready: waiting callers must be notified

    # Ending

    async def all_ended(self, store: Store, seconds: float) -> None:
        """Wait until every job is in a terminal state."""
        async with asyncio.timeout(seconds + 5):
            while True:
                await self.until(store, lambda counts: not any(counts[status] for status in ACTIVE), seconds)
                # DynamoDB counts state by state, and may miss a job that changes in between.
                if not isinstance(self.place, Tables) or await self.place.all_ended():
                    return

    async def until(self, store: Store, holds: Callable[[dict[str, int]], bool], seconds: float) -> None:
        """Wait until a condition on the job counts holds. Woken by the store's own signals."""
        stirred = asyncio.Event()
        unlisten = store.listen(frozenset(Signal), lambda signal: stirred.set())
        counts: dict[str, int] = {}
        try:
            async with asyncio.timeout(seconds):
                while True:
                    stirred.clear()
                    counts = await store.counts()
                    if holds(counts):
                        return
                    await within(QUIET_SECONDS, stirred.wait())  # a signal is a hint: a killed process sends none
        except TimeoutError:
            raise AssertionError(f"after {seconds} s jobs are {counts}\n{self.errors()}") from None
        finally:
            unlisten()

    async def terminate(self, within: float = 15) -> None:
        """Send SIGTERM to all processes; each must exit with code 0."""
        living = [process for process in self.processes.values() if process.alive]
        for process in living:
            process.send(signal.SIGTERM)
        async with asyncio.timeout(within):
            for process in living:
                await process.ended.wait()

    def errors(self) -> str:
        path = self.folder / "errors.log"
        return path.read_text()[-4000:] if path.exists() else ""

    # Judging

    def operations(self) -> list[Operation]:
        return calls_in(self.calls)

    async def evidence(self, store: Store) -> Evidence:
        operations = self.operations()
        dead = {process.name for process in self.all if not process.alive}
        return Evidence(
            await dump(store),
            operations,
            counts=await store.counts(),
            edges=await self.place.edges(),
            schedules=await store.schedules(),
            counters=await store.counters(0, 2**62),
            dead_workers={worker for worker, name in worker_names(operations).items() if name in dead},
        )


def calls_in(folder: Path) -> list[Operation]:
    return read_operations(folder.glob("*.jsonl"))


def worker_names(operations: list[Operation]) -> dict[str, str]:
    """Return worker_id → the fleet's name of its process."""
    claims = (op for op in operations if op.verb == "claim" and op.item.worker is not None)
    return {str(op.item.worker): op.process.partition(".")[0] for op in claims}


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = open_url(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def dump(store: Store) -> list[JobRecord]:
    records: list[JobRecord] = []
    after = None
    while True:
        page = await store.find(Query(limit=1000, after=after))
        records += page.items
        if (after := page.next) is None:
            return records
