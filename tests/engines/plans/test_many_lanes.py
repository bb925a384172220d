"""A claim that asks for many queues and types pays for those that have pending jobs, and not for the others."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from backstay.core.records import ClaimRequest
from backstay.engines.sqlite.store import SQLiteStore
from backstay.limits import CLAIM_LANES_MAX
from backstay.testing.conformance.factories import NOW, request, submit
from tests.engines.plans.backlog import Meter, crowd, jobs

TYPES = [f"type-{number:03}" for number in range(200)]
QUEUES = [f"queue-{number:04}" for number in range(200)]
PAIRS = len(TYPES) * len(QUEUES)
WALK = 110  # steps from one lane to the next, with its first job and whether its queue was asked for
ASK = (
    2 * 14 * (len(TYPES) + len(QUEUES))
)  # steps to say what is asked for, in two walks: from a random start, then up to it
REST = 2_000  # of a claim: to take a job, to look at the heads of a handful of lanes


def all_of_them(**said: Any) -> ClaimRequest:
    return request(queues=tuple(QUEUES), slots=dict.fromkeys(TYPES, 1), limit=1, **said)


@pytest.fixture
async def prepared(store: SQLiteStore, meter: Meter) -> Callable[[], Awaitable[int]]:
    """The steps of a claim, whose statements have been prepared."""
    await store.claim(all_of_them(), NOW)

    async def cost() -> int:
        return (await meter.cost(lambda: store.claim(all_of_them(), NOW)))[0]

    return cost


async def test_pairs_without_jobs_cost_nothing(store: SQLiteStore, prepared: Callable[[], Awaitable[int]]) -> None:
    assert await prepared() < ASK + REST < PAIRS

    await submit(store, job_type=TYPES[77], queue=QUEUES[123])

    assert await prepared() < ASK + REST


@pytest.mark.parametrize("fairness_key", ["NULL", "'tenant'"])
async def test_where_every_pair_has_jobs_a_claim_looks_at_a_part(
    store: SQLiteStore, prepared: Callable[[], Awaitable[int]], fairness_key: str
) -> None:
    each = jobs("j", job_type="'type-' || substr('00' || (value % 200), -3)", fairness_key=fairness_key,
                queue="'queue-' || substr('000' || (value / 200), -4)")  # fmt: skip
    await crowd(store, each, PAIRS - 1)

    assert await prepared() < ASK + 2 * CLAIM_LANES_MAX * WALK + REST


async def test_the_lanes_of_others_are_jumped_over(store: SQLiteStore, prepared: Callable[[], Awaitable[int]]) -> None:
    """Types that come between the asked ones would be found by a walk from lane to lane."""
    foreign = jobs("f", job_type="'type-1' || value", queue="'queue-0001'")
    await crowd(store, foreign, 20_000)
    foreign = jobs("g", job_type="'type-0'", queue="'queue-00' || value")
    await crowd(store, foreign, 20_000)

    assert await prepared() < ASK + REST + 2 * (len(TYPES) + len(QUEUES)) * WALK


async def test_a_queue_of_others_costs_the_same_however_many_jobs_it_has(
    store: SQLiteStore, prepared: Callable[[], Awaitable[int]]
) -> None:
    """A walk that comes to it goes on to the next asked queue, and does not look through its jobs for one of ours."""
    foreign = jobs("f", job_type="'type-' || (100 + value % 100)", queue="'queue-0100-of-others'")
    await crowd(store, foreign, 20_000)

    assert await prepared() < ASK + REST


async def test_a_walk_takes_no_write_lock(store: SQLiteStore) -> None:
    """While it looks around, others submit."""
    assert store._writer is not None
    store._writer.connection.execute("BEGIN IMMEDIATE")  # a claim that wrote would be stuck behind it
    try:
        assert await store.claim(all_of_them(), NOW) == []
    finally:
        store._writer.connection.execute("ROLLBACK")
