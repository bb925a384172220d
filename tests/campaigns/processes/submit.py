"""A submitter: a lane of jobs whose ids are derived from lane and position, so that a successor can continue."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from backstay import Backstay, StoreError
from tests.campaigns.crash_app import make_app, record_calls

_NAMESPACE = uuid.UUID("0f2f4b5a-6c2e-4a41-9e52-7d6f7c1d2a10")


def job_id(lane: str, position: int) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{lane}/{position}"))


async def submit(
    *,
    url: str,
    calls: str,
    name: str,
    lane: str,
    until: int,
    backlog: int,
    pause: float = 0.005,
    families: float = 0.0,
) -> None:
    """Submit the lane's jobs up to `until`, from the predecessor's last position, while fewer than `backlog` are
    waiting. A given share of them has children."""
    record_calls(Path(calls), name)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    place = Place(Path(calls) / f"{lane}.place")
    async with make_app(url) as app:
        while place.position < until and not stop.is_set():
            with suppress(StoreError):  # the next step repeats it
                counts = await app.counts()
                if counts["pending"] + counts["waiting"] + counts["retrying"] < backlog:
                    await _step(app, lane, place, families)
            await asyncio.sleep(pause)


async def _step(app: Backstay, lane: str, place: Place, families: float) -> None:
    """Submit the jobs of a position: always the same ones, so that a repeated step must change nothing."""
    at = place.position
    count = random.Random(f"{lane}/{at}/step").choice((1, 1, 1, 4, 8))
    jobs = [_job(lane, position, families) for position in range(at, at + count)]
    if count == 1:
        job_type, payload, options = jobs[0]
        await app.submit(job_type, payload, **options)
    else:
        await app.submit_many(jobs)
    place.move(at + count)


def _job(lane: str, position: int, families: float) -> tuple[str, dict[str, Any], Any]:
    draw = random.Random(f"{lane}/{position}")
    options: dict[str, Any] = {"job_id": job_id(lane, position)}
    if _is_keyed(position):
        options["dedup_key"] = f"{lane}/{draw.randrange(5)}"
    elif draw.random() < 0.15 and position > 1:
        before = draw.randrange(max(0, position - 20), position)
        # A job with a key may be deduplicated to another, and then none has its id.
        options["depends_on"] = [job_id(lane, before - _is_keyed(before))]
    if draw.random() < 0.1:
        options["delay"] = 0.1
    kind = draw.choices(("quick", "slow", "flaky", "threaded", "limited"), (60, 12, 10, 8, 10))[0]
    if draw.random() < families:
        kind = "family"
    millis = {"slow": draw.choice((50, 150, 700, 1300)), "threaded": 20, "limited": 50}.get(kind, 0)
    return kind, {"n": position, "millis": millis}, options


def _is_keyed(position: int) -> bool:
    return position % 10 == 9


class Place:
    """The position of a lane, which survives a kill of its process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        self.position = int(os.pread(self._descriptor, 20, 0) or b"0")

    def move(self, position: int) -> None:
        self.position = position
        os.pwrite(self._descriptor, f"{position:020d}".encode(), 0)
