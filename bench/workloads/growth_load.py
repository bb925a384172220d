"""The load of `growth.py`: the app that its worker runs, bursts of jobs, and a probe that claims as a worker does.

`python -m bench.workloads.growth_load BURST SECONDS` submits a burst of that many jobs every so many seconds until it
gets SIGTERM. Nearly all are plain; one in a hundred each is delayed, fails once, or depends on another job, so that
every table of jobs is used. While more than `BACKLOG_MAX` bursts wait, no more are submitted: those are counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from contextlib import suppress

from backstay import Backstay, Context
from backstay.backoff import Backoff
from backstay.clock import MICROS, SystemClock
from backstay.core.lifecycle import Completed, decide
from backstay.core.port import Store
from backstay.core.records import ClaimRequest
from pydantic import BaseModel

from bench.harness.payload import note, notes

PLAIN, FAILS_ONCE = "noop", "fails-once"
APART = 100  # one job in so many is delayed, fails once, or depends on another
DELAY_SECONDS = 3.0
BACKLOG_MAX = 5
PROBE_SECONDS = 0.25
PROBE_JOBS = 10
RETRY = Backoff(1, 1, 1, 0)

app = Backstay(os.environ.get("BACKSTAY_URL", "sqlite:///jobs.db"))
clock = SystemClock()


class Note(BaseModel):
    user_id: int
    text: str


@app.job(PLAIN)
async def noop(payload: Note) -> dict[str, int]:
    return {"seen": payload.user_id}


@app.job(FAILS_ONCE, backoff=RETRY)
async def fails_once(payload: Note, ctx: Context) -> dict[str, int]:
    if ctx.attempt == 1:
        raise ConnectionError("the other side has hung up")
    return {"seen": payload.user_id}


async def feed(burst: int, seconds: float) -> None:
    """Submit bursts by the clock until SIGTERM; then print what was submitted, as JSON."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    submitted = skipped = 0
    rates: list[float] = []
    async with app:
        due = time.monotonic()
        while not stopped.is_set():
            if (await app.store.counts()).get("pending", 0) > BACKLOG_MAX * burst:
                skipped += 1
            else:
                start = time.monotonic()
                await _submit(burst)
                rates.append(burst / (time.monotonic() - start))
                submitted += burst
            due = max(due + seconds, time.monotonic() - seconds)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), max(0.0, due - time.monotonic()))
    rates.sort()
    print(json.dumps({"submitted": submitted, "bursts_left_out": skipped, "median_rate": rates[len(rates) // 2]}))


async def _submit(burst: int) -> None:
    apart = burst // APART
    plain = await app.submit_many([(PLAIN, payload) for payload in notes(burst - 3 * apart)])
    await app.submit_many(
        [(PLAIN, note(number), {"delay": DELAY_SECONDS}) for number in range(apart)]
        + [(FAILS_ONCE, note(number)) for number in range(apart)]
    )
    await app.submit_many([(PLAIN, note(number), {"depends_on": [plain[-1 - number]]}) for number in range(apart)])


async def probe(store: Store) -> tuple[float, int]:
    """Claim and complete some plain jobs; return the milliseconds that the claim took, and how many it got."""
    token = secrets.token_hex(16)
    request = ClaimRequest(
        worker_id="probe",
        worker_version="1",
        queues=("default",),
        slots={PLAIN: PROBE_JOBS},
        limit=PROBE_JOBS,
        lease_micros=60 * MICROS,
        token=token,
    )
    start = time.perf_counter()
    jobs = await store.claim(request, clock.now())
    milliseconds = (time.perf_counter() - start) * 1_000
    if jobs:
        now = clock.now()
        done = Completed('{"seen": 0}')
        await store.apply(
            [decide(job, done, now=now, backoff=RETRY, draw=0.0, token=token, by="probe") for job in jobs], now
        )
    return milliseconds, len(jobs)


if __name__ == "__main__":
    asyncio.run(feed(int(sys.argv[1]), float(sys.argv[2])))
