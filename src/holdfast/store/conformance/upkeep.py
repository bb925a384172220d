"""promote, expired, the rows of workers and types, and opening: idempotent, leaderless and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.lifecycle import Event, Status
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    SECOND,
    a_worker,
    claim_ids,
    claim_one,
    record,
    running,
    settle,
    status,
    submit,
    submit_many,
)
from holdfast.store.port import Store
from holdfast.store.types import JobType, Keep, Promoted, Rate


class TestPromote:
    async def test_a_job_becomes_pending_when_it_is_due_and_not_before(self, store: Store) -> None:
        job_id = await submit(store, scheduled_for=NOW + HOUR)

        assert await store.promote(NOW + HOUR - 1, 10) == Promoted(0, NOW + HOUR)
        assert await status(store, job_id) is Status.SCHEDULED

        assert await store.promote(NOW + HOUR, 10) == Promoted(1, None)
        job = await record(store, job_id)
        assert (job.status, job.version, job.scheduled_for) == (Status.PENDING, 2, NOW + HOUR)
        last = job.history[-1]
        assert (last.version, last.at, last.event, last.source) == (
            2,
            NOW + HOUR,
            Event.DUE,
            Status.SCHEDULED,
        )

    async def test_a_retrying_job_is_promoted_too(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.fails())

        assert await store.promote(NOW + 60 * SECOND, 10) == Promoted(1, None)

        job = await record(store, claim.job_id)
        assert (job.status, job.attempt, job.failures) == (Status.PENDING, 1, 1)
        assert job.history[-1].source is Status.RETRYING

    async def test_promotion_is_bounded_and_takes_the_longest_due_first(self, store: Store) -> None:
        late = await submit(store, scheduled_for=NOW + 20)
        early = await submit(store, scheduled_for=NOW + 10)
        future = await submit(store, scheduled_for=NOW + 21)

        assert await store.promote(NOW + 20, 1) == Promoted(1, NOW + 20)
        assert (await status(store, early), await status(store, late)) == (Status.PENDING, Status.SCHEDULED)
        assert await store.promote(NOW + 20, 10) == Promoted(1, NOW + 21)
        assert await status(store, future) is Status.SCHEDULED

    async def test_without_work_there_is_no_next_time(self, store: Store) -> None:
        await submit(store)

        assert await store.promote(NOW, 10) == Promoted(0, None)

    async def test_two_promoters_promote_each_job_once(self, store: Store, second_store: Store) -> None:
        ids = await submit_many(store, 40, scheduled_for=NOW + 1)

        done = await asyncio.gather(*((store, second_store)[i % 2].promote(NOW + 1, 10) for i in range(8)))

        assert sum(each.count for each in done) == 40
        assert {(await record(store, job_id)).version for job_id in ids} == {2}

    async def test_a_promoted_job_is_claimed_by_the_time_it_was_due(self, store: Store) -> None:
        later = await submit(store, scheduled_for=NOW + 2)
        earlier = await submit(store, scheduled_for=NOW + 1)
        await store.promote(NOW + 5, 10)

        assert await claim_ids(store, now=NOW + 5) == [earlier, later]


class TestExpired:
    async def test_a_claim_that_ran_out_is_found_with_all_that_a_rescue_needs(self, store: Store) -> None:
        claim = await running(store, lease_micros=0, queue="q", priority=77, scheduled_for=NOW - 5)

        [expired] = await store.expired(NOW, 10)

        assert (expired.job_id, expired.attempt, expired.worker_id) == (claim.job_id, 1, "worker-1")
        assert (expired.failures, expired.max_attempts, expired.snoozes, expired.give_backs) == (0, 3, 0, 0)
        assert expired.lease_expires_at == claim.job.lease_expires_at
        assert (expired.job_type, expired.queue, expired.priority) == (claim.job.job_type, "q", 77)
        assert (expired.scheduled_for, expired.started_at) == (NOW - 5, NOW)

    async def test_the_claim_of_a_dead_worker_says_the_same(self, store: Store) -> None:
        await running(store, lease_micros=0, queue="q", priority=77)
        [expired] = await store.expired(NOW, 10)

        assert await store.expired(NOW - HOUR, 10, ["worker-1"]) == [expired]

    async def test_a_claim_that_still_holds_is_not_found(self, store: Store) -> None:
        await running(store, lease_micros=HOUR)

        assert await store.expired(NOW, 10) == []

    async def test_looking_changes_nothing(self, store: Store) -> None:
        claim = await running(store, lease_micros=0)
        before = await record(store, claim.job_id)

        await store.expired(NOW, 10, ["worker-1"])

        assert await record(store, claim.job_id) == before

    async def test_the_longest_expired_come_first_and_no_more_than_asked(self, store: Store) -> None:
        claims = [await running(store, lease_micros=-age * SECOND) for age in (1, 3, 2)]

        found = await store.expired(NOW, 2)

        assert [each.job_id for each in found] == [claims[1].job_id, claims[2].job_id]

    async def test_the_claims_of_a_dead_worker_are_found_before_their_lease_ends(self, store: Store) -> None:
        ids = await submit_many(store, 2)
        await claim_one(store, worker_id="alive")
        await claim_one(store, worker_id="dead")

        found = await store.expired(NOW, 10, ["dead", "unknown"])

        assert [(each.job_id, each.worker_id) for each in found] == [(ids[1], "dead")]

    async def test_a_claim_that_is_both_is_found_once(self, store: Store) -> None:
        claim = await running(store, lease_micros=0)

        found = await store.expired(NOW, 10, ["worker-1"])

        assert [each.job_id for each in found] == [claim.job_id]

    async def test_jobs_that_a_dead_worker_no_longer_holds_are_not_found(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.gives_back())

        assert await store.expired(NOW, 10, ["worker-1"]) == []

    async def test_a_settled_claim_never_expires(self, store: Store) -> None:
        claim = await running(store, lease_micros=0)
        await settle(store, claim.completes())

        assert await store.expired(NOW + HOUR, 10) == []


class TestWorkers:
    async def test_a_worker_is_known_by_its_last_beat(self, store: Store) -> None:
        await store.beat(a_worker())
        latest = a_worker(
            heartbeat_at=NOW + 5,
            stopping=True,
            running=("a", "b"),
            stuck=("c",),
            limits={"work": 3},
            busy={"work": 2},
            versions={"work": 4},
            ended=9,
            failed=1,
            busy_micros=12_345,
            lease_micros=60 * SECOND,
        )

        await store.beat(latest)

        assert await store.workers() == [latest]

    async def test_workers_are_seen_by_other_stores(self, store: Store, second_store: Store) -> None:
        await store.beat(a_worker("one"))
        await second_store.beat(a_worker("two"))

        assert {worker.worker_id for worker in await store.workers()} == {"one", "two"}

    async def test_a_forgotten_worker_is_gone(self, store: Store) -> None:
        for worker_id in ("one", "two", "three"):
            await store.beat(a_worker(worker_id))

        await store.forget(["one", "three", "never-seen"])

        assert [worker.worker_id for worker in await store.workers()] == ["two"]


class TestTypes:
    def _type(self, **changes: Any) -> JobType:
        fields: dict[str, Any] = {
            "job_type": "work",
            "queue": "default",
            "priority": 50,
            "max_attempts": 5,
            "timeout_micros": HOUR,
            "payload_schema": '{"type":"object"}',
            "version": 1,
            "last_seen": NOW,
        }
        return JobType(**(fields | changes))

    async def test_an_announced_type_is_remembered_as_it_was_last_announced(self, store: Store) -> None:
        await store.announce([self._type(), self._type(job_type="other", payload_schema=None)])
        latest = self._type(
            version=2, last_seen=NOW + 5, concurrency_limit=3, rate=Rate(10, SECOND), keep=Keep(HOUR, None, 0)
        )

        await store.announce([latest])

        known = {each.job_type: each for each in await store.job_types()}
        assert known == {"work": latest, "other": self._type(job_type="other", payload_schema=None)}

    async def test_types_are_seen_by_other_stores(self, store: Store, second_store: Store) -> None:
        await store.announce([self._type()])

        assert await second_store.job_types() == [self._type()]


class TestOpen:
    async def test_an_open_store_has_nothing_left_to_migrate(self, store: Store) -> None:
        assert await store.migrate() == []

    async def test_what_was_acknowledged_is_there_after_closing_and_opening_again(self, store: Store) -> None:
        job_id = await submit(store)
        before = await record(store, job_id)

        await store.close()
        await store.open()

        assert await record(store, job_id) == before

    async def test_a_closed_store_says_so(self, store: Store) -> None:
        await store.close()

        with pytest.raises(HoldfastError):
            await store.counts()
        with pytest.raises(HoldfastError):
            await submit(store)

    async def test_a_store_says_where_it_is(self, store: Store, second_store: Store) -> None:
        assert store.location == second_store.location != ""


class TestDiagnose:
    async def test_a_new_store_finds_nothing_bad_about_itself(self, store: Store) -> None:
        findings = await store.diagnose(NOW)

        assert findings
        assert [finding for finding in findings if finding.level == "bad"] == []

    async def test_each_finding_names_what_was_looked_at_and_what_to_do_where_it_is_not_well(
        self, store: Store
    ) -> None:
        findings = await store.diagnose(NOW)

        assert len({finding.check for finding in findings}) == len(findings)
        for finding in findings:
            assert finding.level in ("ok", "warn", "bad")
            assert finding.check
            assert finding.says
            assert finding.level == "ok" or finding.advice

    async def test_looking_changes_nothing(self, store: Store) -> None:
        claim = await running(store)
        before = await record(store, claim.job_id)

        await store.diagnose(NOW + HOUR)

        assert await record(store, claim.job_id) == before
