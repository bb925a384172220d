"""Rate limits from a user's side: "10/s" holds over all workers, and whoever is held back comes in time."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstay import Backoff, Backstay, Context, InvalidOption, Job, Reason
from backstay.core.records import ClaimRequest
from backstay.testing import ManualClock
from tests.support.eventually import eventually

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def claims(jobs: list[Job]) -> list[datetime]:
    """Every start of every job, as its history has it."""
    return sorted(entry.at for job in jobs for entry in job.history if entry.event == "claim")


def assert_within(starts: list[datetime], count: int, span: timedelta) -> None:
    """A bucket of `count` that refills evenly: over any time no more than it holds and what has come in since."""
    for first, began in enumerate(starts):
        for last in range(first, len(starts)):
            assert (last - first + 1 - count) * span <= (starts[last] - began) * count, (first, last)


async def test_ten_in_a_second_are_never_more_over_two_workers_and_none_waits_longer_than_it_must(
    app: Backstay, make_app: Callable[..., Backstay]
) -> None:
    apps = [app, make_app()]
    for each in apps:

        @each.job("call", rate="10/s")
        async def call(payload: int) -> None: ...

    # Woken for every start: nobody polls within this test.
    async with apps[0], apps[1], apps[0].worker(poll_interval=60), apps[1].worker(poll_interval=60):
        handles = await app.submit_many([("call", n) for n in range(40)])
        for handle in handles:
            await handle.result(timeout=30)
        starts = claims([await handle.record() for handle in handles])
    assert len(starts) == 40
    assert_within(starts, 10, SECOND)
    assert starts[-1] - starts[0] >= 3 * SECOND
    assert starts[9] - starts[0] < SECOND  # a bucket that nobody has used is full


async def test_retries_count_as_starts(make_app: Callable[..., Backstay]) -> None:
    clock = ManualClock(NOON)
    app = make_app(clock=clock)

    @app.job("call", rate="2/h", backoff=Backoff(1, 1, jitter=0), max_attempts=3)
    async def call(payload: int) -> None:
        raise ValueError("again")

    async with app, app.worker(poll_interval=0.02):
        handle = await call.submit(1)

        async def attempts() -> int:
            return (await handle.record()).attempt

        for made in (1, 2):

            async def came(made: int = made) -> bool:
                job = await handle.record()
                return job.attempt == made and job.status == "retrying"

            await eventually(came)
            clock.advance(1)

        async def pending() -> bool:
            return (await handle.record()).status == "pending"

        await eventually(pending)
        assert await attempts() == 2
        explanation = await app.explain(handle.job_id)
        assert (explanation.reason, explanation.until) == ("rate_limited", NOON + timedelta(minutes=30))
        clock.set(NOON + timedelta(minutes=30))

        async def dead() -> bool:
            return (await handle.record()).status == "failed"

        await eventually(dead)
        assert await attempts() == 3


async def test_each_key_has_its_own_and_without_one_it_is_the_types(make_app: Callable[..., Backstay]) -> None:
    app = make_app(clock=ManualClock(NOON))

    @app.job("call", rate="1/h")
    async def call(payload: str) -> str:
        return payload

    async with app, app.worker():
        handles = {
            key: [await call.submit(key, **({"rate_key": key} if key else {})) for _ in range(2)]
            for key in ("a", "b", "")
        }
        for first, second in handles.values():
            await first.result(timeout=10)
            assert (await second.record()).status == "pending"
        assert handles[""][0].rate_key == "call"


async def test_a_key_counts_over_types_and_queues(make_app: Callable[..., Backstay]) -> None:
    app = make_app(clock=ManualClock(NOON))

    @app.job("one", rate="1/h", queue="x")
    async def one(payload: None) -> None: ...

    @app.job("two", rate="1/h", queue="y")
    async def two(payload: None) -> None: ...

    async with app, app.worker():
        await (await one.submit(None, rate_key="shop")).result(timeout=10)
        held = await two.submit(None, rate_key="shop")
        await (await two.submit(None, rate_key="other")).result(timeout=10)
        assert (await held.record()).status == "pending"


async def test_who_submits_without_the_code_is_held_to_the_rate_too(make_app: Callable[..., Backstay]) -> None:
    app = make_app(clock=ManualClock(NOON))

    @app.job("call", rate="1/h")
    async def call(payload: None) -> None: ...

    async with app, make_app(clock=app.clock) as other, app.worker():
        first, second = [await other.submit("call") for _ in range(2)]
        await first.result(timeout=10)
        assert (await app.explain(second.job_id)).reason == "rate_limited"


@pytest.mark.parametrize("leaves", ["cancelled", "rescheduled"])
async def test_one_that_leaves_the_line_before_it_starts_spends_nothing(
    make_app: Callable[..., Backstay], leaves: str
) -> None:
    app = make_app(clock=ManualClock(NOON))

    @app.job("call", rate="1/h")
    async def call(payload: int) -> int:
        return payload

    async with app:
        await app.pause_queue("default")
        first, second = [await call.submit(n) for n in range(2)]
        async with app.worker(poll_interval=60):
            await (app.cancel(first.job_id) if leaves == "cancelled" else app.reschedule(first.job_id, delay=60))
            await app.resume_queue("default")
            assert await second.result(timeout=10) == 1


async def test_a_rate_and_a_limit_at_a_time_both_hold(app: Backstay) -> None:
    running = most = 0

    @app.job("call", rate="20/s", global_concurrency=2)
    async def call(payload: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async with app, app.worker(poll_interval=60):
        handles = await app.submit_many([("call", n) for n in range(40)])
        for handle in handles:
            await handle.result(timeout=30)
        starts = claims([await handle.record() for handle in handles])
    assert most <= 2
    assert_within(starts, 20, SECOND)


async def test_a_claim_that_comes_late_gives_nothing_back(make_app: Callable[..., Backstay]) -> None:
    """Its time was read before it had to wait for the store, and others have started jobs since."""
    app = make_app(clock=ManualClock(NOON))

    @app.job("call", rate="2/s")
    async def call(payload: int) -> None: ...

    async def claimed(after: float) -> int:
        """Of three that have just become due, and so have not been looked at by anyone."""
        for n in range(3):
            await call.submit(n, delay=0.001)
        await app.store.promote(app.clock.now() + 1_000, 10)
        request = ClaimRequest("w", "1", ("default",), {"call": 9}, 9, 60_000_000, f"at-{after}")
        return len(await app.store.claim(request, app.clock.now() + round(after * 1_000_000)))

    async with app:
        assert [await claimed(after) for after in (5, 1, 5.001)] == [2, 0, 0]


async def test_jobs_that_a_full_key_holds_back_keep_no_place_from_others_of_their_rate(
    make_app: Callable[..., Backstay],
) -> None:
    app = make_app(clock=ManualClock(NOON))
    never = asyncio.Event()

    @app.job("call", rate="2/h", global_concurrency=2)
    async def call(payload: str) -> str:
        if payload == "holds":
            await never.wait()
        return payload

    async with app:
        full, other = {"concurrency_key": "full", "queue": "y"}, {"concurrency_key": "other", "queue": "y"}
        for _ in range(2):
            await call.submit("holds", concurrency_key="full", rate_key="x")
        for _ in range(2):
            await call.submit("held back", rate_key="y", **full)
        free = await call.submit("free", rate_key="y", **other)
        async with app.worker(queues=["default", "y"], poll_interval=60, grace=0):
            assert await free.result(timeout=10) == "free"


async def test_jobs_that_are_held_back_cost_a_sleeping_worker_nothing(make_app: Callable[..., Backstay]) -> None:
    app = make_app(clock=ManualClock(NOON))
    promotions = 0

    @app.job("call", rate="10/s")
    async def call(payload: int) -> None: ...

    @app.job("other", queue="open")
    async def other(payload: int) -> None: ...

    async with app:
        await app.pause_queue("default")
        await app.submit_many([("call", n) for n in range(40)])
        write = app.store._write  # type: ignore[attr-defined]

        def counted(name: str, run: Any, *arguments: Any, essential: bool) -> Any:
            nonlocal promotions
            promotions += name == "promote"
            return write(name, run, *arguments, essential=essential)

        app.store._write = counted  # type: ignore[attr-defined]
        async with app.worker(poll_interval=60):
            for n in range(50):
                await (await app.submit("other", n)).result(timeout=10)
    assert promotions < 10


@pytest.mark.parametrize("rate", ["fast", "10", 10, "0/s"])
def test_a_rate_that_cannot_be_meant_is_refused_where_it_is_written(app: Backstay, rate: Any) -> None:
    with pytest.raises(InvalidOption, match="10/s"):

        @app.job("call", rate=rate)
        async def call(payload: int) -> None: ...


async def test_a_rate_key_without_a_rate_is_refused(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        with pytest.raises(InvalidOption, match="no rate"):
            await work.submit(1, rate_key="shop")


@pytest.mark.parametrize("cost", [0, -1, 1.5, True, "7", 10**9])
async def test_a_cost_that_is_no_number_of_units_is_refused(app: Backstay, cost: Any) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        with pytest.raises(InvalidOption, match="rate_cost"):
            await work.submit(1, rate_cost=cost)


async def test_a_job_that_costs_more_than_its_budget_is_refused_with_a_sentence(app: Backstay) -> None:
    @app.job("complete", rate="100000/d")
    async def complete(payload: int) -> None: ...

    async with app:
        assert (await (await complete.submit(1, rate_cost=100_000)).record()).rate_cost == 100_000
        with pytest.raises(InvalidOption) as refused:
            await complete.submit(1, rate_cost=100_001)
        assert str(refused.value) == (
            "rate_cost=100,001: the rate of complete allows 100,000 in 24 h, so that such a job could never start:"
            " raise the rate or split the job"
        )
        with pytest.raises(InvalidOption, match="could never start"):
            await app.schedule("nightly", "0 3 * * *", complete, 1, rate_cost=100_001)


async def test_what_a_job_costs_explains_why_it_waits(app: Backstay) -> None:
    @app.job("complete", rate="1000/h")
    async def complete(payload: int) -> None: ...

    async with app, app.worker():
        await (await complete.submit(1, rate_cost=900)).result(timeout=30)
        why = await app.explain((await complete.submit(2, rate_cost=400)).job_id)
        assert (why.reason, why.params.cost) == (Reason.RATE_LIMITED, 400)
        assert str(why).startswith("it costs 400, which the rate limit of the key complete allows at ")


async def test_a_limit_at_run_time_holds_for_jobs_that_wait_and_says_so(app: Backstay) -> None:
    running: list[str] = []
    go_on = asyncio.Event()

    async def runs(number: int) -> bool:
        return len(running) == number

    @app.job("embed")
    async def embed(payload: int, ctx: Context) -> None:
        running.append(ctx.job_id)
        await go_on.wait()

    async with app:
        jobs = [await embed.submit(number) for number in range(6)]
        await app.limit(job_type="embed", concurrency=2, by="ada")
        async with app.worker(concurrency=4), app.worker(concurrency=4):
            await eventually(lambda: runs(2), seconds=60)
            why = await app.explain(jobs[5].job_id)
            assert why.reason is Reason.TYPE_LIMITED
            assert str(why).startswith("the type embed was limited to 2 at once by ada: ")
            assert len(running) == 2
            await app.limit(job_type="embed", concurrency=5)
            await eventually(lambda: runs(5), seconds=60)
            await app.limit(job_type="embed")
            await eventually(lambda: runs(6), seconds=60)
            go_on.set()
            for job in jobs:
                await job.result(timeout=30)
        assert [entry.action for entry in await app.audit_trail()] == ["type.limit"] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"job_type": "a", "key": "b"},
        {"job_type": "a", "concurrency": 0},
        {"job_type": "a", "concurrency": True},
        {"key": "", "concurrency": 1},
        {"key": "b", "rate": "fast"},
    ],
)
async def test_a_limit_that_cannot_be_meant_is_refused(app: Backstay, wrong: dict[str, Any]) -> None:
    async with app:
        with pytest.raises(InvalidOption):
            await app.limit(**wrong)
        assert await app.limits() == []
