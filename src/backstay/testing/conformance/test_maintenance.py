"""Conformance: promote, expired, rows of workers and types, opening, diagnosis and schedules."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from backstay.core.port import Store
from backstay.core.records import (
    FormerWorker,
    JobType,
    Keep,
    Promoted,
    QueueChange,
    Rate,
    Schedule,
    Verdict,
)
from backstay.core.states import Event, Status
from backstay.errors import BackstayError, ConfigurationError, QueueFull
from backstay.testing.conformance.factories import (
    DAY,
    HOUR,
    NOW,
    SECOND,
    a_declaration,
    a_firing,
    a_schedule,
    a_tick,
    a_worker,
    claim_ids,
    claim_one,
    completed,
    record,
    running,
    settle,
    status,
    submit,
    submit_many,
)


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

    async def test_workers_are_listed_by_id_whole_by_name_between_bounds_and_page_by_page(self, store: Store) -> None:
        ids = sorted(f"{host}:{pid}" for host in ("host", "host-2", "host2") for pid in (9, 10, 11))
        for worker_id in reversed(ids):
            await store.beat(a_worker(worker_id))

        async def listed(*named: str, **page: Any) -> list[str]:
            return [worker.worker_id for worker in await store.workers(named, **page)]

        assert await listed() == ids
        assert await store.count_workers() == len(ids)
        assert await listed("host2:9", "nobody", "host:10", "host:10") == ["host2:9", "host:10"]
        assert await listed(after="host:", before="host;") == ["host:10", "host:11", "host:9"]
        assert await listed(limit=4) == ids[:4]
        assert await listed(after=ids[3], limit=4) == ids[4:8]
        assert await listed(after=ids[7], limit=4) == ids[8:]
        assert await listed(after=ids[-1], limit=4) == []

    async def test_a_forgotten_worker_is_gone(self, store: Store) -> None:
        for worker_id in ("one", "two", "three"):
            await store.beat(a_worker(worker_id))

        await store.forget(["one", "three", "never-seen"], NOW)

        assert [worker.worker_id for worker in await store.workers()] == ["two"]

    async def test_a_worker_that_left_is_kept_for_a_day_as_it_last_was(self, store: Store) -> None:
        last = a_worker("gone", heartbeat_at=NOW + 5, ended=9, failed=2, busy_micros=12_345)
        for worker in (a_worker("gone"), last, a_worker("here")):
            await store.beat(worker)
        await store.forget(["gone", "never-seen"], NOW + 10)
        assert await store.former_workers(NOW + 20) == [FormerWorker(last, NOW + 10)]
        assert await store.former_workers(NOW + DAY + 9) == [FormerWorker(last, NOW + 10)]
        assert await store.former_workers(NOW + DAY + 10) == []

    async def test_those_that_left_are_listed_from_the_last_to_the_first(self, store: Store) -> None:
        for place, worker_id in enumerate(["b", "c", "a"]):
            await store.beat(a_worker(worker_id))
            await store.forget([worker_id], NOW + place)
        assert [each.row.worker_id for each in await store.former_workers(NOW + 10)] == ["a", "c", "b"]
        await store.beat(a_worker("d"))
        await store.forget(["d"], NOW + DAY + 1)  # which ends the time of the first two
        assert [each.row.worker_id for each in await store.former_workers(NOW)] == ["d", "a"]

    async def test_a_worker_that_came_back_is_not_one_that_left(self, store: Store) -> None:
        await store.beat(a_worker("back"))
        await store.forget(["back"], NOW)
        await store.beat(a_worker("back", heartbeat_at=NOW + 5))
        assert await store.former_workers(NOW + 10) == []
        await store.forget(["back"], NOW + 20)
        assert [each.left_at for each in await store.former_workers(NOW + 30)] == [NOW + 20]


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

    async def test_a_sensitive_field_stays_marked_whatever_is_announced_later(self, store: Store) -> None:
        marked = '{"properties":{"card":{"sensitive":true}}}'
        await store.announce([self._type(payload_schema=marked)])
        await store.announce([self._type(sensitive=("/pin",))])
        await store.announce([self._type(payload_schema=None, version=2)])

        [found] = await store.job_types()

        assert (found.version, found.payload_schema, found.sensitive) == (2, None, ("/card", "/pin"))

    async def test_marks_that_are_announced_at_the_same_time_are_all_kept(
        self, store: Store, second_store: Store
    ) -> None:
        stores = [store, second_store] * 5
        said = [self._type(sensitive=(f"/field-{number}",)) for number in range(len(stores))]

        await asyncio.gather(*(each.announce([one]) for each, one in zip(stores, said, strict=True)))

        [found] = await store.job_types()
        assert found.sensitive == tuple(sorted(mark for each in said for mark in each.sensitive))

    async def test_only_unmark_removes_a_mark_and_nothing_else_of_the_type(self, store: Store) -> None:
        before = self._type(sensitive=("/card", "/pin"))
        await store.announce([before, self._type(job_type="other", sensitive=("/card",))])

        assert await store.unmark("work", ["/card", "/never"]) is Verdict.APPLIED
        assert await store.unmark("unknown", ["/card"]) is Verdict.GONE

        known = {each.job_type: each for each in await store.job_types()}
        assert known["work"] == self._type(sensitive=("/pin",))
        assert known["other"].sensitive == ("/card",)
        assert len(known) == 2

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

        with pytest.raises(BackstayError):
            await store.counts()
        with pytest.raises(BackstayError):
            await submit(store)

    async def test_a_store_says_where_it_is(self, store: Store, second_store: Store) -> None:
        assert store.location == second_store.location != ""

    async def test_to_ask_whether_a_queue_exists_creates_none(self, nowhere: Store) -> None:
        assert [await nowhere.exists(), await nowhere.exists()] == [False, False]

        await nowhere.migrate()

        assert await nowhere.exists()

    async def test_an_open_store_exists(self, store: Store) -> None:
        assert await store.exists()


class TestErase:
    async def test_what_would_be_erased_is_what_is_erased_and_none_means_that_nothing_is(self, nowhere: Store) -> None:
        await nowhere.migrate()

        planned = await nowhere.would_erase()

        assert await nowhere.exists()
        if planned is None:
            with pytest.raises(ConfigurationError):
                await nowhere.erase()
            assert await nowhere.exists()
        else:
            assert sorted(await nowhere.erase()) == sorted(planned)
            assert not await nowhere.exists()


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


APPLIED, STALE, GONE = Verdict.APPLIED, Verdict.STALE, Verdict.GONE


async def _saved(store: Store, schedule: Schedule | None = None) -> Schedule:
    schedule = schedule or a_schedule()
    assert await store.save_schedule(schedule, None) is APPLIED
    return schedule


async def _stored(store: Store) -> Schedule:
    [schedule] = await store.schedules()
    return schedule


def _next_version(schedule: Schedule, **changes: object) -> Schedule:
    return msgspec.structs.replace(schedule, version=schedule.version + 1, **changes)


class TestSchedules:
    async def test_a_schedule_is_kept_whole(self, store: Store, second_store: Store) -> None:
        schedule = a_schedule(
            cron="*/5 3 * * mon",
            timezone="Europe/Oslo",
            missed="all",
            job_type="embed",
            template='{"payload":"snö ☃"}',
            paused_at=NOW + 1,
            paused_by="me",
            overlap="replace",
            jitter_micros=90 * SECOND,
            starts_at=NOW - DAY,
            ends_at=NOW + DAY,
            declared_by="reports:app",
            skipped=3,
            skipped_at=NOW - HOUR,
        )

        await _saved(store, schedule)

        assert await second_store.schedules() == [schedule]

    async def test_all_are_listed_by_name(self, store: Store) -> None:
        for name in ("b", "c", "a"):
            await _saved(store, a_schedule(name))

        assert [each.name for each in await store.schedules()] == ["a", "b", "c"]
        assert [each.name for each in await store.schedules(["c", "none", "a"])] == ["a", "c"]

    async def test_they_are_listed_page_by_page(self, store: Store) -> None:
        names = [f"{letter}.{number}" for letter in "abc" for number in (1, 10, 2)]
        for name in reversed(names):
            await _saved(store, a_schedule(name))

        pages = [[each.name for each in await store.schedules(limit=4)]]
        while len(pages[-1]) == 4:
            pages.append([each.name for each in await store.schedules(after=pages[-1][-1], limit=4)])

        assert pages == [names[:4], names[4:8], names[8:]]

    async def test_those_that_tick_next_are_listed_by_time_without_those_that_are_paused(self, store: Store) -> None:
        await _saved(store, a_schedule("paused", next_at=NOW, paused_at=NOW, paused_by="me"))
        for name, hours in (("b", 2), ("c", 3), ("a", 4), ("also-b", 2)):
            await _saved(store, a_schedule(name, next_at=NOW + hours * HOUR))

        assert [each.name for each in await store.upcoming(3)] == ["also-b", "b", "c"]
        assert (await store.upcoming(9))[3:] == await store.schedules(["a"])

    async def test_a_name_that_is_taken_is_not_taken_over(self, store: Store) -> None:
        first = await _saved(store)

        assert await store.save_schedule(a_schedule(cron="0 0 * * *"), None) is STALE

        assert await store.schedules() == [first]

    async def test_it_is_changed_by_who_saw_its_current_version(self, store: Store) -> None:
        first = await _saved(store)
        second = _next_version(first, cron="0 0 * * *", missed="skip", updated_at=NOW + 5, next_at=NOW + 9 * HOUR)

        assert await store.save_schedule(second, first.version) is APPLIED
        assert await store.save_schedule(_next_version(first, cron="0 1 * * *"), first.version) is STALE

        assert await store.schedules() == [second]

    async def test_what_is_not_there_cannot_be_changed(self, store: Store) -> None:
        assert await store.save_schedule(a_schedule(version=2), 1) is GONE

        assert await store.schedules() == []

    async def test_a_dropped_schedule_is_gone(self, store: Store) -> None:
        await _saved(store, a_schedule("kept"))
        await _saved(store)

        assert await store.drop_schedule("nightly") is APPLIED
        assert await store.drop_schedule("nightly") is GONE

        assert [each.name for each in await store.schedules()] == ["kept"]

    async def test_it_can_be_dropped_only_as_it_was_read(self, store: Store) -> None:
        first = await _saved(store)
        await store.save_schedule(_next_version(first, cron="0 0 * * *"), first.version)

        assert await store.drop_schedule("nightly", first.version) is STALE
        assert len(await store.schedules()) == 1

        assert await store.drop_schedule("nightly", first.version + 1) is APPLIED
        assert await store.drop_schedule("nightly", first.version + 1) is GONE

    async def test_a_change_of_its_definition_reaches_every_field_and_leaves_what_ticks_have_noted(
        self, store: Store
    ) -> None:
        first = await _saved(store)
        await store.fire([a_firing(first, jobs=(), skipped=2, skipped_at=NOW + HOUR)], NOW + HOUR)
        changes = {
            "overlap": "skip",
            "jitter_micros": 5,
            "starts_at": NOW,
            "ends_at": NOW + DAY,
            "declared_by": "a:app",
        }

        edit = _next_version(await _stored(store), **changes)
        assert await store.save_schedule(msgspec.structs.replace(edit, skipped=0, skipped_at=None), 1) is APPLIED

        assert await _stored(store) == edit
        assert edit.skipped == 2

    async def test_of_many_who_saw_the_same_version_one_wins(self, store: Store, second_store: Store) -> None:
        first = await _saved(store)
        edits = [_next_version(first, job_type=f"type-{i}") for i in range(8)]

        verdicts = await asyncio.gather(
            *((store, second_store)[i % 2].save_schedule(edit, first.version) for i, edit in enumerate(edits))
        )

        assert sorted(verdicts, key=str) == [APPLIED] + [STALE] * 7
        assert await store.schedules() == [edits[verdicts.index(APPLIED)]]

    async def test_of_many_who_make_one_name_one_wins(self, store: Store, second_store: Store) -> None:
        rivals = [a_schedule(job_type=f"type-{i}") for i in range(8)]

        verdicts = await asyncio.gather(
            *((store, second_store)[i % 2].save_schedule(each, None) for i, each in enumerate(rivals))
        )

        assert await store.schedules() == [rivals[verdicts.index(APPLIED)]]
        assert verdicts.count(APPLIED) == 1


class TestDeclarations:
    async def test_what_an_app_declares_is_stored_by_its_name(self, store: Store, second_store: Store) -> None:
        ours, theirs = a_declaration(), a_declaration(origin="billing:app", names=())
        for each in (ours, theirs):
            assert await store.save_declaration(each, None) is APPLIED

        assert await second_store.declarations() == [theirs, ours]

    async def test_it_is_changed_by_who_saw_its_current_version(self, store: Store) -> None:
        first, second = a_declaration(), a_declaration(digest="d2", version=2)
        await store.save_declaration(first, None)

        assert await store.save_declaration(second, None) is STALE
        assert await store.save_declaration(second, 1) is APPLIED
        assert await store.save_declaration(a_declaration(digest="d3", version=2), 1) is STALE

        assert await store.declarations() == [second]

    async def test_what_is_not_there_cannot_be_changed(self, store: Store) -> None:
        assert await store.save_declaration(a_declaration(version=2), 1) is STALE

        assert await store.declarations() == []

    async def test_of_many_who_declare_at_once_one_wins(self, store: Store, second_store: Store) -> None:
        rivals = [a_declaration(digest=f"d{number}") for number in range(8)]

        verdicts = await asyncio.gather(
            *((store, second_store)[i % 2].save_declaration(each, None) for i, each in enumerate(rivals))
        )

        assert verdicts.count(APPLIED) == 1
        assert await store.declarations() == [rivals[verdicts.index(APPLIED)]]


class TestFire:
    async def test_a_tick_makes_its_job_and_moves_the_schedule_on(self, store: Store) -> None:
        schedule = await _saved(store)
        job = a_tick(schedule, NOW + HOUR, payload='{"n":1}', created_by="schedule:nightly", scheduled_for=NOW + HOUR)
        firing = a_firing(schedule, jobs=(job,), next_at=NOW + 2 * HOUR)

        assert await store.fire([firing], NOW + HOUR) == [APPLIED]

        made = await record(store, job.job_id)
        assert (made.status, made.payload, made.created_by) == (Status.PENDING, '{"n":1}', "schedule:nightly")
        assert (made.schedule, made.tick_at, made.created_at) == ("nightly", NOW + HOUR, NOW + HOUR)
        assert [event.event for event in made.history] == [Event.SUBMIT]
        moved = msgspec.structs.replace(schedule, next_at=NOW + 2 * HOUR, last_at=NOW + HOUR, last_job_id=job.job_id)
        assert await store.schedules() == [moved]

    async def test_a_worker_is_told_which_tick_it_runs(self, store: Store) -> None:
        schedule = await _saved(store)
        await store.fire([a_firing(schedule)], NOW + HOUR)

        claim = await claim_one(store, now=NOW + HOUR)

        assert (claim.job.schedule, claim.job.tick_at) == ("nightly", NOW + HOUR)

    async def test_several_ticks_make_a_job_each_and_the_last_is_noted(self, store: Store) -> None:
        schedule = await _saved(store)
        ticks = [NOW + hour * HOUR for hour in (1, 2, 3)]

        await store.fire([a_firing(schedule, *ticks)], NOW + 3 * HOUR)

        jobs = [await record(store, a_tick(schedule, tick).job_id) for tick in ticks]
        assert [job.tick_at for job in jobs] == ticks
        stored = await _stored(store)
        assert (stored.next_at, stored.last_at, stored.last_job_id) == (NOW + 4 * HOUR, ticks[-1], jobs[-1].job_id)

    async def test_a_tick_whose_dedup_key_is_taken_makes_no_job_and_names_the_one_that_has_it(
        self, store: Store
    ) -> None:
        schedule = await _saved(store)
        first = await submit(store, dedup_key="nightly", special=True)
        tick = a_tick(schedule, NOW + HOUR, dedup_key="nightly", special=True)

        assert await store.fire([a_firing(schedule, jobs=(tick,), next_at=NOW + 2 * HOUR)], NOW + HOUR) == [APPLIED]

        assert await store.get([tick.job_id]) == [None]
        stored = await _stored(store)
        assert (stored.next_at, stored.last_at, stored.last_job_id) == (NOW + 2 * HOUR, NOW + HOUR, first)

    async def test_ticks_that_are_skipped_make_no_job_and_keep_the_last_one(self, store: Store) -> None:
        schedule = await _saved(store)
        await store.fire([a_firing(schedule)], NOW + HOUR)
        before = await _stored(store)

        skipped = a_firing(before, jobs=(), next_at=NOW + 9 * HOUR)
        assert await store.fire([skipped], NOW + 8 * HOUR) == [APPLIED]

        assert await store.schedules() == [msgspec.structs.replace(before, next_at=NOW + 9 * HOUR)]
        assert sum((await store.counts()).values()) == 1

    async def test_ticks_skipped_because_of_overlap_are_counted_with_the_last_of_them(self, store: Store) -> None:
        schedule = await _saved(store, a_schedule(overlap="skip"))
        first = a_firing(schedule, jobs=(), skipped=1, skipped_at=NOW + HOUR)
        assert await store.fire([first], NOW + HOUR) == [APPLIED]
        moved = await _stored(store)
        later = a_firing(moved, skipped=2, skipped_at=NOW + 3 * HOUR)
        assert await store.fire([later], NOW + 3 * HOUR) == [APPLIED]

        stored = await _stored(store)
        assert (stored.skipped, stored.skipped_at, stored.last_at) == (3, NOW + 3 * HOUR, moved.next_at)

    async def test_firing_does_not_change_the_version_that_editors_see(self, store: Store) -> None:
        schedule = await _saved(store)
        await store.fire([a_firing(schedule)], NOW + HOUR)

        edit = _next_version(await _stored(store), cron="0 0 * * *")
        assert await store.save_schedule(edit, schedule.version) is APPLIED

    @pytest.mark.parametrize("reason", ["due_at", "version", "paused", "dropped"])
    async def test_a_firing_whose_guard_does_not_hold_changes_nothing(self, store: Store, reason: str) -> None:
        schedule = await _saved(store)
        firing = a_firing(schedule)
        match reason:
            case "due_at":
                firing = a_firing(schedule, due_at=NOW + HOUR + 1)
            case "version":
                await store.save_schedule(_next_version(schedule, job_type="other"), 1)
            case "paused":
                paused = _next_version(schedule, paused_at=NOW, paused_by="me")
                await store.save_schedule(paused, 1)
                firing = a_firing(paused)
            case _:
                await store.drop_schedule("nightly")
        before = await store.schedules()

        assert await store.fire([firing], NOW + HOUR) == [GONE if reason == "dropped" else STALE]

        assert await store.get([firing.jobs[0].job_id]) == [None]
        assert await store.schedules() == before

    async def test_a_repeated_firing_is_stale_and_has_one_effect(self, store: Store) -> None:
        schedule = await _saved(store)
        firing = a_firing(schedule)

        assert await store.fire([firing, firing], NOW + HOUR) == [APPLIED, STALE]
        assert await store.fire([firing], NOW + HOUR) == [STALE]

        assert (await store.counts())["pending"] == 1
        assert (await _stored(store)).next_at == NOW + 2 * HOUR

    async def test_of_many_workers_that_see_a_tick_one_makes_its_job(self, store: Store, second_store: Store) -> None:
        schedule = await _saved(store)
        for hour in range(1, 6):
            firing = a_firing(schedule)

            verdicts = await asyncio.gather(
                *((store, second_store)[i % 2].fire([firing], NOW + hour * HOUR) for i in range(8))
            )

            assert sorted(verdicts, key=str) == [[APPLIED]] + [[STALE]] * 7
            schedule = await _stored(store)
        assert (await store.counts())["pending"] == 5

    async def test_a_tick_that_comes_again_makes_no_second_job(self, store: Store) -> None:
        schedule = await _saved(store)
        await store.fire([a_firing(schedule)], NOW + HOUR)
        before = await record(store, a_tick(schedule, NOW + HOUR).job_id)
        # an editor that read it before that tick, and writes back its next_at
        late_editor = _next_version(schedule, missed="all")
        assert await store.save_schedule(late_editor, schedule.version) is APPLIED

        assert await store.fire([a_firing(late_editor)], NOW + HOUR) == [APPLIED]

        assert await record(store, before.job_id) == before
        assert sum((await store.counts()).values()) == 1

    async def test_a_tick_whose_job_has_run_does_not_run_it_again(self, store: Store) -> None:
        schedule = await _saved(store)
        done = await completed(store, job_id=a_tick(schedule, NOW + HOUR).job_id, own_id=True)

        assert await store.fire([a_firing(schedule)], NOW + HOUR) == [APPLIED]

        assert await claim_ids(store, now=NOW + HOUR) == []
        assert (await _stored(store)).last_job_id == done

    async def test_each_firing_is_answered_in_order(self, store: Store) -> None:
        good, late = await _saved(store, a_schedule("good")), await _saved(store, a_schedule("late"))
        firings = [a_firing(late, due_at=NOW), a_firing(good), a_firing(a_schedule("never"))]

        assert await store.fire(firings, NOW + HOUR) == [STALE, APPLIED, GONE]

        assert [each.last_at for each in await store.schedules()] == [NOW + HOUR, None]

    async def test_no_reader_sees_a_job_without_the_advance_nor_the_advance_without_its_job(
        self, store: Store, second_store: Store
    ) -> None:
        schedule = await _saved(store)
        ticks = [NOW + hour * HOUR for hour in range(1, 21)]
        ids = [a_tick(schedule, tick).job_id for tick in ticks]

        async def fire_all() -> None:
            current = schedule
            for tick in ticks:
                await store.fire([a_firing(current)], tick)
                current = msgspec.structs.replace(current, next_at=tick + HOUR)

        async def look() -> None:
            for _ in range(20):
                jobs_before = sum(each is not None for each in await second_store.statuses(ids))
                advanced = ((await _stored(second_store)).next_at - schedule.next_at) // HOUR
                jobs_after = sum(each is not None for each in await second_store.statuses(ids))
                assert jobs_before <= advanced <= jobs_after

        await asyncio.gather(fire_all(), look(), look())
        assert (await store.counts())["pending"] == 20

    async def test_a_tick_whose_queue_is_full_waits(self, store: Store) -> None:
        schedule = await _saved(store)
        await store.change_queue("default", QueueChange(max_pending=1), NOW)
        await submit(store)

        with pytest.raises(QueueFull):
            await store.fire([a_firing(schedule)], NOW + HOUR)
        assert await store.schedules() == [schedule]

        await claim_one(store)
        assert await store.fire([a_firing(schedule)], NOW + HOUR) == [APPLIED]

    async def test_nothing_is_an_answer_to_nothing(self, store: Store) -> None:
        assert await store.fire([], NOW) == []
