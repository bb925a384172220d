"""What a handler has done is settled, whatever the store says meanwhile: a bad minute throws no work away."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from backstay import Backstay
from backstay.clock import Instant
from backstay.core.records import Transition, Verdict
from backstay.core.states import Event
from backstay.errors import ConfigurationError, StoreBusy, StoreError
from backstay.testing.conformance.factories import SECOND, running
from backstay.worker import settler
from backstay.worker.maintenance import Sweeper


class Sick:
    """A store that refuses completions: so many times, of one job, or until it is well again."""

    def __init__(self, app: Backstay, error: Exception, *, times: int = 1_000_000) -> None:
        self._apply = app.store.apply
        self._error = error
        self._times = times
        self.refused = 0
        self.job_id: str | None = None  # None: of any
        self.is_well = asyncio.Event()
        app.store.apply = self.apply  # type: ignore[method-assign]

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        meant = [t for t in transitions if t.event is Event.COMPLETE and self.job_id in (None, t.job_id)]
        if meant and self.refused < self._times and not self.is_well.is_set():
            self.refused += 1
            raise self._error
        return await self._apply(transitions, now)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settler, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(settler, "PAUSE_SECONDS_MAX", 0.01)


@pytest.mark.parametrize(
    "error",
    [ConfigurationError("AccessDeniedException: not now"), StoreError("cannot be read"), RuntimeError("a bug")],
    ids=lambda error: type(error).__name__,
)
async def test_a_store_that_refuses_for_a_while_costs_no_second_run(app: Backstay, error: Exception) -> None:
    runs = []

    @app.job("work")
    async def work(payload: int) -> str:
        runs.append(payload)
        return "done"

    async with app:
        sick = Sick(app, error, times=12)
        async with app.worker():
            handle = await work.submit(1)
            assert await handle.result(timeout=20) == "done"
        job = await app.get(handle.job_id)

    assert (runs, job.attempt, job.failures) == ([1], 1, 0)
    assert sick.refused == 12


async def test_a_job_that_the_store_cannot_take_keeps_no_other_from_being_settled(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> int:
        return payload

    async with app:
        sick = Sick(app, StoreError("an item is too large"))
        async with app.worker():
            poisoned = await app.submit("work", 1)
            sick.job_id = poisoned.job_id
            others = [await app.submit("work", number) for number in range(5)]
            for number, other in enumerate(others):
                assert await other.result(timeout=20) == number
            assert (await app.get(poisoned.job_id)).status == "processing"
            sick.is_well.set()
            assert await poisoned.result(timeout=20) == 1


async def test_a_job_that_the_store_never_takes_is_let_go_with_its_lease_and_the_log_says_so(
    app: Backstay, caplog: pytest.LogCaptureFixture
) -> None:
    again = asyncio.Event()
    runs: list[Any] = []

    @app.job("work", max_attempts=3)
    async def work(payload: int) -> None:
        runs.append(payload)
        if len(runs) == 2:
            sick.is_well.set()
            again.set()

    async with app:
        sick = Sick(app, StoreError("an item is too large"))
        async with app.worker(lease=1, poll_interval=0.05):
            await app.submit("work", 1)
            async with asyncio.timeout(30):
                await again.wait()

    assert "the job will run again: an item is too large" in caplog.text
    assert "another run or a cancellation came first" not in caplog.text


async def test_a_worker_that_stops_waits_for_each_answer_though_others_were_settled_apart(app: Backstay) -> None:
    go = asyncio.Event()

    @app.job("work")
    async def work(payload: int) -> int:
        if payload < 2:
            await go.wait()  # two that end together
        return payload

    async with app:
        apply = app.store.apply
        asked: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        answers: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

        async def slow(transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
            if transitions[0].event is Event.COMPLETE:
                if len(transitions) > 1:
                    raise StoreBusy("one of them is locked")
                asked[transitions[0].job_id].set()
                await answers[transitions[0].job_id].wait()
            return await apply(transitions, now)

        app.store.apply = slow  # type: ignore[method-assign]
        async with app.worker() as worker:
            jobs = [await app.submit("work", number) for number in range(3)]
            await asked[jobs[2].job_id].wait()
            answers[jobs[2].job_id].set()
            await jobs[2].result(timeout=20)
            go.set()
            await asked[jobs[0].job_id].wait()
            await asked[jobs[1].job_id].wait()
            last = await app.submit("work", 3)
            await asked[last.job_id].wait()

            drained = asyncio.create_task(worker._settler.drained())
            for job in jobs[:2]:
                answers[job.job_id].set()
                await job.result(timeout=20)
            assert not drained.done()  # the last one is still on its way
            answers[last.job_id].set()
            await drained
            assert (await app.get(last.job_id)).status == "completed"


async def test_a_worker_does_not_rescue_what_it_has_done_itself(app: Backstay) -> None:
    async with app:
        claim = await running(app.store, now=app.clock.now(), lease_micros=-SECOND)
        sweeper = partial(Sweeper, app.store, app.clock, worker_id="worker-1", lease_seconds=60, sweep_seconds=60)

        assert await sweeper(settling=lambda: {claim.job_id}).sweep_once() == 0
        assert (await app.get(claim.job_id)).status == "processing"

        assert await sweeper().sweep_once() == 1


async def test_a_worker_claims_no_more_than_a_slow_store_can_settle(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise finished jobs pile up in memory, with a lease each, and a crash would run all of them again."""
    monkeypatch.setattr(settler, "UNSETTLED_MAX", 20)
    monkeypatch.setattr(settler, "SETTLE_BATCH_MAX", 5)
    unsettled = 0
    seen_at_claims = []

    @app.job("work")
    async def work(payload: int) -> None:
        nonlocal unsettled
        unsettled += 1

    async with app:
        claim, apply = app.store.claim, app.store.apply

        async def watched_claim(*asked: Any) -> Any:
            seen_at_claims.append(unsettled)
            return await claim(*asked)

        async def slow_apply(transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
            nonlocal unsettled
            for _ in range(10):  # meanwhile claims go through
                await app.store.counts()
            unsettled -= len(transitions)
            return await apply(transitions, now)

        monkeypatch.setattr(app.store, "claim", watched_claim)
        monkeypatch.setattr(app.store, "apply", slow_apply)
        jobs = await app.submit_many([("work", number) for number in range(300)])
        async with app.worker(concurrency=5):
            for job in jobs:
                await job.result(timeout=60)
    assert max(seen_at_claims) < 2 * 20  # besides those that wait: a batch under way, and what has just ended
