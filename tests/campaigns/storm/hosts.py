"""The hosts of a storm: groups of processes that are killed alone or together, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backstay.worker.keeper import MARK, children
from tests.campaigns.fleet import Fleet, Process
from tests.campaigns.storm import submit, work
from tests.campaigns.storm.ledger import FOLDER
from tests.campaigns.storm.site import Fault, Site

STALL_LEASES = (0.8, 2.5)  # most are past it
STALLS_AT = ("settle.before", "claim.committed")  # where some workers stop by themselves
STALLS_AFTER = (3, 60)  # times that they come there
LOOK_SECONDS = 0.1
STOP_SECONDS = 60.0  # for all processes to exit after SIGTERM
LEFT_SECONDS = 15.0  # for what handlers have started to go after their workers
KEPT = f"{MARK}=".encode()


@dataclass
class Seat:
    """A place for a process: who sits here is replaced when it dies."""

    host: int
    number: int
    submits: bool
    process: Process | None = None
    url: str = ""
    open: bool = True


@dataclass
class Hosts:
    fleet: Fleet
    site: Site
    hosts: int
    workers: int
    submitter: dict[str, Any]
    draw: random.Random
    lease: float
    ledger: Path
    stalling: float  # the share of workers that stop by themselves
    bug: str = ""
    deaths: list[str] = field(default_factory=list)  # of processes that no one killed

    def __post_init__(self) -> None:
        self.seats = [
            Seat(host, number, submits=number % (self.workers + 1) == self.workers)
            for host in range(self.hosts)
            for number in range(host * (self.workers + 1), (host + 1) * (self.workers + 1))
        ]
        self._by_process: dict[Process, Seat] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._calm = False
        self.stalled = 0  # workers that stopped by themselves
        self._stopped: set[Process] = set()
        self._stalls: set[asyncio.Task[None]] = set()
        self.faults: dict[str, Fault] = {
            "workers killed": self._kill_worker,
            "submitters killed": self._kill_submitter,
            "children killed": self._kill_child,
            "hosts killed": self._kill_host,
            "stalls": self._stall,
            "stops": self._stop,
        }

    async def start(self) -> None:
        self.fleet.on_death = self._on_death
        for seat in self.seats:
            await self._fill(seat)

    async def _fill(self, seat: Seat) -> None:
        seat.url = self.site.url
        options: dict[str, Any] = {"url": seat.url, "bug": self.bug}
        if seat.submits:
            options |= {"lane": f"lane-{seat.number}", **self.submitter}
            seat.process = await self.fleet.start(submit.PROGRAM, "submitter", "", **options)
        else:
            options |= self.site.worker_options(seat.number)
            failpoint = self._failpoint()
            seat.process = await self.fleet.start(work.PROGRAM, "worker", failpoint, **options)
            if failpoint:
                self._stalls.add(asyncio.get_running_loop().create_task(self._resume(seat.process)))
        self._by_process[seat.process] = seat
        if not seat.process.alive:  # it has died before anyone knew whose it was
            self._on_death(seat.process)
        elif seat.url != self.site.url:  # the queue was transferred meanwhile
            seat.process.send(signal.SIGTERM)

    def _on_death(self, process: Process) -> None:
        seat = self._by_process.pop(process, None)
        if seat is None:
            return
        self._stopped.discard(process)
        if not process.killed_by_us and process.death != "exited 0":
            self.deaths.append(f"died by itself: {process.name}, {process.death}")
        if seat.open:
            task = asyncio.get_running_loop().create_task(self._fill(seat))
            self._tasks.add(task)
            task.add_done_callback(self._filled)

    def _filled(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.deaths.append(f"could not be started again: {error!r}")

    # Faults

    def _sitting(self, submits: bool | None = None) -> list[Process]:
        return [
            seat.process
            for seat in self.seats
            if seat.process is not None and seat.process.alive and submits in (None, seat.submits)
        ]

    async def _some(self, draw: random.Random, submits: bool | None = None) -> Process:
        """Return one that lives: those that died are about to be replaced."""
        while not (sitting := self._sitting(submits)):
            if self.deaths:
                raise AssertionError("; ".join(self.deaths))
            await asyncio.sleep(LOOK_SECONDS)
        return draw.choice(sitting)

    async def _kill_worker(self, draw: random.Random) -> None:
        (await self._some(draw, submits=False)).send(signal.SIGKILL)

    async def _kill_submitter(self, draw: random.Random) -> None:
        (await self._some(draw, submits=True)).send(signal.SIGKILL)

    async def _kill_child(self, draw: random.Random) -> bool:
        """Kill the process of a handler that runs isolated, its keeper, or both."""
        workers = [process.pid for process in self._sitting(submits=False)]
        kept = [(keeper, child) for pid in workers for keeper in _keepers_of(pid) for child in children(keeper)]
        if not kept:
            return False
        keeper, child = draw.choice(kept)
        try:
            match draw.choice(("child", "keeper", "both")):
                case "child":
                    os.kill(child, signal.SIGKILL)
                case "keeper":
                    os.kill(keeper, signal.SIGKILL)
                case _:
                    os.kill(keeper, signal.SIGSTOP)  # so that it does nothing about the other one
                    os.kill(child, signal.SIGKILL)
                    os.kill(keeper, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    async def _kill_host(self, draw: random.Random) -> None:
        host = draw.randrange(self.hosts)
        for seat in self.seats:
            if seat.host == host and seat.process is not None:
                seat.process.send(signal.SIGKILL)

    async def _stall(self, draw: random.Random) -> None:
        """Stop a worker past its lease, then resume it."""
        process = await self._some(draw, submits=False)
        process.send(signal.SIGSTOP)
        self._stopped.add(process)
        await asyncio.sleep(self.lease * draw.uniform(*STALL_LEASES))
        self._continue(process)

    def _failpoint(self) -> str:
        """Some workers stop by themselves, with a claim in hand that they have not reported or are about to settle."""
        if self._calm or self.draw.random() >= self.stalling:
            return ""
        return f"{self.draw.choice(STALLS_AT)}=stop@{self.draw.randint(*STALLS_AFTER)}"

    async def _resume(self, process: Process) -> None:
        """Resume a worker that has stopped by itself. `_stall` may have stopped and resumed it before that."""
        while process.alive:
            if process.stopped.is_set() and process not in self._stopped:
                self.stalled += 1
                self._stopped.add(process)
                await asyncio.sleep(0 if self._calm else self.lease * self.draw.uniform(*STALL_LEASES))
                self._continue(process)
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _stop(self, draw: random.Random) -> None:
        """Stop a process as a deploy does."""
        (await self._some(draw)).send(signal.SIGTERM)

    def _continue(self, process: Process) -> None:
        process.stopped.clear()  # before the zygote reports it: what stops from here on is another stop
        self._stopped.discard(process)
        process.send(signal.SIGCONT)

    # Between and after the faults

    async def restart(self) -> None:
        """Let every process go to where the queue is now."""
        for process in self._sitting():
            process.send(signal.SIGTERM)

    async def calm(self) -> None:
        self._calm = True
        for process in tuple(self._stopped):
            self._continue(process)

    async def stop_submitters(self) -> None:
        await self._close([seat for seat in self.seats if seat.submits])

    async def terminate(self) -> None:
        await self._close(self.seats)
        ends = time.monotonic() + LEFT_SECONDS
        while (left := _programs(self.ledger)) and time.monotonic() < ends:  # noqa: ASYNC110 - no one tells us
            await asyncio.sleep(LOOK_SECONDS)
        for pid in left:
            self.deaths.append(f"left behind: the process {pid}, which a handler started")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _close(self, seats: list[Seat]) -> None:
        for seat in seats:
            seat.open = False
        while self._tasks:
            await asyncio.wait(self._tasks)
        processes = [seat.process for seat in seats if seat.process is not None]
        for process in processes:
            process.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                for process in processes:
                    await process.ended.wait()
        except TimeoutError:
            left = [f"{each.name} (pid {each.pid}, {_state(each.pid)})" for each in processes if each.alive]
            raise AssertionError(f"{STOP_SECONDS:.0f} s after SIGTERM there are {', '.join(left)}") from None


def _state(pid: int) -> str:
    """Return what a process does, as the kernel says it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("State:"):
                return line.partition(":")[2].strip()
    return "gone"


def _keepers_of(worker: int) -> list[int]:
    return [pid for pid in children(worker) if any(each.startswith(KEPT) for each in _environment(pid))]


def _programs(ledger: Path) -> list[int]:
    """Return the processes of this storm's handlers."""
    ours = f"{FOLDER}={ledger}".encode()
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            environment = _environment(int(path.name))
            if ours in environment and any(each.startswith(KEPT) for each in environment):
                found.append(int(path.name))
    return found


def _environment(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []
