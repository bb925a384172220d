"""Real processes on one store: stalled past the lease, eight at once, all gone at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import backstay.app
from backstay import Backstay, Status
from backstay.core.records import JobRecord
from backstay.core.states import Event
from backstay.testing.history import Outcome
from backstay.testing.history.checker import check, unfinished
from tests.campaigns.crash_app import make_app, recording
from tests.campaigns.fleet import Fleet, opened
from tests.campaigns.places import Place
from tests.campaigns.stalls import STALLS

CONCURRENCY = 10
PATIENCE_SECONDS = 60  # for what is signalled: a busy machine is slow to get there


@pytest.fixture
def app_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fleet], Backstay]:
    """An app of the test itself; what it asks the store is part of the evidence."""

    def make(fleet: Fleet) -> Backstay:
        monkeypatch.setattr(backstay.app, "open_url", recording(fleet.calls, "test"))
        return make_app(fleet.url)

    return make


@pytest.mark.parametrize("where", STALLS)
async def test_a_worker_stopped_past_its_lease_is_refused_and_the_result_is_its_successors(
    where: str, tmp_path: Path, place: Place, app_of: Callable[[Fleet], Backstay]
) -> None:
    async with Fleet.open(tmp_path, lease=0.6, place=place) as fleet, app_of(fleet) as app:
        job = await app.submit("quick", {"n": 1})
        stalled = await fleet.stalling_worker(where)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await stalled.stopped.wait()
        successor = await fleet.worker()
        result = await app.result(job.job_id, timeout=PATIENCE_SECONDS)
        stalled.send(signal.SIGCONT)
        await fleet.terminate(PATIENCE_SECONDS)  # each ends when it has said what it had to say
        evidence = await fleet.evidence(app.store)
    late = [op for op in evidence.operations if op.process.startswith(f"{stalled.name}.") and op.item.token]
    assert result["pid"] == successor.pid
    assert [op for op in late if op.outcome is Outcome.STALE]
    assert [op for op in late if op.verb == "apply" and op.outcome is not Outcome.STALE] == []
    assert [str(each) for each in check(evidence) + unfinished(evidence)] == []
    assert (stalled.death, successor.death) == ("exited 0", "exited 0")


async def test_eight_processes_complete_ten_thousand_jobs_once_each(
    tmp_path: Path, place: Place, app_of: Callable[[Fleet], Backstay]
) -> None:
    async with Fleet.open(tmp_path, lease=20, place=place) as fleet:
        # On a file or a schema that does not exist yet.
        await asyncio.gather(*(fleet.worker(concurrency=CONCURRENCY) for _ in range(8)))
        async with app_of(fleet) as app:
            # As many slow ones first as all eight can hold: seven cannot, so that none is too late to take part.
            await app.submit_many(("slow", {"n": n, "millis": 2_000}) for n in range(8 * CONCURRENCY))
            for start in range(8 * CONCURRENCY, 10_000, 1_000):
                await app.submit_many(("quick", {"n": n}) for n in range(start, min(start + 1_000, 10_000)))
            await fleet.all_ended(app.store, seconds=100)
            await fleet.terminate(PATIENCE_SECONDS)
            evidence = await fleet.evidence(app.store)
    assert [process.death for process in fleet.all] == ["exited 0"] * 8, fleet.errors()
    assert [str(each) for each in check(evidence) + unfinished(evidence)] == []
    assert len(evidence.records) == 10_000
    # One that was claimed ahead and had no slot in time has been given back, and is claimed once more for that.
    runs = {(record.status, record.failures, record.attempt - _handed_back(record)) for record in evidence.records}
    assert runs == {(Status.COMPLETED, 0, 1)}
    numbers = {msgspec.json.decode(record.result or "null")["n"] for record in evidence.records}
    assert numbers == set(range(10_000))
    # A process has two stores: where a claim takes long, the one that keeps leases asks what it has taken so far.
    assert len({op.process.partition(".")[0] for op in evidence.of("claim", Outcome.OK)}) == 8


async def test_what_was_interrupted_runs_again_after_a_restart(
    tmp_path: Path, place: Place, app_of: Callable[[Fleet], Backstay]
) -> None:
    async with Fleet.open(tmp_path, lease=60, place=place) as fleet:
        async with app_of(fleet) as app:
            for n in range(20):
                await app.submit("slow" if n % 2 else "quick", {"n": n, "millis": 1})
            doomed = [await fleet.worker("handler.inside=kill9@2", concurrency=10) for _ in range(2)]
            async with asyncio.timeout(PATIENCE_SECONDS):
                for process in doomed:
                    await process.ended.wait()
        async with opened(fleet.url) as store:  # everything has died; a lease of a minute is left on what they held
            interrupted = [
                record for record in (await fleet.evidence(store)).records if record.status is Status.PROCESSING
            ]
            assert interrupted
            await fleet.worker()
            await fleet.all_ended(store, seconds=PATIENCE_SECONDS)
            await fleet.terminate(PATIENCE_SECONDS)
            evidence = await fleet.evidence(store)
    assert [str(each) for each in check(evidence) + unfinished(evidence)] == []
    for record in interrupted:
        ended = evidence.by_id[record.job_id]
        assert (ended.status, ended.failures) == (Status.COMPLETED, record.failures + 1)
        assert ended.attempt == record.attempt + 1 + _handed_back(ended) - _handed_back(record)
        assert Event.RESCUE in {event.event for event in ended.history}


def test_failpoints_are_switched_on_by_the_environment() -> None:
    program = "from backstay import failpoints\nfor _ in range(3): failpoints.hit('here'); print('passed', flush=True)"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "BACKSTAY_FAILPOINTS": "here=kill9@3"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "passed\npassed\n")


def _handed_back(record: JobRecord) -> int:
    """Claims that ended without a run: given back for want of a slot, or put off behind others of a lost worker."""
    return sum(event.event in (Event.GIVE_BACK, Event.SNOOZE) for event in record.history)
