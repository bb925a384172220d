"""Schedules: each tick makes its jobs once, and the schedule goes on in the same commit."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.errors import QueueFull
from holdfast.lifecycle import Event, Status
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    a_firing,
    a_schedule,
    a_tick,
    claim_ids,
    claim_one,
    completed,
    record,
    submit,
)
from holdfast.store.port import Store
from holdfast.store.types import QueueChange, Schedule, Verdict

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
        )

        await _saved(store, schedule)

        assert await second_store.schedules() == [schedule]

    async def test_all_are_listed_by_name(self, store: Store) -> None:
        for name in ("b", "c", "a"):
            await _saved(store, a_schedule(name))

        assert [each.name for each in await store.schedules()] == ["a", "b", "c"]
        assert [each.name for each in await store.schedules(["c", "none", "a"])] == ["a", "c"]

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

    async def test_ticks_that_are_skipped_make_no_job_and_keep_the_last_one(self, store: Store) -> None:
        schedule = await _saved(store)
        await store.fire([a_firing(schedule)], NOW + HOUR)
        before = await _stored(store)

        skipped = a_firing(before, jobs=(), next_at=NOW + 9 * HOUR)
        assert await store.fire([skipped], NOW + 8 * HOUR) == [APPLIED]

        assert await store.schedules() == [msgspec.structs.replace(before, next_at=NOW + 9 * HOUR)]
        assert sum((await store.counts()).values()) == 1

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
        late_editor = _next_version(schedule, missed="all")  # who read it before that tick, and writes back its next_at
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
