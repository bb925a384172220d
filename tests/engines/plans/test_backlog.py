"""What a hundred thousand jobs behind one key cost those who claim, settle, promote and ask: no more than a few do."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from backstay.core.records import Rate
from backstay.engines.sqlite.store import SQLiteStore
from backstay.limits import AHEAD_MAX
from backstay.ops.explain import explain
from backstay.ops.explanation import Reason
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    SECOND,
    Claim,
    a_worker,
    claim_one,
    new_job,
    record,
    request,
    settle,
    submit,
)
from tests.engines.plans.backlog import PARKED_BY_KEY, PARKED_BY_RATE, Meter, crowd, jobs

CROWD = 100_000
FEW = 2 * AHEAD_MAX  # more than an explanation or a submit looks at
SLOTS: dict[str, Any] = {"slots": {"mine": 100}}
SLACK = 300  # steps; a walk past the crowd would take that many thousand

Call = Callable[[], Awaitable[Any]]


async def grows(
    meter: Meter, store: SQLiteStore, make: Callable[[], Awaitable[Call]], statement: str, count: int = CROWD
) -> bool:
    """Whether a call costs more with the whole crowd than with a few of it."""
    await crowd(store, statement.replace("SELECT '", "SELECT 'few-"), FEW)
    await (await make())()  # every statement has been prepared
    with_few, _ = await meter.cost(await make())
    await crowd(store, statement, count)
    with_all, _ = await meter.cost(await make())
    return with_all > with_few + SLACK


async def test_a_claim_does_not_pay_for_those_whom_a_rate_holds_back(store: SQLiteStore, meter: Meter) -> None:
    now = NOW

    async def make() -> Call:
        nonlocal now
        now += HOUR  # the bucket is full again
        await submit(store, job_type="mine", rate_key="api", rate=Rate(1, SECOND), now=now, priority=100)
        return lambda: claim_one(store, **SLOTS, now=now)

    assert not await grows(meter, store, make, jobs("r", **PARKED_BY_RATE))


async def test_a_claim_does_not_pay_for_those_whom_a_full_key_holds_back(store: SQLiteStore, meter: Meter) -> None:
    await submit(store, job_type="mine", concurrency_key="gpu")
    await claim_one(store, **SLOTS)

    async def make() -> Call:
        await submit(store, job_type="mine")
        return lambda: claim_one(store, **SLOTS)

    assert not await grows(meter, store, make, jobs("k", **PARKED_BY_KEY))


async def test_a_claim_does_not_pay_for_the_backlog_of_one_fairness_key(store: SQLiteStore, meter: Meter) -> None:
    async def make() -> Call:
        await submit(store, job_type="mine", fairness_key="small", priority=100)
        return lambda: store.claim(request(limit=2, **SLOTS), NOW)

    assert not await grows(meter, store, make, jobs("t", fairness_key="'large'"))


async def test_a_claim_looks_at_a_bounded_number_of_fairness_keys(store: SQLiteStore, meter: Meter) -> None:
    async def make() -> Call:
        return lambda: store.claim(request(limit=1, **SLOTS), NOW)

    await crowd(store, jobs("t", fairness_key="'tenant-' || (value % 2000)"), 2_000)
    await (await make())()
    of_two_thousand, _ = await meter.cost(await make())
    await crowd(store, jobs("u", fairness_key="'user-' || (value % 20000)"), 20_000)

    of_all, _ = await meter.cost(await make())

    assert of_all <= of_two_thousand + SLACK


async def test_the_end_of_a_job_lets_in_the_next_of_its_key_without_walking_past_the_others(
    store: SQLiteStore, meter: Meter
) -> None:
    await submit(store, job_type="mine", concurrency_key="gpu", priority=0)
    held: Claim = await claim_one(store, **SLOTS)

    async def make() -> Call:
        async def settle_and_claim() -> None:
            nonlocal held
            await settle(store, held.completes())
            held = await claim_one(store, **SLOTS)

        return settle_and_claim

    assert not await grows(meter, store, make, jobs("k", **PARKED_BY_KEY))


async def test_the_end_of_a_job_lets_in_the_next_of_its_key_however_many_could_start_after_it(
    store: SQLiteStore, meter: Meter
) -> None:
    await submit(store, job_type="mine", concurrency_key="gpu", priority=0)
    held: Claim = await claim_one(store, **SLOTS)
    await crowd(store, jobs("k", **PARKED_BY_KEY), 10)

    async def make() -> Call:
        async def settle_and_claim() -> None:
            nonlocal held
            await settle(store, held.completes())
            held = await claim_one(store, **SLOTS)
            assert "k" in held.job_id  # it was due before the crowd

        return settle_and_claim

    came_back = jobs("v", due="1", concurrency_key="'gpu'", concurrency_limit="1")
    assert not await grows(meter, store, make, came_back)


async def test_a_promotion_lets_in_the_next_of_a_rate_without_walking_past_the_others(
    store: SQLiteStore, meter: Meter
) -> None:
    now = NOW
    for _ in range(2):  # the first starts, the second gives its key a time to be looked at
        await submit(store, job_type="mine", rate_key="api", rate=Rate(1, SECOND))
    await claim_one(store, **SLOTS)

    async def make() -> Call:
        nonlocal now
        now += SECOND

        async def promote_and_claim() -> None:
            await store.promote(now, 10)
            await claim_one(store, **SLOTS, now=now)

        return promote_and_claim

    assert not await grows(meter, store, make, jobs("r", **PARKED_BY_RATE))


async def test_a_submit_under_a_generous_rate_does_not_count_all_that_is_in_sight(
    store: SQLiteStore, meter: Meter
) -> None:
    async def make() -> Call:
        job = new_job(job_type="mine", rate_key="api", rate=Rate(10_000_000, HOUR), special=True)
        return lambda: store.insert([job], NOW)

    in_sight = jobs("v", rate_key="'api'", rate_count="10000000", rate_micros="3600000000")
    await crowd(store, in_sight, 1_000)
    await (await make())()
    with_a_thousand, _ = await meter.cost(await make())
    await crowd(store, in_sight.replace("'v'", "'w'"), 20_000)

    assert (await meter.cost(await make()))[0] <= with_a_thousand + SLACK


CROWDS_IN_LINE = {
    "pending": jobs("p"),
    "parked by a key": jobs("k", **PARKED_BY_KEY),
    "ended under the key": jobs("e", "ended", concurrency_key="'gpu'", concurrency_limit="1"),
    "of another fairness key": jobs("t", fairness_key="'large'"),
}


@pytest.mark.parametrize("kind", CROWDS_IN_LINE)
async def test_an_explanation_does_not_walk_along_the_line(store: SQLiteStore, meter: Meter, kind: str) -> None:
    await store.beat(a_worker(job_types=("mine",)))
    await submit(store, job_type="mine", concurrency_key="gpu", priority=100)
    await claim_one(store, **SLOTS)
    waiting = [
        await record(store, await submit(store, job_type="mine", concurrency_key="gpu", fairness_key=key))
        for key in (None, "small", "large")
    ]

    async def ask() -> None:
        for job in waiting:
            assert (await explain(store, job, NOW, lambda worker: False)).reason is Reason.KEY_FULL

    async def make() -> Call:
        return ask

    assert not await grows(meter, store, make, CROWDS_IN_LINE[kind], 20_000)


async def test_counters_cost_a_row_for_each_kind_and_not_for_each_job(store: SQLiteStore, meter: Meter) -> None:
    async def complete(count: int) -> int:
        await store.insert([new_job(job_type="mine") for _ in range(count)], NOW)
        asked = request(limit=count, **SLOTS)
        claims = [Claim(job, asked.token) for job in await store.claim(asked, NOW)]
        steps, _ = await meter.cost(lambda: settle(store, *(claim.completes() for claim in claims)))
        return steps

    await complete(1)
    one, hundred = await complete(1), await complete(100)
    rows = await store.counters(0, NOW + HOUR)

    assert {(row.outcome, row.count) for row in rows} == {("submitted", 102), ("completed", 102)}
    assert len(rows) == 2
    # What a hundred completions cost beyond their own hundred rows is what one costs.
    each = (hundred - one) / 99
    assert one - each < SLACK
