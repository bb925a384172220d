"""A submitter of a storm: a lane of jobs whose ids follow from lane and position, so that a successor can continue.

What it asks and what is acknowledged goes to its ledger. A step that failed, or whose answer was lost, is repeated with
the same ids until it is acknowledged, at the address where the queue is by then.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from backstay import Backstay, BackstayError, StoreError
from tests.campaigns.processes.submit import Place
from tests.campaigns.storm.app import make_app
from tests.campaigns.storm.ledger import FOLDER, Asked, Cancelled, Scribe
from tests.campaigns.storm.planted import plant

PROGRAM = "tests.campaigns.storm.submit:submit"
NAMESPACE = uuid.UUID("5a1d6f0e-4f5b-4a59-8a55-1f4d3c8e7b21")
KINDS = {
    "quick": 30,
    "threaded": 8,
    "isolated": 4,
    "flaky": 8,
    "doomed": 2,
    "keyed": 12,
    "rated": 8,
    "family": 6,
    "rows": 6,
    "told": 4,
    "patient": 6,
    "bulk": 12,
}
CANCEL_DELAY_SECONDS = 2
DELAY_SECONDS = 1
LOOK_SECONDS = 0.5


def job_id(lane: str, position: int) -> str:
    return str(uuid.uuid5(NAMESPACE, f"{lane}/{position}"))


async def submit(
    *, url: str, calls: str, name: str, lane: str, backlog: int, pause: float, seed: int, bug: str = ""
) -> None:
    """Submit until SIGTERM, while fewer than `backlog` jobs are waiting."""
    plant(bug)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    lane = f"{seed}-{lane}"
    place = Place(Path(calls) / f"{lane}.place")
    folder = Path(os.environ[FOLDER])
    desk = Desk(lane, place, Scribe(folder, "submits", sync=True), Scribe(folder, "cancels", sync=True))
    while not stop.is_set():
        with suppress(StoreError, TimeoutError):  # it does not answer, or was transferred: repeat it, where it is now
            async with make_app(url) as app:
                while not stop.is_set():
                    if await _waiting(app) < backlog:
                        await desk.steps(app, stop, pause)
                    await asyncio.sleep(pause)
        await asyncio.sleep(pause)


async def _waiting(app: Backstay) -> int:
    counts = await app.counts()
    return counts["pending"] + counts["waiting"] + counts["retrying"]


class Desk:
    def __init__(self, lane: str, place: Place, submits: Scribe, cancels: Scribe) -> None:
        self._lane = lane
        self._place = place
        self._submits = submits
        self._cancels = cancels

    async def steps(self, app: Backstay, stop: asyncio.Event, pause: float) -> None:
        """Submit for a moment, and then look again how many are waiting: counting costs more than submitting."""
        ends = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < ends and not stop.is_set():
            await self.step(app)
            await asyncio.sleep(pause)

    async def step(self, app: Backstay) -> None:
        """Submit the jobs of a position: always the same ones, so that a repeated step must change nothing."""
        at = self._place.position
        draw = random.Random(f"{self._lane}/{at}/step")
        match draw.random():
            case part if part < 0.06:
                await self._once(app, at, draw)
            case part if part < 0.12:
                await self._cancelled(app, at)
            case _:
                count = draw.choice((1, 1, 1, 4, 8))
                await self._many(app, [self._job(position) for position in range(at, at + count)])
                self._place.move(at + count)
                return
        self._place.move(at + 1)

    async def _many(self, app: Backstay, jobs: list[tuple[str, dict[str, Any], Any]]) -> None:
        ids = tuple(options["job_id"] for _, _, options in jobs)
        asked = Asked(
            ids,
            tuple(kind for kind, _, _ in jobs),
            time.monotonic_ns(),
            depends_on={each["job_id"]: each["depends_on"] for _, _, each in jobs if "depends_on" in each},
            delays={each["job_id"]: each["delay"] for _, _, each in jobs if "delay" in each},
        )
        self._submits.write(asked)
        if len(jobs) == 1:
            kind, payload, options = jobs[0]
            await app.submit(kind, payload, **options)
        else:
            await app.submit_many(jobs)
        self._submits.write(msgspec.structs.replace(asked, at=time.monotonic_ns(), acknowledged=True))

    async def _once(self, app: Backstay, at: int, draw: random.Random) -> None:
        """Submit a job that exists only once, for ever: the answer may be an earlier one."""
        key = f"once-{draw.randrange(1 + at // 40)}"  # lanes share keys
        asked = Asked((job_id(self._lane, at),), ("quick",), time.monotonic_ns(), dedup_key=key)
        self._submits.write(asked)
        job = await app.submit("quick", {"n": 0}, job_id=asked.job_ids[0], dedup_key=key, dedup_for="forever")
        heard = msgspec.structs.replace(asked, at=time.monotonic_ns(), acknowledged=True, answered=job.job_id)
        self._submits.write(heard)

    async def _cancelled(self, app: Backstay, at: int) -> None:
        kind, payload, options = "quick", {"n": at}, {"job_id": job_id(self._lane, at), "delay": CANCEL_DELAY_SECONDS}
        await self._many(app, [(kind, payload, options)])
        self._cancels.write(Cancelled(options["job_id"]))
        try:
            await app.cancel(options["job_id"])
        except StoreError:
            raise
        except BackstayError:
            return  # it has ended
        self._cancels.write(Cancelled(options["job_id"], acknowledged=True))

    def _job(self, position: int) -> tuple[str, dict[str, Any], Any]:
        draw = random.Random(f"{self._lane}/{position}")
        (kind,) = draw.choices(tuple(KINDS), tuple(KINDS.values()))
        options: dict[str, Any] = {"job_id": job_id(self._lane, position)}
        payload: dict[str, Any] = {"n": position}
        match kind:
            case "quick" if draw.random() < 0.4:
                options["fairness_key"] = f"tenant-{draw.randrange(4)}"
                options["fairness_weight"] = 1
            case "quick" | "threaded" | "isolated":
                payload["millis"] = draw.choice((0, 20, 100, 600))
                if draw.random() < 0.1:
                    options["delay"] = DELAY_SECONDS
            case "keyed":
                payload |= {"key": f"account-{draw.randrange(3)}", "millis": draw.choice((20, 60))}
                options["concurrency_key"] = payload["key"]
            case "rated":
                payload["key"] = options["rate_key"] = f"api-{draw.randrange(2)}"
        if kind != "rated" and position and draw.random() < 0.08:
            options["depends_on"] = [job_id(self._lane, position - 1)] if self._is_plain(position - 1) else []
        if not options.get("depends_on"):
            options.pop("depends_on", None)
        return kind, payload, options

    def _is_plain(self, position: int) -> bool:
        """Return whether the job at this position exists and will complete."""
        return self._place.position <= position and self._job(position)[0] != "doomed"
