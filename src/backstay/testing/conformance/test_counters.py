"""Conformance: counters, depths and totals; every outcome is counted once, in the commit that causes it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from backstay.clock import Instant
from backstay.core import records
from backstay.core.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    GivenBack,
    Outcome,
    Raised,
    Snoozed,
    cancel,
    reprioritise,
    reschedule,
    rescue,
)
from backstay.core.port import Store
from backstay.core.records import Depth, Place, QueueChange, Total, Verdict
from backstay.core.states import ACTIVE, BOUNDS, NO_BUCKET, Counted, Status, bucket_of, spans_of
from backstay.errors import BackstayError
from backstay.limits import COUNTERS_DAYS
from backstay.testing.conformance.factories import (
    DAY,
    HOUR,
    MINUTE,
    NOW,
    SECOND,
    Claim,
    a_firing,
    a_policy,
    a_schedule,
    an_error,
    cancelled,
    claim_again,
    claim_ids,
    claim_one,
    completed,
    failed,
    in_state,
    new_job,
    record,
    retire,
    retry_by_hand,
    running,
    settle,
    submit,
    submit_many,
)
from backstay.testing.conformance.test_transfer import carry

THE_MINUTE = NOW - NOW % MINUTE
SUBMITTED, COMPLETED, CANCELLED = Counted.SUBMITTED, Counted.COMPLETED, Counted.CANCELLED
REUSED = Counted.REUSED


async def _rows(store: Store) -> list[records.Counter]:
    return await store.counters(THE_MINUTE - DAY, THE_MINUTE + DAY)


async def _tally(store: Store) -> dict[Counted, int]:
    sums: Counter[Counted] = Counter()
    for row in await _rows(store):
        sums[row.outcome] += row.count
    return dict(sums)


OUTCOMES: list[tuple[Outcome, Counted]] = [
    (Completed("1"), Counted.COMPLETED),
    (Completed(result_artifact='{"uri":"x"}'), Counted.COMPLETED),
    (Raised(an_error()), Counted.RETRIED),
    (Snoozed(HOUR), Counted.SNOOZED),
    (GivenBack("shutting down"), Counted.GIVEN_BACK),
    (Discarded(an_error()), Counted.FAILED),
    (Cancelled("no need"), Counted.CANCELLED),
]


class TestCounters:
    async def test_an_empty_store_has_counted_nothing(self, store: Store) -> None:
        assert await _rows(store) == []

    @pytest.mark.parametrize(("outcome", "counted"), OUTCOMES, ids=lambda each: type(each).__name__)
    async def test_an_outcome_is_counted_once_however_often_it_is_told(
        self, store: Store, outcome: Outcome, counted: Counted
    ) -> None:
        claim = await running(store)

        for _ in range(2):
            assert await store.apply([claim.ends(outcome)] * 2, NOW) == [Verdict.APPLIED] * 2

        assert await _tally(store) == {SUBMITTED: 1, counted: 1}

    async def test_a_repeat_beside_new_ones_counts_only_those_and_as_what_they_are(self, store: Store) -> None:
        first, second, third = [await running(store, job_type=name) for name in "abc"]
        await settle(store, first.completes())

        await settle(store, first.completes(), second.completes(), first.completes(), third.completes())

        done = {row.job_type: row.count for row in await _rows(store) if row.outcome is COMPLETED}
        assert done == {"a": 1, "b": 1, "c": 1}

    async def test_a_job_is_counted_with_the_priority_that_it_was_claimed_with(self, store: Store) -> None:
        claim = await running(store, priority=10)
        seen = await record(store, claim.job_id)
        await settle(store, reprioritise(seen, priority=90, by="me", reason=None))

        await settle(store, claim.completes())

        assert [row.priority for row in await _rows(store) if row.outcome is COMPLETED] == [10]

    async def test_a_refused_settlement_is_not_counted(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.gives_back())
        await claim_again(store, claim)

        assert await store.apply([claim.completes(), claim.fails()], NOW) == [Verdict.STALE] * 2

        assert await _tally(store) == {SUBMITTED: 1, Counted.GIVEN_BACK: 1}

    @pytest.mark.parametrize(("max_attempts", "counted"), [(1, Counted.FAILED), (2, Counted.RETRIED)])
    async def test_a_failure_is_counted_by_what_becomes_of_the_job(
        self, store: Store, max_attempts: int, counted: Counted
    ) -> None:
        claim = await running(store, max_attempts=max_attempts)
        await settle(store, claim.fails())
        await running(store, max_attempts=max_attempts, lease_micros=0)
        [expired] = await store.expired(NOW, 10)

        lost = rescue(expired, lease=expired.lease_expires_at, now=NOW, reason="died", by=None)
        await settle(store, lost)

        assert await _tally(store) == {SUBMITTED: 2, counted: 2, Counted.RESCUED: 1}

    async def test_editors_are_counted_where_they_end_or_begin_a_life(self, store: Store) -> None:
        job_id = await submit(store)
        for edit in (
            reprioritise(await record(store, job_id), priority=9, by=None, reason=None),
            reschedule(await record(store, job_id), run_at=NOW + 1, now=NOW, by=None, reason=None),
        ):
            await store.apply([edit], NOW)
        await settle(store, cancel(await record(store, job_id), by=None, reason=None))
        await retry_by_hand(store, job_id)

        assert await _tally(store) == {SUBMITTED: 1, CANCELLED: 1, Counted.RETRIED_BY_HAND: 1}

    async def test_moving_along_is_not_counted(self, store: Store) -> None:
        parent = await running(store)
        await submit(store, depends_on=(parent.job_id,))
        await submit(store, scheduled_for=NOW + 1)
        await store.promote(NOW + 1, 10)
        await settle(store, parent.completes())
        await claim_ids(store, now=NOW + 1)

        assert await _tally(store) == {SUBMITTED: 3, COMPLETED: 1}

    async def test_dependents_that_end_with_their_parent_are_counted(self, store: Store) -> None:
        parent = await running(store, max_attempts=1)
        await submit_many(store, 2, depends_on=(parent.job_id,))
        await submit(store, depends_on=(parent.job_id,), on_dependency_failure="fail")

        await settle(store, parent.fails())

        assert await _tally(store) == {SUBMITTED: 4, Counted.FAILED: 2, CANCELLED: 2}

    async def test_one_that_ends_as_it_comes_is_counted_as_both(self, store: Store) -> None:
        parent = await failed(store)
        await submit(store, depends_on=(parent,))
        await completed(store, job_type="embed", content_hash="h")
        await submit(store, job_type="embed", content_hash="h", reuse_since=0)

        assert await _tally(store) == {SUBMITTED: 4, Counted.FAILED: 1, CANCELLED: 1, COMPLETED: 2, REUSED: 1}

    async def test_all_who_joined_are_counted_when_their_leader_completes(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        await submit_many(store, 3, job_type="embed", content_hash="h", reuse_since=0)

        await settle(store, leader.completes())

        assert await _tally(store) == {SUBMITTED: 4, COMPLETED: 4, REUSED: 3}

    async def test_only_what_is_stored_counts_as_submitted(self, store: Store) -> None:
        await submit_many(store, 5)
        await submit_many(store, 2, dedup_key="k")
        own = new_job(own_id=True)
        await store.insert([own, own], NOW)
        await store.change_queue("full", QueueChange(max_pending=1), NOW)
        for refused in ([new_job(), new_job(depends_on=("no such job",))], [new_job(queue="full") for _ in range(2)]):
            with pytest.raises(BackstayError):
                await store.insert(refused, NOW)

        assert await _tally(store) == {SUBMITTED: 7}

    async def test_the_job_of_a_tick_is_counted_once(self, store: Store) -> None:
        schedule = a_schedule(next_at=NOW)
        await store.save_schedule(schedule, None)
        for _ in range(2):
            await store.fire([a_firing(schedule)], NOW)

        assert await _tally(store) == {SUBMITTED: 1}

    async def test_each_type_queue_and_priority_has_its_own(self, store: Store) -> None:
        kinds = [("a", "x", 10), ("a", "x", 90), ("a", "y", 10), ("b", "x", 10)]
        for job_type, queue, priority in kinds:
            await submit_many(store, 2, job_type=job_type, queue=queue, priority=priority)

        rows = await _rows(store)

        assert sorted((row.job_type, row.queue, row.priority) for row in rows) == kinds
        assert {(row.minute, row.outcome, row.count) for row in rows} == {(THE_MINUTE, SUBMITTED, 2)}

    async def test_times_of_running_and_waiting_are_summed(self, store: Store) -> None:
        start = THE_MINUTE + 10 * SECOND
        for waited, ran in ((2, 3), (5, 7)):
            begun = start + waited * SECOND
            await submit(store, scheduled_for=start, now=start)
            claim = await claim_one(store, now=begun)
            await settle(store, claim.completes(now=begun + ran * SECOND), now=begun + ran * SECOND)

        [row] = [row for row in await _rows(store) if row.outcome is COMPLETED]
        assert (row.count, row.ran_micros, row.waited_micros) == (2, 10 * SECOND, 7 * SECOND)

    async def test_a_minute_ends_where_the_next_one_begins(self, store: Store) -> None:
        for at in (THE_MINUTE, THE_MINUTE + MINUTE - 1, THE_MINUTE + MINUTE):
            await submit(store, now=at)

        rows = await store.counters(THE_MINUTE, THE_MINUTE + 2 * MINUTE)

        assert [(row.minute, row.count) for row in rows] == [(THE_MINUTE, 2), (THE_MINUTE + MINUTE, 1)]

    async def test_a_span_takes_the_minutes_that_begin_in_it_oldest_first(self, store: Store) -> None:
        for i in (3, 0, 2, 1):
            await submit(store, now=THE_MINUTE + i * MINUTE)

        rows = await store.counters(THE_MINUTE + MINUTE, THE_MINUTE + 3 * MINUTE)

        assert [row.minute for row in rows] == [THE_MINUTE + MINUTE, THE_MINUTE + 2 * MINUTE]

    async def test_counters_can_be_summed_over_longer_spans_and_over_types_and_queues(self, store: Store) -> None:
        for minute, job_type, ran in ((0, "a", 2), (1, "a", 90), (1, "b", 90), (3, "b", 2), (4, "a", 2)):
            at = THE_MINUTE + minute * MINUTE
            claim = await running(store, job_type=job_type, queue=f"of-{job_type}", scheduled_for=at, now=at)
            await settle(store, claim.completes(now=at + ran), now=at + ran)
        span = THE_MINUTE + MINUTE, THE_MINUTE + 5 * MINUTE

        async def found(**how: Any) -> list[tuple[Any, ...]]:
            rows = await store.counters(*span, **how)
            done = [row for row in rows if row.outcome is COMPLETED]
            assert all(sum(count for _, count in row.buckets) == row.count for row in done)
            return [
                ((row.minute - span[0]) // MINUTE, row.job_type, row.queue, row.count, row.ran_micros) for row in done
            ]

        every = [(0, "a", "of-a", 1, 90), (0, "b", "of-b", 1, 90), (2, "b", "of-b", 1, 2), (3, "a", "of-a", 1, 2)]
        assert await found() == every
        assert await found(width=2 * MINUTE) == [*every[:2], (2, "a", "of-a", 1, 2), (2, "b", "of-b", 1, 2)]
        assert await found(width=4 * MINUTE) == [(0, "a", "of-a", 2, 92), (0, "b", "of-b", 2, 92)]
        assert await found(kinds=False) == [(0, "", "", 2, 180), (2, "", "", 1, 2), (3, "", "", 1, 2)]
        assert await found(kinds=False, width=4 * MINUTE) == [(0, "", "", 4, 184)]

    async def test_an_outcome_counts_in_the_minute_in_which_it_came(self, store: Store) -> None:
        claim = await running(store, scheduled_for=THE_MINUTE, now=THE_MINUTE)
        await settle(store, claim.completes(now=THE_MINUTE + HOUR), now=THE_MINUTE + HOUR)

        assert [(row.minute, row.outcome) for row in await _rows(store)] == [
            (THE_MINUTE, SUBMITTED),
            (THE_MINUTE + HOUR, COMPLETED),
        ]

    async def test_no_reader_sees_an_outcome_without_its_count_nor_a_count_without_its_outcome(
        self, store: Store, second_store: Store
    ) -> None:
        claims = [await running(store) for _ in range(20)]

        async def look() -> None:
            for _ in range(10):
                before = (await second_store.counts())["completed"]
                counted = (await _tally(second_store)).get(COMPLETED, 0)
                after = (await second_store.counts())["completed"]
                assert before <= counted <= after

        await asyncio.gather(look(), look(), *(store.apply([claim.completes()], NOW) for claim in claims))
        assert (await _tally(store))[COMPLETED] == 20

    async def test_what_two_stores_count_adds_up(self, store: Store, second_store: Store) -> None:
        await asyncio.gather(*(submit((store, second_store)[i % 2]) for i in range(40)))

        [row] = await _rows(store)
        assert (row.count, row.outcome) == (40, SUBMITTED)


class TestReuseCounters:
    """The time that reuse has saved: the run time of the original job, each time its result was reused."""

    async def _saved(self, store: Store) -> tuple[int, int]:
        rows = [row for row in await _rows(store) if row.outcome is REUSED]
        assert {row.waited_micros for row in rows} <= {0}
        return sum(row.count for row in rows), sum(row.ran_micros for row in rows)

    async def test_a_result_that_was_there_saves_what_it_took(self, store: Store) -> None:
        donor = await running(store, job_type="embed", content_hash="h")
        await settle(store, donor.completes(now=NOW + 30 * SECOND), now=NOW + 30 * SECOND)

        await submit_many(store, 2, now=NOW + MINUTE, job_type="embed", content_hash="h", reuse_since=0)

        assert await self._saved(store) == (2, 60 * SECOND)

    async def test_a_result_that_was_waited_for_saves_what_it_took(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        await submit_many(store, 3, job_type="embed", content_hash="h", reuse_since=0)

        await settle(store, leader.completes(now=NOW + 30 * SECOND), now=NOW + 30 * SECOND)

        assert await self._saved(store) == (3, 90 * SECOND)

    async def test_one_that_joined_and_then_ran_itself_has_saved_nothing(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        await submit(store, job_type="embed", content_hash="h", reuse_since=0)

        await settle(store, leader.ends_as(Status.FAILED))

        assert await self._saved(store) == (0, 0)

    async def test_it_is_counted_once_however_often_it_is_told(self, store: Store) -> None:
        leader = await running(store, job_type="embed", content_hash="h")
        await submit(store, job_type="embed", content_hash="h", reuse_since=0)

        for _ in range(2):
            await settle(store, leader.completes())

        assert (await self._saved(store))[0] == 1


class TestDepths:
    async def test_an_empty_store_has_none(self, store: Store) -> None:
        assert await store.depths() == []

    async def test_every_active_job_is_in_one_by_queue_type_and_state(self, store: Store) -> None:
        expected: Counter[tuple[str, str, Status]] = Counter()
        for state in Status:
            for queue in ("x", "y"):
                job = await in_state(store, state, queue=queue, job_type=f"{state}-type")
                expected[queue, job.job_type, state] += 1
        expected["default", "parent", Status.PENDING] = 2  # dependencies of the waiting ones

        found = {(each.queue, each.job_type, each.status): each.count for each in await store.depths()}

        assert found == {key: n for key, n in expected.items() if key[2] in ACTIVE}

    @pytest.mark.parametrize("changes", [{}, {"fairness_key": "t"}, {"concurrency_key": "gpu"}], ids=str)
    async def test_it_says_since_when_the_oldest_is_due(self, store: Store, changes: dict[str, Any]) -> None:
        for age in (3, 9, 6):
            await submit(store, scheduled_for=NOW - age, **changes)
        await submit(store, scheduled_for=NOW - 5)

        places = (Place(50, 4, NOW - 9, NOW - 3),)
        assert await store.depths() == [Depth("default", "work", Status.PENDING, 4, NOW - 9, places)]

    @pytest.mark.parametrize("changes", [{}, {"fairness_key": "t"}, {"concurrency_key": "gpu"}], ids=str)
    async def test_it_tells_priorities_apart(self, store: Store, changes: dict[str, Any]) -> None:
        for priority, age in ((25, 3), (75, 9), (25, 6)):
            await submit(store, priority=priority, scheduled_for=NOW - age, **changes)

        [depth] = await store.depths()

        assert depth.by_priority == (Place(75, 1, NOW - 9, NOW - 9), Place(25, 2, NOW - 6, NOW - 3))
        assert (depth.count, depth.oldest_at) == (3, NOW - 9)

    async def test_a_running_one_counts_from_its_start(self, store: Store) -> None:
        await submit(store, scheduled_for=NOW - HOUR)
        await claim_ids(store, now=NOW + 5)

        places = (Place(50, 1, NOW + 5, NOW + 5),)
        assert await store.depths() == [Depth("default", "work", Status.PROCESSING, 1, NOW + 5, places)]

    @pytest.mark.parametrize("state", sorted(ACTIVE))
    async def test_a_job_counts_with_the_priority_that_it_has_now(self, store: Store, state: Status) -> None:
        job = await in_state(store, state, job_type="mine")

        await settle(store, reprioritise(await record(store, job.job_id), priority=90, by=None, reason=None))

        [depth] = [each for each in await store.depths() if each.job_type == "mine"]
        assert [(place.priority, place.count) for place in depth.by_priority] == [(90, 1)]

    async def test_one_that_got_another_while_it_ran_leaves_no_other_count_wrong(self, store: Store) -> None:
        claim = await running(store)
        await submit_many(store, 2)
        await submit(store, priority=90)
        await settle(store, reprioritise(await record(store, claim.job_id), priority=90, by=None, reason=None))

        await settle(store, claim.completes())

        [depth] = await store.depths()
        assert [(place.priority, place.count) for place in depth.by_priority] == [(90, 1), (50, 2)]
        assert await self._not_empty(store) == {"pending": 3, "completed": 1}

    async def test_nothing_is_left_of_jobs_that_are_gone(self, store: Store) -> None:
        for _ in range(2):
            for state in (Status.COMPLETED, Status.FAILED, Status.CANCELLED):
                await in_state(store, state)
            await retire(store, a_policy(0, 0, 0), now=NOW + DAY)

        await submit(store, now=NOW + 2 * DAY)

        assert await self._not_empty(store) == {"pending": 1}

    @staticmethod
    async def _not_empty(store: Store) -> dict[str, int]:
        return {status: jobs for status, jobs in (await store.counts()).items() if jobs}


START = NOW - NOW % HOUR
AT_ONCE = a_policy(0, 0, 0)


async def begun(store: Store, waited: int, at: Instant = START) -> Claim:
    """Return a job whose attempt began this long after it was due."""
    await submit(store, scheduled_for=at, now=at)
    return await claim_one(store, now=at + waited)


async def counters(store: Store) -> list[records.Counter]:
    return await store.counters(START - DAY, START + 2 * DAY)


async def counted_as(store: Store, outcome: Counted) -> records.Counter:
    [row] = [row for row in await counters(store) if row.outcome is outcome]
    return row


async def tally(store: Store) -> dict[tuple[str, Counted], int]:
    return {(total.job_type, total.outcome): total.count for total in await store.totals()}


# Around some bounds, each of which belongs to the bucket below it.
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
        assert (done.count, sum(number for _, number in done.buckets)) == (2, 1)  # one reused a result and did not run
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
