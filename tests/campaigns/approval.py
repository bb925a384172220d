"""An approval with a sleep of three days and an event, killed at every step: what it does outside happens once.

    ask:   submit, and run up to the wait       ─┐
    send:  the event, and run up to the sleep    ├─ each in a process of its own, with a clock of its own
    ship:  three days later, run to the end     ─┘

A process counts the failpoints that it passes: before and after each commit, and around each handler. In each trial one
process kills itself at one of them, and the same part is run again after the lease, as another worker would.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel

from backstay import Backoff, Backstay, Context, EventRefused, failpoints
from backstay.testing import ManualClock, drain
from backstay.testing.crash_child import Link, forked
from tests.campaigns.rounds import versions
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.postgres import Postgres

JOB_ID = "01938d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"
START = datetime(2030, 1, 1, tzinfo=UTC)
PARTS = {"ask": timedelta(0), "send": timedelta(hours=1), "ship": timedelta(days=3, hours=1)}
LEASE = timedelta(minutes=2)
CHILD_SECONDS = 60.0
STEPS = ["reserve", "approved", "cooldown", "ship"]


class Approval(BaseModel):
    by: str


@dataclass(frozen=True, slots=True)
class Trial:
    """What is there in the end."""

    status: str
    result: Any
    failures: int
    attempts: int
    steps: list[str]
    effects: list[str]


@dataclass(frozen=True, slots=True)
class Counted:
    """How many times a process was killed, and what was wrong afterwards."""

    kills: int
    wrong: list[str]


def make_app(url: str, outside: Path, clock: ManualClock) -> Backstay:
    app = Backstay(url, clock=clock)

    def act(name: str) -> str:
        """A service that ignores repeats: the effect of a name is one file."""
        (outside / name).touch()
        return name

    @app.job("approval", max_attempts=20, backoff=Backoff(base=0))
    async def approval(payload: int, ctx: Context) -> str:
        reserved = await ctx.step("reserve", act, f"reserve-{payload}")
        found = await ctx.wait_for_event("approved", type=Approval, timeout=timedelta(days=7))
        await ctx.sleep("cooldown", timedelta(days=3))
        shipped = await ctx.step("ship", act, f"ship-{payload}-for-{found.by}")
        return f"{reserved}, {shipped}"

    return app


async def _part(app: Backstay, part: str) -> None:
    async with app:
        await app.submit("approval", 7, job_id=JOB_ID)
        if part != "ask":
            try:
                await app.send_event(JOB_ID, "approved", {"by": "ada"}, event_id="click")
            except EventRefused:  # it is a repeat, after the end
                assert part == "ship"
        await drain(app)


class _Counter:
    """Kills this process at the nth failpoint that it passes; 0: never."""

    def __init__(self, nth: int) -> None:
        self.passed: list[str] = []
        self._nth = nth

    def hit(self, name: str) -> None:
        self.passed.append(name)
        if len(self.passed) == self._nth:
            os.killpg(os.getpid(), signal.SIGKILL)
            signal.pause()

    def watch(self) -> None:
        failpoints.switch("nothing=raise")
        failpoints.hit = self.hit


def run_part(url: str, outside: Path, part: str, late: timedelta, nth: int = 0) -> list[str] | None:
    """Run one part in a process; return the failpoints that it passed, or None if it was killed at the nth."""

    def program(link: Link) -> None:
        counter = _Counter(nth)
        counter.watch()
        app = make_app(url, outside, ManualClock(START + PARTS[part] + late))
        asyncio.run(_part(app, part))
        link.say(msgspec.json.encode(counter.passed))

    with forked(program, outside.parent / "output.txt", CHILD_SECONDS) as child:
        line = child.hear()
        if line is not None:
            return msgspec.json.decode(line, type=list[str])
        child.end()
        if child.death() != "SIGKILL":
            raise AssertionError(f"a process died unexpectedly ({child.death()}).{child.last_words()}")
        return None


def trial(url: str, outside: Path, killed: str = "", nth: int = 0) -> Trial:
    """Run all parts, one of them killed at the nth failpoint and run again."""
    outside.mkdir(parents=True)
    for part in PARTS:
        was_killed = part == killed and run_part(url, outside, part, timedelta(0), nth) is None
        if part != killed or was_killed:
            run_part(url, outside, part, LEASE if was_killed else timedelta(0))
    # What fell due while the killed worker's lease ran, or before its job was found.
    run_part(url, outside, "ship", timedelta(hours=1))
    return asyncio.run(_judged(url, outside))


async def _judged(url: str, outside: Path) -> Trial:
    app = make_app(url, outside, ManualClock(START + timedelta(days=5)))
    async with app:
        job = await app.get(JOB_ID)
        steps = [each.name for each in await app.steps(JOB_ID)]
        effects = sorted(path.name for path in outside.iterdir())
        return Trial(job.status.value, job.result, job.failures, job.attempt, steps, effects)


def moments(url: str, outside: Path) -> list[tuple[str, int, str]]:
    """Return every failpoint that an undisturbed run passes: the part, its number and its name."""
    outside.mkdir(parents=True)
    found: list[tuple[str, int, str]] = []
    for part in PARTS:
        passed = run_part(url, outside, part, timedelta(0)) or []
        found += [(part, number, name) for number, name in enumerate(passed, 1)]
    return found


def complaints(found: Trial) -> Iterator[str]:
    if found.status != "completed" or found.result != "reserve-7, ship-7-for-ada":
        yield f"it is {found.status} with {found.result!r}"
    if found.effects != ["reserve-7", "ship-7-for-ada"]:
        yield f"its effects are {found.effects}"
    if found.steps != STEPS:
        yield f"it recorded {found.steps}"
    if found.failures > 1:
        yield f"{found.failures} failures for one kill"


def approvals(urls: Iterator[str], folder: Path, only: Collection[tuple[str, str]] = ()) -> Counted:
    """Kill the flow at every failpoint, or after the first pass of some, by part and name; return how many kills that
    were, and what was wrong."""
    wrong: list[str] = []
    points = moments(next(urls), folder / "all" / "outside")
    if only:
        first = {(part, name): (part, nth, name) for part, nth, name in reversed(points)}
        points = [first[each] for each in only]
    for number, (part, nth, name) in enumerate(points):
        found = trial(next(urls), folder / str(number) / "outside", part, nth)
        wrong += [f"{part}, killed at {name} ({nth}): {each}" for each in complaints(found)]
    return Counted(len(points), wrong)


def campaign(engine: str) -> dict[str, Any]:
    """Return the figures of an engine, killed at every failpoint."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="backstay-approvals-") as folder, ExitStack() as stack:
        counted = approvals(_urls(engine, Path(folder), stack), Path(folder))
    return {
        "what": "approvals",
        "verdict": "passed" if counted.kills and not counted.wrong else "failed",
        "asked": {"engine": engine},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started),
        "versions": versions(),
        "kills": counted.kills,
        "wrong": counted.wrong,
    }


def _urls(engine: str, folder: Path, stack: ExitStack) -> Iterator[str]:
    """Return URLs of fresh queues."""
    server: Any = None
    if engine == "postgres":
        server = stack.enter_context(Postgres())
    elif engine == "dynamodb":
        server = stack.enter_context(DynamoDB())
    return urls_of(engine, server, folder)


def urls_of(engine: str, server: Any, folder: Path) -> Iterator[str]:
    """Yield URLs of fresh queues, of which each process says what time it is."""
    while True:
        name = f"approval_{secrets.token_hex(4)}"
        match engine:
            case "sqlite":
                yield f"sqlite:///{folder}/{name}.db"
            case "postgres":
                url = server.url(schema=name)
                yield f"{url}{'&' if '?' in url else '?'}clock=caller"
            case _:
                yield str(server.url(name))
