"""apply, as a worker uses it: what a settlement writes, that a repeat has one effect, what a job keeps."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from holdfast.lifecycle import (
    Cancelled,
    Completed,
    Discarded,
    Event,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
    Status,
    Transition,
)
from holdfast.limits import ERRORS_KEPT_MAX, HISTORY_HEAD, HISTORY_SLACK, HISTORY_TAIL
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    SECOND,
    Claim,
    an_error,
    claim_again,
    record,
    running,
    settle,
)
from holdfast.store.port import Store
from holdfast.store.types import Verdict

OUTCOMES: list[Outcome] = [
    Completed("1"),
    Completed(result_artifact='{"uri":"x"}'),
    Raised(an_error()),
    RetryAsked(an_error(), 5 * SECOND),
    Snoozed(HOUR),
    GivenBack("shutting down"),
    Discarded(an_error()),
    Cancelled("no need"),
]


def _name(outcome: Outcome) -> str:
    return type(outcome).__name__


class TestSettle:
    async def test_the_reason_of_a_completion_is_in_its_history(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, msgspec.structs.replace(claim.completes(), reason="found in the cache"))

        assert (await record(store, claim.job_id)).history[-1].reason == "found in the cache"

    async def test_a_completion_stores_its_result_and_its_event(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, claim.completes('{"text":"snö ☃"}', now=NOW + 7), now=NOW + 7)

        job = await record(store, claim.job_id)
        assert (job.status, job.result, job.version) == (Status.COMPLETED, '{"text":"snö ☃"}', 3)
        assert (job.progress, job.stage, job.completed_at, job.processing_micros) == (
            1.0,
            "complete",
            NOW + 7,
            7,
        )
        assert (job.lease_expires_at, job.worker_id) == (None, "worker-1")
        last = job.history[-1]
        assert (last.version, last.at, last.event, last.attempt, last.by) == (
            3,
            NOW + 7,
            Event.COMPLETE,
            1,
            "worker-1",
        )

    @pytest.mark.parametrize("result", ["null", '""', "0", "[]", '"1"', None])
    async def test_a_small_result_comes_back_byte_by_byte(self, store: Store, result: str | None) -> None:
        claim = await running(store)

        await settle(store, claim.completes(result))

        assert (await record(store, claim.job_id)).result == result

    async def test_a_completion_stores_logs_metrics_and_where_a_large_result_lies(self, store: Store) -> None:
        claim = await running(store)
        extras: dict[str, Any] = {"logs": '["a"]', "log_location": "/log", "metrics": '{"m":1}'}

        await settle(store, claim.ends(Completed(result_artifact='{"uri":"x"}'), **extras))

        job = await record(store, claim.job_id)
        assert (job.result, job.result_artifact) == (None, '{"uri":"x"}')
        assert (job.logs, job.log_location, job.metrics) == ('["a"]', "/log", '{"m":1}')

    async def test_a_completion_with_only_a_log_location_stores_it(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, claim.completes(log_location="/log"))

        assert (await record(store, claim.job_id)).log_location == "/log"

    async def test_a_retry_counts_the_failure_and_waits(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, claim.fails("KeyError", "x", now=NOW + 1), now=NOW + 1)

        job = await record(store, claim.job_id)
        assert (job.status, job.failures, job.scheduled_for) == (Status.RETRYING, 1, NOW + 1 + 60 * SECOND)
        assert (job.last_error, job.history[-1].reason) == ("KeyError: x", "KeyError: x")

    async def test_the_last_failure_is_a_dead_letter(self, store: Store) -> None:
        claim = await running(store, max_attempts=1)

        await settle(store, claim.fails())

        job = await record(store, claim.job_id)
        assert (job.status, job.failures, job.stage) == (Status.FAILED, 1, "error")
        assert job.history[-1].event is Event.EXHAUST

    async def test_a_snooze_sets_the_next_run_and_counts_no_failure(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, claim.snoozes(HOUR))

        job = await record(store, claim.job_id)
        assert (job.status, job.scheduled_for) == (Status.SCHEDULED, NOW + HOUR)
        assert (job.snoozes, job.failures) == (1, 0)

    async def test_a_job_that_is_given_back_is_claimable_at_once(self, store: Store) -> None:
        claim = await running(store)

        await settle(store, claim.gives_back())

        again = await claim_again(store, claim)
        assert (again.job.attempt, again.job.failures, again.job.give_backs) == (2, 0, 1)

    @pytest.mark.parametrize("outcome", OUTCOMES, ids=_name)
    async def test_a_repeated_settlement_is_answered_applied_and_has_one_effect(
        self, store: Store, second_store: Store, outcome: Outcome
    ) -> None:
        claim = await running(store)
        settlement = claim.ends(outcome)
        await settle(store, settlement)
        before = await record(store, claim.job_id)

        assert await store.apply([settlement], NOW + 1) == [Verdict.APPLIED]
        assert await second_store.apply([settlement, settlement], NOW + 2) == [Verdict.APPLIED] * 2

        assert await record(store, claim.job_id) == before

    @pytest.mark.parametrize("outcome", OUTCOMES, ids=_name)
    async def test_a_settlement_named_twice_in_a_batch_has_one_effect(self, store: Store, outcome: Outcome) -> None:
        claim = await running(store)
        settlement = claim.ends(outcome)

        assert await store.apply([settlement, settlement], NOW) == [Verdict.APPLIED] * 2

        assert (await record(store, claim.job_id)).version == 3

    async def test_a_retry_that_was_promoted_since_is_still_our_own(self, store: Store) -> None:
        claim = await running(store)
        settlement = claim.ends(RetryAsked(an_error(), 0))
        await settle(store, settlement)
        await store.promote(NOW, 10)

        assert await store.apply([settlement], NOW) == [Verdict.APPLIED]
        assert (await record(store, claim.job_id)).version == 4

    async def test_a_second_settlement_that_says_something_else_is_stale(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.completes())
        before = await record(store, claim.job_id)

        assert await store.apply([claim.fails()], NOW) == [Verdict.STALE]
        assert await store.apply([claim.gives_back()], NOW) == [Verdict.STALE]

        assert await record(store, claim.job_id) == before

    async def test_no_reader_sees_a_completion_without_its_result_and_event(
        self, store: Store, second_store: Store
    ) -> None:
        claims = [await running(store) for _ in range(20)]
        ids = [claim.job_id for claim in claims]

        reading = [asyncio.create_task(second_store.get(ids)) for _ in range(20)]
        await asyncio.gather(*(store.apply([claim.completes()], NOW) for claim in claims))

        seen = [job for read in await asyncio.gather(*reading) for job in read if job is not None]
        assert len(seen) == 400
        for job in seen:
            assert job.version == job.history[-1].version
            assert job.status is job.history[-1].target
            assert (job.result is not None) == (job.status is Status.COMPLETED)

    async def test_a_large_batch_is_applied_in_one_go(self, store: Store) -> None:
        claims = [await running(store, job_type="bulk") for _ in range(50)]

        await settle(store, *(claim.completes(f"{i}") for i, claim in enumerate(claims)))

        for i, claim in enumerate(claims):
            assert (await record(store, claim.job_id)).result == str(i)

    async def test_nothing_is_an_answer_to_nothing(self, store: Store) -> None:
        assert await store.apply([], NOW) == []


class TestErrors:
    async def test_a_job_keeps_its_last_five_errors(self, store: Store) -> None:
        claim = await running(store, max_attempts=10)
        for i in range(7):
            now = NOW + i * HOUR
            await settle(store, claim.fails("Oops", str(i), now=now), now=now)
            await store.promote(now + HOUR, 10)
            claim = await claim_again(store, claim, now=now + HOUR)

        job = await record(store, claim.job_id)
        assert [error.message for error in job.errors] == ["2", "3", "4", "5", "6"]
        assert [error.attempt for error in job.errors] == [3, 4, 5, 6, 7]
        assert len(job.errors) == ERRORS_KEPT_MAX
        assert (job.last_error, job.failures) == ("Oops: 6", 7)

    async def test_an_error_is_kept_as_it_was_told(self, store: Store) -> None:
        claim = await running(store)
        error = an_error("Ünïcode", 'quotes " and \\ and\nlines ☃', claim.job.attempt)

        await settle(store, claim.ends(Raised(error)))

        assert (await record(store, claim.job_id)).errors == (error,)


class TestHistory:
    async def test_versions_count_on_without_a_gap(self, store: Store) -> None:
        claim = await running(store)
        for settlement in (claim.gives_back, claim.fails, claim.snoozes):
            current = claim if settlement == claim.gives_back else await claim_again(store, claim, now=NOW + HOUR)
            await settle(store, getattr(current, settlement.__name__)(), now=NOW + HOUR)
            await store.promote(NOW + 3 * HOUR, 10)

        job = await record(store, claim.job_id)
        assert [event.version for event in job.history] == list(range(1, job.version + 1))
        for earlier, later in pairwise(job.history):
            assert later.source is earlier.target

    @pytest.mark.parametrize("offset", [0, 1, 2])
    async def test_a_long_history_keeps_its_beginning_and_its_end_and_tells_the_gap(
        self, store: Store, offset: int
    ) -> None:
        claim = await running(store)
        for i in range(110):  # three events each, shifted, so that any of them may be the one that is too many
            await settle(store, _leaves(claim, Event.GIVE_BACK if i < offset else Event.SNOOZE))
            await store.promote(NOW, 10)
            claim = await claim_again(store, claim)

        job = await record(store, claim.job_id)
        versions = [event.version for event in job.history]
        assert job.version > HISTORY_HEAD + HISTORY_TAIL + HISTORY_SLACK
        assert versions[:HISTORY_HEAD] == list(range(1, HISTORY_HEAD + 1))
        assert versions[-HISTORY_TAIL:] == list(range(job.version - HISTORY_TAIL + 1, job.version + 1))
        assert versions == sorted(set(versions))
        assert len(versions) <= HISTORY_HEAD + HISTORY_TAIL + HISTORY_SLACK


def _leaves(claim: Claim, event: Event) -> Transition:
    """Without the caps that lifecycle.decide puts on it."""
    return Transition(
        job_id=claim.job_id,
        event=event,
        source=Status.PROCESSING,
        target=Status.PENDING if event is Event.GIVE_BACK else Status.SCHEDULED,
        attempt=claim.job.attempt,
        token=claim.token,
        kind=(claim.job.job_type, claim.job.queue, claim.job.priority),
        scheduled_for=NOW,
    )
