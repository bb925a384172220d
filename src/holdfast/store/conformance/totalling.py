"""Buckets of the counters, and totals: what was counted once is not lost with the minutes in which it was."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.clock import Instant
from holdfast.counted import BOUNDS, NO_BUCKET, bucket_of, spans_of
from holdfast.lifecycle import Counted, Status
from holdfast.limits import COUNTERS_DAYS
from holdfast.store import types
from holdfast.store.conformance.exporting import carry
from holdfast.store.conformance.factories import (
    DAY,
    HOUR,
    MINUTE,
    NOW,
    SECOND,
    Claim,
    a_policy,
    cancelled,
    claim_one,
    completed,
    retire,
    running,
    settle,
    submit,
    submit_many,
)
from holdfast.store.port import Store
from holdfast.store.types import Total

START = NOW - NOW % HOUR
AT_ONCE = a_policy(0, 0, 0)
SUBMITTED, COMPLETED = Counted.SUBMITTED, Counted.COMPLETED


async def begun(store: Store, waited: int, at: Instant = START) -> Claim:
    """A job whose attempt has begun so long after it was due."""
    await submit(store, scheduled_for=at, now=at)
    return await claim_one(store, now=at + waited)


async def counters(store: Store) -> list[types.Counter]:
    return await store.counters(START - DAY, START + 2 * DAY)


async def counted_as(store: Store, outcome: Counted) -> types.Counter:
    [row] = [row for row in await counters(store) if row.outcome is outcome]
    return row


async def tally(store: Store) -> dict[tuple[str, Counted], int]:
    return {(total.job_type, total.outcome): total.count for total in await store.totals()}


# Around each of some bounds: it belongs to the bucket below it.
SPANS = [0, 1, 10_000, 10_001, round(BOUNDS[7] * SECOND), round(BOUNDS[-1] * SECOND), round(BOUNDS[-1] * SECOND) + 1]


class TestBuckets:
    @pytest.mark.parametrize("span", SPANS)
    async def test_a_completed_attempt_is_in_the_bucket_of_how_long_it_ran_and_waited(
        self, store: Store, span: int
    ) -> None:
        for waited, ran in ((span, 0), (3, span)):
            claim = await begun(store, waited)
            ended = START + waited + ran
            await settle(store, claim.completes(now=ended), now=ended)

        found = sorted(pair for row in await counters(store) for pair in row.buckets)
        expected = [bucket_of(COMPLETED, Status.PROCESSING, *each) for each in ((0, span), (span, 3))]
        assert found == sorted({bucket: expected.count(bucket) for bucket in expected}.items())
        assert [spans_of(bucket) for bucket in expected] == [
            (0, sum(bound * SECOND < span for bound in BOUNDS)),
            (sum(bound * SECOND < span for bound in BOUNDS), 0),
        ]

    @pytest.mark.parametrize(("max_attempts", "outcome"), [(1, Counted.FAILED), (2, Counted.RETRIED)])
    async def test_so_is_one_that_failed(self, store: Store, max_attempts: int, outcome: Counted) -> None:
        await submit(store, scheduled_for=START, now=START, max_attempts=max_attempts)
        claim = await claim_one(store, now=START + SECOND)
        await settle(store, claim.fails(now=START + 4 * SECOND), now=START + 4 * SECOND)

        row = await counted_as(store, outcome)
        assert row.buckets == ((bucket_of(outcome, Status.PROCESSING, 3 * SECOND, SECOND), 1),)

    async def test_those_of_one_bucket_are_counted_together_and_with_their_times(self, store: Store) -> None:
        claims = [await begun(store, 20 * SECOND) for _ in range(3)]
        ends = [START + 20 * SECOND + ran for ran in (0, SECOND, SECOND)]
        for claim, ended in zip(claims, ends, strict=True):
            await settle(store, claim.completes(now=ended), now=ended)

        row = await counted_as(store, COMPLETED)
        quick, slow = (bucket_of(COMPLETED, Status.PROCESSING, ran, 20 * SECOND) for ran in (0, SECOND))
        assert row.buckets == ((quick, 1), (slow, 2))
        assert (row.count, row.ran_micros, row.waited_micros) == (3, 2 * SECOND, 60 * SECOND)

    async def test_many_settled_at_once_are_each_in_theirs(self, store: Store) -> None:
        claims = [await begun(store, 0) for _ in range(4)]
        ended = START + MINUTE

        await settle(store, *(claim.completes(now=ended) for claim in claims), now=ended)

        row = await counted_as(store, COMPLETED)
        assert row.buckets == ((bucket_of(COMPLETED, Status.PROCESSING, MINUTE, 0), 4),)

    async def test_what_is_no_end_of_an_attempt_is_in_none(self, store: Store) -> None:
        for end in ("snoozes", "gives_back"):
            claim = await running(store)
            await settle(store, getattr(claim, end)())
        await cancelled(store)
        await completed(store, job_type="embed", content_hash="h")
        await submit(store, job_type="embed", content_hash="h", reuse_since=0)

        rows = [row for row in await counters(store) if row.outcome is not COMPLETED]
        assert {row.outcome for row in rows} >= {SUBMITTED, Counted.SNOOZED, Counted.GIVEN_BACK, Counted.REUSED}
        assert {row.buckets for row in rows} == {()}
        done = await counted_as(store, COMPLETED)
        assert (done.count, sum(number for _, number in done.buckets)) == (2, 1)  # one was reused, and did not run
        assert NO_BUCKET not in dict(done.buckets)


class TestTotals:
    async def test_a_new_store_has_none(self, store: Store) -> None:
        assert await store.totals() == []

    async def test_they_add_up_over_minutes_priorities_and_stores(self, store: Store, second_store: Store) -> None:
        for n, at in enumerate((NOW - 3 * HOUR, NOW - MINUTE, NOW)):
            for each in (store, second_store):
                await submit_many(each, 2, now=at, priority=10 * n)
        await submit(store, queue="other")

        assert await store.totals() == [
            Total("work", "default", SUBMITTED, 12, 0, 0),
            Total("work", "other", SUBMITTED, 1, 0, 0),
        ]

    async def test_they_have_times_and_buckets(self, store: Store) -> None:
        for at, ran in ((START - 5 * HOUR, 2 * SECOND), (START, 2 * SECOND), (START, MINUTE)):
            claim = await begun(store, SECOND, at)
            ended = at + SECOND + ran
            await settle(store, claim.completes(now=ended), now=ended)
        short, long = (bucket_of(COMPLETED, Status.PROCESSING, ran, SECOND) for ran in (2 * SECOND, MINUTE))
        expected = Total("work", "default", COMPLETED, 3, 64 * SECOND, 3 * SECOND, ((short, 2), (long, 1)))

        for later in (0, 3 * HOUR, (COUNTERS_DAYS + 2) * DAY):
            await retire(store, a_policy(None, None, None), now=NOW + later)
            assert expected in await store.totals()

    async def test_retention_takes_the_minutes_and_leaves_the_totals(self, store: Store) -> None:
        await submit_many(store, 3, job_type="early")
        late = NOW + (COUNTERS_DAYS + 1) * DAY
        before = await store.totals()

        for _ in range(3):
            await retire(store, AT_ONCE, now=late)
            assert await store.totals() == before
        assert await store.counters(NOW - DAY, late) == []

        await submit(store, job_type="early", now=late)
        assert await tally(store) == {("early", SUBMITTED): 4}

    async def test_they_never_go_down_however_long_nobody_looked(self, store: Store) -> None:
        for days in range(0, COUNTERS_DAYS + 12, 3):
            await submit(store, now=NOW - days * DAY)
        expected = await tally(store)

        for _ in range(COUNTERS_DAYS + 15):
            await store.retire(AT_ONCE, NOW, 10, None)
            assert await tally(store) == expected
        oldest = NOW - COUNTERS_DAYS * DAY
        assert await store.counters(0, oldest - oldest % HOUR) == []

    async def test_hours_are_added_once_by_however_many(self, store: Store, second_store: Store) -> None:
        for hours in range(6):
            await submit_many(store, 2, job_type=f"type-{hours % 3}", now=NOW - hours * HOUR)
        expected = await tally(store)

        await asyncio.gather(
            *((store, second_store)[n % 2].retire(AT_ONCE, NOW + n * HOUR, 10, None) for n in range(4)),
            *(self._look(second_store, expected) for _ in range(4)),
        )

        assert await tally(store) == expected

    async def _look(self, store: Store, expected: dict[tuple[str, Counted], int]) -> None:
        for _ in range(3):
            assert await tally(store) == expected

    async def test_what_is_counted_after_an_hour_was_added_counts_too(self, store: Store) -> None:
        await submit(store)
        for hours in (2, 3, 4):
            await retire(store, AT_ONCE, now=NOW + hours * HOUR)
            await submit(store, now=NOW + hours * HOUR)

        assert await tally(store) == {("work", SUBMITTED): 4}

    async def test_they_move_with_the_queue(self, store: Store, elsewhere: Store) -> None:
        for at, job_type in ((NOW - 50 * DAY, "gone"), (NOW - 2 * DAY, "old"), (NOW, "new")):
            claim = await running(store, now=at, scheduled_for=at, job_type=job_type)
            await settle(store, claim.completes(now=at + SECOND), now=at + SECOND)
        for _ in range(5):
            await store.retire(a_policy(None, None, None), NOW, 10, None)

        await carry(store, elsewhere)

        assert await elsewhere.totals() == await store.totals()
        assert await tally(elsewhere) == {
            (name, outcome): 1 for name in ("gone", "old", "new") for outcome in (SUBMITTED, COMPLETED)
        }
        await elsewhere.retire(AT_ONCE, NOW + 3 * HOUR, 10, None)
        assert await elsewhere.totals() == await store.totals()
