"""Conformance: export, restore and freezing of a queue in transfer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from backstay.core import dumps
from backstay.core.dumps import FROM, INTO, SEALED, Adopted, MoveState
from backstay.core.event_details import Rerun, Subtree
from backstay.core.lifecycle import cancel, manual_retry
from backstay.core.port import Store
from backstay.core.records import (
    FOREVER,
    JobRecord,
    JobType,
    LimitChange,
    LimitOf,
    Note,
    Query,
    QueueChange,
    Rate,
    Verdict,
)
from backstay.core.states import Status
from backstay.errors import MoveFailed, StoreMoved
from backstay.testing.conformance.factories import (
    DAY,
    HOUR,
    MINUTE,
    NOW,
    SECOND,
    SPECIAL_VALUES,
    Claim,
    a_declaration,
    a_firing,
    a_schedule,
    archived,
    claim_again,
    claim_ids,
    claim_one,
    completed,
    failed,
    in_state,
    new_job,
    quiet,
    record,
    request,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
    submit_many,
)
from backstay.testing.conformance.test_results import (
    KINDS,
    POINTS,
    WORDS,
    as_values,
    put,
    read,
    read_by_subject,
    with_rows,
    words,
)

COMING = MoveState(role=INTO, move_id="m", other="sqlite:///here.db")


async def everything(store: Store, kind: str, limit: int = 100) -> list[bytes]:
    """Return all items of a kind, read page by page."""
    items: list[bytes] = []
    after: str | None = None
    for _ in range(1_000):
        page = await store.export(kind, after, limit)
        assert len(page.items) <= limit
        items += page.items
        if page.next is None:
            return items
        after = page.next
    raise AssertionError(f"the export of {kind} does not come to an end")


async def carry(source: Store, target: Store) -> None:
    """Transfer everything, in short form."""
    await target.restore("", [], COMING)
    for kind in dumps.KINDS:
        items = await everything(source, kind)
        await target.restore(kind, items, msgspec.structs.replace(COMING, kind=kind))
    await target.restore("", [], msgspec.structs.replace(COMING, done=True))


async def bare_record(store: Store, job_id: str) -> JobRecord:
    """Return a job as it must be on both sides: which jobs are parked is up to each store."""
    return msgspec.structs.replace(await record(store, job_id), parked=False)


def a_type(name: str = "work") -> JobType:
    return JobType(
        job_type=name,
        queue="default",
        priority=50,
        max_attempts=3,
        timeout_micros=HOUR,
        payload_schema="{}",
        version=2,
        last_seen=NOW,
        sensitive=("/card",),
        rate=Rate(5, MINUTE),
    )


class TestExport:
    async def test_jobs_in_every_state_are_the_same_on_the_other_side(self, store: Store, elsewhere: Store) -> None:
        states = [state for state in Status if state is not Status.PROCESSING]
        job_ids = [(await in_state(store, state, subject=state.value)).job_id for state in states]

        await carry(store, elsewhere)

        for job_id in job_ids:
            assert await bare_record(elsewhere, job_id) == await bare_record(store, job_id)
        assert await elsewhere.counts() == await store.counts()

    async def test_everything_that_a_job_can_say_comes_along(self, store: Store, elsewhere: Store) -> None:
        parent = await submit(store)
        job_id = await submit(
            store,
            **SPECIAL_VALUES,
            job_type="rich",
            parent_job_id=parent,
            depends_on=(await completed(store),),
            dedup_until=FOREVER,
        )
        claim = await claim_one(store, job_id, slots={"rich": 1})
        await store.note(
            [Note(claim.hold, progress=0.25, stage="half", logs='[{"m":"x"}]', metrics='{"n":1}', artifacts="[]")], NOW
        )
        await settle(store, claim.fails(message="broken\n'\"\\ ü"))
        await settle(store, cancel(await record(store, job_id), by="me", reason="no", details=Subtree(parent)))
        again = await record(store, job_id)
        options: dict[str, Any] = {"reason": "yes", "details": Rerun(parent, 7), "forget_steps": True}
        await settle(store, manual_retry(again, now=NOW, by="me", **options))

        await carry(store, elsewhere)

        found = await bare_record(elsewhere, job_id)
        assert found == await bare_record(store, job_id)
        assert found.errors[0].message == "broken\n'\"\\ ü"
        assert found.error_type == found.errors[0].type
        assert [event.event for event in found.history] == ["submit", "claim", "retry", "cancel", "manual_retry"]
        assert [event.details for event in found.history][-2:] == [Subtree(parent), Rerun(parent, 7)]
        assert found.history[-1].forget_steps

    async def test_they_are_found_and_claimed_in_the_same_order(self, store: Store, elsewhere: Store) -> None:
        for number in range(7):
            await submit(store, priority=50 + number % 3, now=NOW + number, scheduled_for=NOW + number)
        arrived = [job.job_id for job in (await store.find(Query())).items]

        await carry(store, elsewhere)

        assert [job.job_id for job in (await elsewhere.find(Query())).items] == arrived
        assert await claim_ids(elsewhere, now=NOW + SECOND) == await claim_ids(store, now=NOW + SECOND)

    async def test_forgotten_steps_stay_behind(self, store: Store, elsewhere: Store) -> None:
        claim = await running(store)
        for name in ("charge", "pack"):
            await store.record_step(claim.hold, name, "1", NOW)
        await settle(store, claim.completes())
        await retry_by_hand(store, claim.job_id, forget_steps=True)
        second = await claim_again(store, claim)
        await store.record_step(second.hold, "charge", "2", NOW)
        await settle(store, second.gives_back())

        await carry(store, elsewhere)

        assert [await elsewhere.step(claim.job_id, name) for name in ("charge", "pack")] == ["2", None]

    async def test_a_job_goes_on_where_it_stood(self, store: Store, elsewhere: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", '"paid"', NOW)
        await settle(store, claim.fails(), now=NOW)

        await carry(store, elsewhere)

        await elsewhere.promote(NOW + DAY, 10)
        again = await claim_one(elsewhere, claim.job_id, slots={claim.job.job_type: 1}, now=NOW + DAY)
        assert (again.job.attempt, again.job.failures) == (2, 1)
        assert await elsewhere.step(claim.job_id, "charge") == '"paid"'
        await settle(elsewhere, again.completes("2"), now=NOW + DAY)
        found = await record(elsewhere, claim.job_id)
        assert found.result == "2"
        assert [event.version for event in found.history] == list(range(1, found.version + 1))

    async def test_edges_come_along_and_let_go_on_the_other_side(self, store: Store, elsewhere: Store) -> None:
        done, open_ = await completed(store), await submit(store, job_type="open")
        both = await submit(store, depends_on=(done, open_))

        await carry(store, elsewhere)

        assert set((await record(elsewhere, both)).dependencies) == {done, open_}
        assert (await record(elsewhere, open_)).dependent_jobs == (both,)
        claim = await claim_one(elsewhere, open_, slots={"open": 1})
        await settle(elsewhere, claim.completes())
        assert await status(elsewhere, both) is Status.PENDING

    async def test_a_joined_job_is_answered_on_the_other_side(self, store: Store, elsewhere: Store) -> None:
        leader = await submit(store, job_type="same", content_hash="h")
        joined = await submit(store, job_type="same", content_hash="h", reuse_since=0)

        await carry(store, elsewhere)

        claim = await claim_one(elsewhere, leader, slots={"same": 1})
        await settle(elsewhere, claim.completes("7"))
        found = await record(elsewhere, joined)
        assert (found.status, found.result, found.reused_from) == (Status.COMPLETED, "7", leader)

    async def test_a_dedup_key_still_stands_for_its_job(self, store: Store, elsewhere: Store) -> None:
        active = await submit(store, dedup_key="active")
        for_ever = await completed(store, dedup_key="for ever", dedup_until=FOREVER)
        await completed(store, dedup_key="over", dedup_until=NOW + MINUTE)

        await carry(store, elsewhere)

        assert await submit(elsewhere, dedup_key="active") == active
        assert await submit(elsewhere, dedup_key="for ever", now=NOW + DAY) == for_ever
        assert (await elsewhere.insert([new_job(dedup_key="over")], NOW + DAY))[0].existing is None

    async def test_the_archive_comes_along_with_its_guards(self, store: Store, elsewhere: Store) -> None:
        job = await archived(store, dedup_key="k", dedup_until=FOREVER, subject="s")
        dead = await archived(store, Status.FAILED)

        await carry(store, elsewhere)

        for job_id in (job.job_id, dead.job_id):
            assert await record(elsewhere, job_id) == await record(store, job_id)
        assert await submit(elsewhere, dedup_key="k") == job.job_id

    async def test_what_was_said_about_the_queue_comes_along(self, store: Store, elsewhere: Store) -> None:
        said = QueueChange(paused=True, by="me", reason="why", until=NOW + 1, max_pending=7)
        await store.change_queue("mail", said, NOW)
        await store.change_limit(LimitOf.TYPE, "T", LimitChange(paused=True, by="me", until=NOW + 1), NOW)
        await store.save_schedule(a_schedule(declared_by="reports:app", overlap="skip", ends_at=NOW + DAY), None)
        await store.save_declaration(a_declaration(), None)
        await store.announce([a_type(), a_type("other")])
        await failed(store)

        await carry(store, elsewhere)

        assert await elsewhere.queues() == await store.queues()
        assert await elsewhere.limits() == await store.limits() != []
        assert await elsewhere.schedules() == await store.schedules()
        assert await elsewhere.declarations() == [a_declaration()]
        assert await elsewhere.job_types() == await store.job_types()
        counted = await store.counters(NOW - DAY, NOW + DAY)
        assert counted
        assert await elsewhere.counters(NOW - DAY, NOW + DAY) == counted

    async def test_what_was_carried_is_what_would_be_carried_again(self, store: Store, elsewhere: Store) -> None:
        for state in (Status.COMPLETED, Status.FAILED, Status.WAITING, Status.RETRYING):
            await in_state(store, state, dedup_key=state.value)
        await archived(store)
        claim = await running(store)
        await store.record_step(claim.hold, "s", "1", NOW)
        await settle(store, claim.completes())

        await carry(store, elsewhere)

        for kind in dumps.KINDS:
            items = await everything(store, kind)
            assert sorted(await everything(elsewhere, kind)) == sorted(store.fit(kind, item) for item in items), kind

    async def test_pages_have_everything_once(self, store: Store) -> None:
        for number in range(5):
            job_id = await submit(store, job_type="work", dedup_key=f"k{number}", now=NOW + number * MINUTE)
            claim = await claim_one(store, job_id, now=NOW + number * MINUTE)
            await store.record_step(claim.hold, "s", "1", NOW)
            await settle(store, claim.completes())
            await archived(store)

        for kind in (dumps.JOBS, dumps.STEPS, dumps.GUARDS, dumps.ARCHIVE, dumps.COUNTERS):
            whole = await everything(store, kind)
            assert len(whole) >= 5
            assert await everything(store, kind, limit=2) == whole, kind

    async def test_a_page_of_large_jobs_is_a_small_one(self, store: Store) -> None:
        payload = msgspec.json.encode("x" * 200_000).decode()
        await submit_many(store, 40, payload=payload)

        page = await store.export(dumps.JOBS, None, 500)

        assert page.next is not None
        assert 2 <= len(page.items) < 40

    async def test_a_page_that_is_written_again_changes_nothing(self, store: Store, elsewhere: Store) -> None:
        job_id = await submit(store, depends_on=(await submit(store),), dedup_key="k")
        items = await everything(store, dumps.JOBS)
        await elsewhere.restore("", [], COMING)

        for _ in range(2):
            await elsewhere.restore(dumps.JOBS, items, msgspec.structs.replace(COMING, kind=dumps.JOBS))
        await elsewhere.restore("", [], msgspec.structs.replace(COMING, done=True))

        assert await bare_record(elsewhere, job_id) == await bare_record(store, job_id)
        assert sum((await elsewhere.counts()).values()) == 2

    async def test_how_far_a_move_is_stands_beside_what_it_has_written(self, store: Store, elsewhere: Store) -> None:
        job_id = await submit(store)
        half = msgspec.structs.replace(COMING, kind=dumps.JOBS, after="17")
        await elsewhere.restore("", [], COMING)

        await elsewhere.restore(dumps.JOBS, await everything(store, dumps.JOBS), half)

        assert await elsewhere.moving() == half
        assert await elsewhere.statuses([job_id]) == [Status.PENDING]

    async def test_a_store_that_is_moved_into_serves_nobody_else(self, store: Store, elsewhere: Store) -> None:
        await submit(store)
        await elsewhere.restore("", [], COMING)
        await elsewhere.restore(dumps.JOBS, await everything(store, dumps.JOBS), COMING)

        with pytest.raises(StoreMoved, match="has not finished"):
            await submit(elsewhere)
        with pytest.raises(StoreMoved):
            await elsewhere.claim(request(), NOW)
        await elsewhere.restore("", [], msgspec.structs.replace(COMING, done=True))

        assert len(await claim_ids(elsewhere)) == 1

    async def test_nothing_is_written_into_a_store_once_its_move_has_finished(
        self, store: Store, elsewhere: Store
    ) -> None:
        await submit(store)
        late = await everything(store, dumps.JOBS)
        await elsewhere.restore("", [], COMING)
        await elsewhere.restore("", [], msgspec.structs.replace(COMING, done=True))

        with pytest.raises(MoveFailed, match="has finished"):
            await elsewhere.restore(dumps.JOBS, late, msgspec.structs.replace(COMING, kind=dumps.STEPS))

        assert sum((await elsewhere.counts()).values()) == 0
        assert await submit(elsewhere)

    async def test_a_run_of_a_move_that_another_has_taken_over_writes_nothing_more(
        self, store: Store, elsewhere: Store
    ) -> None:
        await submit(store)
        late = await everything(store, dumps.JOBS)
        second = msgspec.structs.replace(COMING, kind=dumps.STEPS, run=2)
        await elsewhere.restore("", [], msgspec.structs.replace(COMING, run=1))
        await elsewhere.restore("", [], second)

        for kind, items, done in ((dumps.JOBS, late, False), ("", [], False), ("", [], True)):
            with pytest.raises(MoveFailed, match="another run"):
                await elsewhere.restore(kind, items, msgspec.structs.replace(COMING, run=1, done=done))

        assert sum((await elsewhere.counts()).values()) == 0
        assert await elsewhere.moving() == second

    async def test_of_two_runs_that_write_at_once_the_later_one_stays(self, elsewhere: Store) -> None:
        await elsewhere.restore("", [], COMING)

        runs = [msgspec.structs.replace(COMING, run=number) for number in range(1, 6)]
        ended = await asyncio.gather(
            *(elsewhere.restore("", [], run) for run in reversed(runs)), return_exceptions=True
        )

        assert all(each is None or isinstance(each, MoveFailed) for each in ended)
        written = [run for run, each in zip(reversed(runs), ended, strict=True) if each is None]
        assert await elsewhere.moving() == max(written, key=lambda run: run.run)

    async def test_two_moves_cannot_go_into_one_store(self, elsewhere: Store) -> None:
        await elsewhere.restore("", [], COMING)

        with pytest.raises(MoveFailed):
            await elsewhere.restore("", [], msgspec.structs.replace(COMING, move_id="another"))

        assert await elsewhere.moving() == COMING


class TestExportOfTrees:
    async def test_a_parent_that_waits_is_let_go_on_the_other_side(self, store: Store, elsewhere: Store) -> None:
        parent = await running(store)
        children = await submit_many(store, 2, job_type="child", parent_job_id=parent.job_id)
        await settle(store, parent.waits(join="merge"))
        first = await claim_one(store, slots={"child": 1})
        await settle(store, first.ends_as(Status.FAILED))

        await carry(store, elsewhere)

        assert await bare_record(elsewhere, parent.job_id) == await bare_record(store, parent.job_id)
        listed = await elsewhere.children(parent.job_id, None, 10)
        assert sorted(job.job_id for job in listed.items) == sorted(children)
        last = await claim_one(elsewhere, slots={"child": 1})
        await settle(elsewhere, last.completes())
        again = await claim_one(elsewhere, parent.job_id, slots={parent.job.job_type: 1})
        assert (again.job.waits, again.job.join, again.job.children) == (1, "merge", 2)

    async def test_a_rule_and_a_policy_are_kept(self, store: Store, elsewhere: Store) -> None:
        first = await submit(store, job_type="first")
        any_end = await submit(store, depends_on=(first,), trigger_rule="all_done")
        fails = await submit(store, depends_on=(first,), on_dependency_failure="fail")

        await carry(store, elsewhere)

        claim = await claim_one(elsewhere, first, slots={"first": 1})
        await settle(elsewhere, claim.ends_as(Status.FAILED))
        assert await status(elsewhere, any_end) is Status.PENDING
        assert await status(elsewhere, fails) is Status.FAILED

    async def test_a_job_may_depend_on_many(self, store: Store, elsewhere: Store) -> None:
        many = await submit_many(store, 45, job_type="first")
        last = await submit(store, depends_on=tuple(many))

        await carry(store, elsewhere)

        assert set((await record(elsewhere, last)).dependencies) == set(many)
        asked = request(slots={"first": 100})
        claims = [Claim(job, asked.token) for job in await elsewhere.claim(asked, NOW)]
        assert len(claims) == 45
        await settle(elsewhere, *(claim.completes() for claim in claims))
        await quiet(elsewhere)
        assert await status(elsewhere, last) is Status.PENDING


class TestExportOfRows:
    async def test_rows_of_every_kind_come_along(self, store: Store, elsewhere: Store) -> None:
        await store.declare([WORDS, KINDS])
        odd = ("0190c0de-0000-7000-8000-000000000009", -(2**62), 0.1, "ü", True, b"\0\xff", NOW, "12.5", '{"a": [1]}')
        empty = ("0190c0de-0000-7000-8000-00000000000a", *([None] * 8))
        named = await with_rows(store, WORDS, *words("cat", "dog", "ox"), subject="pets", job_type="rows")
        kinds = await with_rows(store, KINDS, odd, empty)

        await carry(store, elsewhere)

        assert await read(elsewhere, named) == await read(store, named) == words("cat", "dog", "ox")
        for where in (elsewhere, store):
            found = await read(where, kinds, KINDS)
            assert [as_values(row) for row in found] == [as_values(odd), as_values(empty)]
        assert await read_by_subject(elsewhere, "pets") == await read_by_subject(store, "pets")
        assert await elsewhere.latest("pets", "rows") == named

    async def test_the_latest_is_the_one_that_completed_last(self, store: Store, elsewhere: Store) -> None:
        await store.declare([WORDS])
        first = await running(store, job_type="rows", subject="pets")
        await put(store, first, WORDS, *words("cat"))
        await with_rows(store, WORDS, *words("dog"), job_type="rows", subject="pets")
        await settle(store, first.completes(now=NOW + MINUTE), now=NOW + MINUTE)

        await carry(store, elsewhere)

        assert await elsewhere.latest("pets", "rows") == await store.latest("pets", "rows") == first.job_id

    async def test_rows_of_a_run_that_failed_are_not_seen_there_either(self, store: Store, elsewhere: Store) -> None:
        await store.declare([WORDS])
        claim = await running(store)
        await put(store, claim, WORDS, *words("cat", "dog"))
        await settle(store, claim.fails())
        await store.promote(NOW + DAY, 10)
        again = await claim_again(store, claim, now=NOW + DAY)
        await put(store, again, WORDS, *words("ox"), now=NOW + DAY)
        await settle(store, again.completes(), now=NOW + DAY)

        await carry(store, elsewhere)

        assert await read(elsewhere, claim.job_id) == words("ox")

    async def test_pages_of_rows_have_everything_once(self, store: Store) -> None:
        texts, numbers = (msgspec.structs.replace(table, name=f"paged_{table.name}") for table in (WORDS, POINTS))
        await store.declare([texts, numbers])
        await with_rows(store, texts, *words("cat", "dog", "ox"))
        await with_rows(store, numbers, *((n, n / 3) for n in range(3)))

        whole = await everything(store, dumps.ROWS)

        assert len(whole) == 6
        assert await everything(store, dumps.ROWS, limit=2) == whole


LEAVING = MoveState(role=FROM, move_id="m", other="postgresql://there/jobs")
STANDING = msgspec.structs.replace(LEAVING, kind=SEALED)


@contextlib.asynccontextmanager
async def frozen(store: Store, state: MoveState = LEAVING) -> AsyncIterator[None]:
    await store.freeze(LEAVING)
    assert await store.freeze(state) == 0
    try:
        yield
    finally:
        await store.freeze(None)


class TestFreeze:
    async def test_a_queue_that_moves_takes_no_jobs_and_says_where_it_goes(self, store: Store) -> None:
        async with frozen(store):
            with pytest.raises(StoreMoved, match="is being transferred to postgresql://there/jobs"):
                await submit(store)
            with pytest.raises(StoreMoved):
                await submit_many(store, 3)
            with pytest.raises(StoreMoved):
                await submit(store, dedup_key="k")
            with pytest.raises(StoreMoved):
                await submit(store, scheduled_for=NOW + HOUR)

        assert sum((await store.counts()).values()) == 0
        assert await submit(store)

    async def test_it_gives_no_jobs_either(self, store: Store) -> None:
        await submit(store)

        async with frozen(store):
            with pytest.raises(StoreMoved):
                await store.claim(request(), NOW)

        assert len(await claim_ids(store)) == 1

    async def test_everyone_meets_it_with_their_next_call(self, store: Store, second_store: Store) -> None:
        await submit(second_store)  # with anything that the other run has prepared
        await claim_ids(second_store)
        await submit(second_store)

        async with frozen(store):
            with pytest.raises(StoreMoved):
                await submit(second_store)
            with pytest.raises(StoreMoved):
                await second_store.claim(request(), NOW)

        assert len(await claim_ids(second_store)) == 1

    async def test_what_runs_is_settled_and_lets_go_of_what_waits_for_it(self, store: Store) -> None:
        claim = await running(store)
        dependent = await submit(store, depends_on=(claim.job_id,))

        async with frozen(store):
            assert await store.extend([claim.hold], NOW + 2 * HOUR, NOW) == [Verdict.APPLIED]
            assert await store.note([Note(claim.hold, progress=0.5)], NOW) == [Verdict.APPLIED]
            assert await store.record_step(claim.hold, "charge", "1", NOW) is Verdict.APPLIED
            await settle(store, claim.completes())

        assert await status(store, claim.job_id) is Status.COMPLETED
        assert await status(store, dependent) is Status.PENDING

    async def test_what_runs_may_bring_children(self, store: Store) -> None:
        claim = await running(store)
        child = new_job(parent_job_id=claim.job_id, own_id=True)

        async with frozen(store):
            inserted = await store.insert_children(claim.hold, [child], NOW)

        assert inserted is not None
        assert await status(store, child.job_id) is Status.PENDING

    async def test_a_schedule_does_not_tick(self, store: Store) -> None:
        schedule = a_schedule(next_at=NOW)
        await store.save_schedule(schedule, None)

        async with frozen(store):
            with pytest.raises(StoreMoved):
                await store.fire([a_firing(schedule)], NOW)

        assert await store.schedules() == [schedule]

    async def test_it_stands_still_only_once_nothing_runs(self, store: Store) -> None:
        claim = await running(store)
        await store.freeze(LEAVING)

        assert await store.freeze(STANDING) == 1
        assert await store.moving() == LEAVING
        await settle(store, claim.completes())
        assert await store.freeze(STANDING) == 0
        assert await store.moving() == STANDING

        await store.freeze(None)
        assert await store.moving() is None

    async def test_a_move_that_was_given_up_seals_nothing(self, store: Store) -> None:
        await store.freeze(LEAVING)
        await store.freeze(None)

        for state in (STANDING, msgspec.structs.replace(STANDING, done=True)):
            with pytest.raises(MoveFailed, match="abandoned"):
                await store.freeze(state)

        assert await store.moving() is None
        assert await submit(store)

    async def test_a_run_of_a_move_that_another_has_taken_over_freezes_nothing(self, store: Store) -> None:
        second = msgspec.structs.replace(STANDING, run=2)

        async with frozen(store, second):
            for state in (LEAVING, STANDING, msgspec.structs.replace(STANDING, run=1, done=True)):
                with pytest.raises(MoveFailed, match="another run"):
                    await store.freeze(state)
            assert await store.moving() == second

    async def test_a_queue_moves_to_one_place_at_a_time(self, store: Store) -> None:
        async with frozen(store):
            with pytest.raises(MoveFailed, match="already being transferred"):
                await store.freeze(msgspec.structs.replace(LEAVING, move_id="another"))
            assert await store.moving() == LEAVING

    async def test_nothing_of_a_queue_that_stands_still_changes(self, store: Store) -> None:
        due = await submit(store, scheduled_for=NOW + SECOND)
        waiting = await record(store, await submit(store))

        async with frozen(store, STANDING):
            with pytest.raises(StoreMoved):
                await store.promote(NOW + HOUR, 10)
            with pytest.raises(StoreMoved):
                await store.apply([cancel(waiting, by=None, reason=None)], NOW)
            with pytest.raises(StoreMoved):
                await store.change_queue("default", QueueChange(paused=True), NOW)
            with pytest.raises(StoreMoved):
                await store.change_limit(LimitOf.TYPE, "T", LimitChange(paused=True), NOW)
            with pytest.raises(StoreMoved):
                await store.save_schedule(a_schedule(), None)
            with pytest.raises(StoreMoved):
                await store.announce([a_type()])

        assert await status(store, due) is Status.SCHEDULED
        assert await status(store, waiting.job_id) is Status.PENDING
        assert await store.queues() == []
        assert await store.limits() == []

    async def test_it_is_read_as_ever(self, store: Store) -> None:
        job_id = await completed(store, subject="s")

        async with frozen(store, STANDING):
            assert (await record(store, job_id)).result == "1"
            assert await store.statuses([job_id]) == [Status.COMPLETED]

    async def test_one_that_has_moved_says_so(self, store: Store) -> None:
        async with frozen(store, msgspec.structs.replace(STANDING, done=True)):
            with pytest.raises(StoreMoved, match="was transferred to postgresql://there/jobs"):
                await submit(store)


async def adoptable(store: Store, *job_ids: str, until: int | None = None) -> list[Adopted]:
    """Return jobs as another system would hand them over, with their dedup keys."""
    found = {}
    for item in await everything(store, dumps.JOBS):
        dump = dumps.unpacked(dumps.JOBS, item, dumps.JobDump)
        key = dump.record.dedup_key
        guard = None if key is None else dumps.GuardDump(key, dump.record.job_id, until)
        found[dump.record.job_id] = Adopted(dump, guard)
    return [found[job_id] for job_id in job_ids]


class TestAdoption:
    async def test_adopted_jobs_are_the_same_in_a_queue_that_is_in_use(self, store: Store, elsewhere: Store) -> None:
        states = [state for state in Status if state is not Status.PROCESSING]
        jobs = [(await in_state(store, state, subject=state.value)).job_id for state in states]
        own = await submit(elsewhere)

        assert await elsewhere.adopt(await adoptable(store, *jobs), NOW) == [Verdict.APPLIED] * len(jobs)

        for job_id in jobs:
            assert await bare_record(elsewhere, job_id) == await bare_record(store, job_id)
        assert await status(elsewhere, own) is Status.PENDING

    async def test_an_adopted_job_is_claimed_and_ends_like_any_other(self, store: Store, elsewhere: Store) -> None:
        job_id = await submit(store)

        await elsewhere.adopt(await adoptable(store, job_id), NOW)

        claim = await claim_one(elsewhere, job_id)
        await settle(elsewhere, claim.completes("7"))
        assert (await record(elsewhere, job_id)).result == "7"

    async def test_a_job_that_is_here_already_stays_as_it_is(self, store: Store, elsewhere: Store) -> None:
        job_id = await submit(store)
        jobs = await adoptable(store, job_id)
        await elsewhere.adopt(jobs, NOW)
        await settle(elsewhere, (await claim_one(elsewhere, job_id)).completes())
        done = await record(elsewhere, job_id)

        assert await elsewhere.adopt([*jobs, *jobs], NOW) == [Verdict.STALE] * 2

        assert await record(elsewhere, job_id) == done

    async def test_a_job_of_the_archive_is_not_adopted_again(self, store: Store, elsewhere: Store) -> None:
        job = await archived(elsewhere)
        job_id = await submit(store)
        [adopted] = await adoptable(store, job_id)
        record_here = msgspec.structs.replace(adopted.job.record, job_id=job.job_id)
        again = Adopted(msgspec.structs.replace(adopted.job, record=record_here))

        assert await elsewhere.adopt([again], NOW) == [Verdict.STALE]

        assert (await record(elsewhere, job.job_id)).archived_at is not None

    async def test_a_job_that_appears_twice_in_a_call_is_stored_once(self, store: Store, elsewhere: Store) -> None:
        jobs = await adoptable(store, await submit(store))

        assert await elsewhere.adopt([*jobs, *jobs], NOW) == [Verdict.APPLIED, Verdict.STALE]

        assert (await elsewhere.counts())[Status.PENDING] == 1

    async def test_an_adopted_job_brings_its_dedup_key(self, store: Store, elsewhere: Store) -> None:
        active = await submit(store, dedup_key="active")
        done = await completed(store, dedup_key="for ever")
        await elsewhere.adopt(await adoptable(store, active), NOW)
        await elsewhere.adopt(await adoptable(store, done, until=FOREVER), NOW)

        assert await submit(elsewhere, dedup_key="active") == active
        assert await submit(elsewhere, dedup_key="for ever", now=NOW + DAY) == done

    async def test_a_dedup_key_of_another_job_here_keeps_its_job(self, store: Store, elsewhere: Store) -> None:
        own = await submit(elsewhere, dedup_key="k")
        active = await submit(store, dedup_key="k")
        await settle(store, (await claim_one(store, active)).completes())
        done = active
        active = await submit(store, dedup_key="k")

        jobs = await adoptable(store, active, done)
        assert await elsewhere.adopt(jobs, NOW) == [Verdict.TAKEN, Verdict.APPLIED]

        assert await elsewhere.statuses([active, done]) == [None, Status.COMPLETED]
        assert await submit(elsewhere, dedup_key="k") == own

    async def test_a_dedup_key_whose_job_has_ended_goes_to_the_adopted_job(
        self, store: Store, elsewhere: Store
    ) -> None:
        await completed(elsewhere, dedup_key="k")
        active = await submit(store, dedup_key="k")

        assert await elsewhere.adopt(await adoptable(store, active), NOW) == [Verdict.APPLIED]

        assert await submit(elsewhere, dedup_key="k") == active

    async def test_adopted_jobs_wait_for_one_another(self, store: Store, elsewhere: Store) -> None:
        first = await submit(store, job_type="first")
        second = await submit(store, depends_on=(first,))

        await elsewhere.adopt(await adoptable(store, second), NOW)
        await elsewhere.adopt(await adoptable(store, first), NOW)

        await settle(elsewhere, (await claim_one(elsewhere, first, slots={"first": 1})).completes())
        assert await status(elsewhere, second) is Status.PENDING

    async def test_nothing_is_adopted_into_a_queue_under_transfer(self, store: Store, elsewhere: Store) -> None:
        jobs = await adoptable(store, await submit(store))
        await elsewhere.restore("", [], COMING)

        with pytest.raises(StoreMoved):
            await elsewhere.adopt(jobs, NOW)
