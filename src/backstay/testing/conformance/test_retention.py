"""Conformance: retention, and what an archived job still answers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from backstay.core.job_fields import ARCHIVED_FIELDS
from backstay.core.lifecycle import Completed, cancel, manual_retry
from backstay.core.port import Store
from backstay.core.records import FOREVER, Keep, NewJob, Note, Query, RetentionPolicy, Retired, Verdict
from backstay.core.states import ACTIVE, TERMINAL, Status
from backstay.limits import COUNTERS_DAYS
from backstay.testing.conformance.factories import (
    DAY,
    NOW,
    SECOND,
    SPECIAL_VALUES,
    a_policy,
    archived,
    cancelled,
    claim_ids,
    completed,
    failed,
    given,
    in_state,
    new_job,
    record,
    remove_files,
    retire,
    retry_by_hand,
    running,
    settle,
    submit,
    submit_many,
    told,
)

YEARS = 10 * 365 * DAY
SPANS = {Status.COMPLETED: 7 * DAY, Status.CANCELLED: 8 * DAY, Status.FAILED: 30 * DAY}
POLICY = a_policy(SPANS[Status.COMPLETED], SPANS[Status.FAILED], SPANS[Status.CANCELLED])
AT_ONCE = a_policy(0, 0, 0)


async def _archived(store: Store, *job_ids: str) -> list[bool]:
    return [(await record(store, job_id)).archived_at is not None for job_id in job_ids]


async def _settled_at(store: Store, now: int) -> str:
    claim = await running(store, now=now)
    await settle(store, claim.completes(now=now), now=now)
    return claim.job_id


class TestRetire:
    async def test_an_archived_job_keeps_every_field_but_the_large_ones(self, store: Store) -> None:
        before = await archived(store, **SPECIAL_VALUES, depends_on=(await completed(store),))

        after = await record(store, before.job_id)

        submitted = sorted(set(NewJob.__struct_fields__) & set(ARCHIVED_FIELDS) - {"parent_job_id", "root_job_id"})
        assert told(after, submitted) == given(before, submitted)
        for name in ARCHIVED_FIELDS:
            assert getattr(after, name) == getattr(before, name), name

    @pytest.mark.parametrize("state", sorted(TERMINAL))
    async def test_an_ended_job_is_archived_after_the_span_of_its_state_and_not_before(
        self, store: Store, state: Status
    ) -> None:
        job = await in_state(store, state)

        assert await retire(store, POLICY, now=NOW + SPANS[state]) == 0
        assert await record(store, job.job_id) == job

        assert await retire(store, POLICY, now=NOW + SPANS[state] + SECOND) == 1
        assert (await record(store, job.job_id)).archived_at == NOW + SPANS[state] + SECOND

    @pytest.mark.parametrize("state", sorted(TERMINAL))
    async def test_a_state_without_a_span_is_kept_for_ever(self, store: Store, state: Status) -> None:
        jobs = {each: (await in_state(store, each)).job_id for each in sorted(TERMINAL)}
        name = f"{state.value}_micros"
        policy = RetentionPolicy(msgspec.structs.replace(POLICY.keep, **{name: None}), {}, None)

        await retire(store, policy, now=NOW + YEARS)

        assert {each: (await _archived(store, job_id))[0] for each, job_id in jobs.items()} == {
            each: each is not state for each in sorted(TERMINAL)
        }

    async def test_a_policy_without_any_span_keeps_everything(self, store: Store) -> None:
        await completed(store)

        assert await store.retire(a_policy(None, None, None), NOW + YEARS, 10, None) == Retired(0, 0, None)

    async def test_a_type_may_have_spans_of_its_own(self, store: Store) -> None:
        short = await completed(store, job_type="short")
        usual = await completed(store)
        kept = await completed(store, job_type="kept")
        by_type = {"short": Keep(DAY, DAY, DAY), "kept": Keep(None, None, None)}
        policy = a_policy(7 * DAY, by_type=by_type)

        await retire(store, policy, now=NOW + 2 * DAY)
        assert await _archived(store, short, usual, kept) == [True, False, False]

        await retire(store, policy, now=NOW + YEARS)
        assert await _archived(store, short, usual, kept) == [True, True, False]

    async def test_only_the_types_that_were_named_are_looked_at(self, store: Store) -> None:
        wanted, other = await completed(store, job_type="wanted"), await completed(store, job_type="other")

        assert await retire(store, a_policy(job_types=("wanted",)), now=NOW + YEARS) == 1

        assert await _archived(store, wanted, other) == [True, False]

    @pytest.mark.parametrize("state", sorted(ACTIVE))
    async def test_an_active_job_is_never_touched(self, store: Store, state: Status) -> None:
        before = await in_state(store, state)

        await retire(store, AT_ONCE, now=NOW + YEARS)

        assert await record(store, before.job_id) == before

    async def test_a_job_that_runs_again_is_active_and_its_time_begins_anew(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.fails())
        await store.promote(NOW + DAY, 10)
        job_id = await completed(store)
        await retry_by_hand(store, job_id, now=NOW + 20 * DAY)

        assert await retire(store, POLICY, now=NOW + 40 * DAY) == 0

        assert (await record(store, job_id)).status is Status.PENDING
        assert (await record(store, claim.job_id)).status is Status.PENDING

    async def test_its_span_counts_from_its_end_and_not_from_its_beginning(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.completes(now=NOW + 20 * DAY), now=NOW + 20 * DAY)

        assert await retire(store, POLICY, now=NOW + 26 * DAY) == 0
        assert await retire(store, POLICY, now=NOW + 28 * DAY) == 1

    async def test_what_went_is_no_longer_found_or_counted(self, store: Store) -> None:
        for state in sorted(TERMINAL):
            await in_state(store, state, subject="s")

        await retire(store, AT_ONCE, now=NOW + DAY)

        assert set((await store.counts()).values()) == {0}
        assert (await store.find(Query())).items == ()
        assert (await store.find(Query(subject="s"))).items == ()
        assert await store.dead(10) == []

    async def test_the_steps_of_a_job_go_with_it(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", "1", NOW)
        await settle(store, claim.completes())

        await retire(store, AT_ONCE, now=NOW + DAY)

        assert await store.step(claim.job_id, "charge") is None

    async def test_counters_over_their_time_go_too(self, store: Store) -> None:
        await submit(store)
        late = NOW + (COUNTERS_DAYS + 1) * DAY
        await submit(store, now=late, job_type="late")

        await retire(store, POLICY, now=late)

        assert [counter.job_type for counter in await store.counters(NOW - DAY, late + DAY)] == ["late"]


class TestTrees:
    async def test_a_tree_goes_when_all_of_it_is_over(self, store: Store) -> None:
        root = await completed(store)
        child = await completed(store, parent_job_id=root)
        grandchild = await cancelled(store, parent_job_id=child)

        assert await retire(store, POLICY, now=NOW + 9 * DAY) == 3

        assert await _archived(store, root, child, grandchild) == [True] * 3

    async def test_a_part_that_is_active_keeps_its_whole_tree(self, store: Store) -> None:
        root = await completed(store)
        child = await submit(store, parent_job_id=root)
        grandchild = await completed(store, parent_job_id=child)
        bystander = await completed(store)

        assert await retire(store, POLICY, now=NOW + YEARS) == 1

        assert await _archived(store, root, child, grandchild, bystander) == [False, False, False, True]

    async def test_a_part_that_is_kept_longer_keeps_its_whole_tree(self, store: Store) -> None:
        root = await completed(store)
        child = await failed(store, parent_job_id=root)

        assert await retire(store, POLICY, now=NOW + 9 * DAY) == 0
        assert await retire(store, POLICY, now=NOW + 31 * DAY) == 2

        assert await _archived(store, root, child) == [True, True]

    async def test_a_tree_longer_than_a_step_goes_as_a_whole(self, store: Store) -> None:
        root = await completed(store)
        children = [await completed(store, parent_job_id=root) for _ in range(5)]

        done = await store.retire(POLICY, NOW + YEARS, 2, None)

        assert done.archived == 6
        assert await _archived(store, root, *children) == [True] * 6

    async def test_a_part_that_is_retried_at_that_moment_keeps_its_tree(
        self, store: Store, second_store: Store
    ) -> None:
        for _ in range(10):
            root = await completed(store)
            child = await completed(store, parent_job_id=root)
            retry = manual_retry(await record(store, child), now=NOW, by=None, reason=None)

            await asyncio.gather(retire(store, AT_ONCE, now=NOW + DAY), second_store.apply([retry], NOW))

            gone = await _archived(store, root, child)
            assert gone in ([True, True], [False, False])


class TestPassesOfRetention:
    async def test_a_step_is_bounded_and_says_where_the_next_one_starts(self, store: Store) -> None:
        for _ in range(10):
            await completed(store, job_type="work")
        counts, after = [], None
        for _ in range(20):
            done = await store.retire(POLICY, NOW + YEARS, 3, after)
            counts.append(done.archived)
            after = done.next
            if after is None:
                break

        assert sum(counts) == 10
        assert max(counts) < 10
        assert after is None

    async def test_rows_that_have_to_stay_do_not_keep_those_behind_them(self, store: Store) -> None:
        await submit_many(store, 30)
        for _ in range(5):
            await completed(store, job_type="kept")
        over = [await completed(store, job_type="over") for _ in range(5)]
        policy = a_policy(by_type={"kept": Keep(None, None, None)})

        assert await retire(store, policy, now=NOW + YEARS, limit=4) == 5

        assert await _archived(store, *over) == [True] * 5
        assert (await store.counts())["pending"] == 30

    async def test_a_pass_over_what_is_too_young_ends(self, store: Store) -> None:
        for i in range(10):
            await _settled_at(store, NOW + i)

        assert await retire(store, POLICY, now=NOW + DAY, limit=2) == 0

    async def test_a_second_pass_finds_what_has_come_to_its_time_since(self, store: Store) -> None:
        first, second = await _settled_at(store, NOW), await _settled_at(store, NOW + 2 * DAY)

        await retire(store, POLICY, now=NOW + 8 * DAY, limit=1)
        assert await _archived(store, first, second) == [True, False]
        before = await record(store, first)

        await retire(store, POLICY, now=NOW + 10 * DAY, limit=1)
        assert await _archived(store, second) == [True]
        assert await record(store, first) == before

    async def test_two_passes_at_once_archive_each_job_once(self, store: Store, second_store: Store) -> None:
        ids = [await completed(store, job_type="work") for _ in range(20)]

        counts = await asyncio.gather(
            *(retire(each, POLICY, now=NOW + YEARS, limit=3) for each in (store, second_store))
        )

        assert sum(counts) == 20
        assert await _archived(store, *ids) == [True] * 20

    async def test_a_job_that_is_retried_at_that_moment_runs_or_is_archived_and_never_both(
        self, store: Store, second_store: Store
    ) -> None:
        ids = [await completed(store, job_type="work") for _ in range(20)]
        retries = [manual_retry(await record(store, each), now=NOW, by=None, reason=None) for each in ids]

        _, *verdicts = await asyncio.gather(
            retire(store, AT_ONCE, now=NOW + DAY, limit=4), *(second_store.apply([each], NOW) for each in retries)
        )

        for job_id, verdict in zip(ids, verdicts, strict=True):
            job = await record(store, job_id)
            if job.archived_at is None:
                assert (verdict, job.status) == ([Verdict.APPLIED], Status.PENDING)
            else:
                assert (verdict, job.status) == ([Verdict.GONE], Status.COMPLETED)


GONE = Verdict.GONE
LOST: dict[str, Any] = {  # what the archive does not keep
    "payload": "null",
    "result": None,
    "result_artifact": None,
    "logs": None,
    "log_location": None,
    "artifacts": None,
    "errors": (),
    "history": (),
    "dependencies": (),
    "dependent_jobs": (),
    "dependent_count": 0,
}


class TestArchive:
    @pytest.mark.parametrize("state", sorted(TERMINAL))
    async def test_a_read_answers_with_the_figures_of_the_job(
        self, store: Store, second_store: Store, state: Status
    ) -> None:
        root = (await archived(store, job_type="root")).job_id
        before = await archived(
            store,
            state,
            payload='{"secret":1}',
            subject="snö",
            tags='["a","b"]',
            created_by="me",
            job_stage="stems",
            root_job_id=root,
            content_hash="h",
            dedup_key="k",
            schedule="nightly",
            tick_at=NOW - 5,
            payload_version=3,
        )

        for each in (store, second_store):
            assert await record(each, before.job_id) == msgspec.structs.replace(
                before, archived_at=NOW + SECOND, **LOST
            )

    async def test_the_times_and_metrics_of_its_run_are_kept(self, store: Store) -> None:
        claim = await running(store)
        done = claim.ends(Completed('"big"'), now=NOW + 7, metrics='{"m":1}', logs='["l"]')
        await settle(store, done, now=NOW + 7)

        await retire(store, AT_ONCE, now=NOW + DAY)

        job = await record(store, claim.job_id)
        assert (job.metrics, job.processing_micros, job.attempt) == ('{"m":1}', 7, 1)
        assert (job.started_at, job.completed_at, job.worker_id) == (NOW, NOW + 7, "worker-1")
        assert (job.result, job.logs, job.history) == (None, None, ())

    async def test_why_it_failed_is_kept(self, store: Store) -> None:
        job_id = await failed(store, "KeyError", "x")

        await retire(store, AT_ONCE, now=NOW + DAY)

        assert (await record(store, job_id)).last_error == "KeyError: x"

    async def test_statuses_answer_for_archived_jobs_in_order(self, store: Store) -> None:
        gone = [(await archived(store, state)).job_id for state in (Status.FAILED, Status.COMPLETED)]
        here = await submit(store)

        found = await store.statuses([gone[1], here, new_job().job_id, gone[0]])

        assert found == [Status.COMPLETED, Status.PENDING, None, Status.FAILED]

    async def test_no_write_reaches_an_archived_job(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.completes())
        seen = await record(store, claim.job_id)
        await retire(store, AT_ONCE, now=NOW + DAY)
        before = await record(store, claim.job_id)

        retry = manual_retry(seen, now=NOW, by=None, reason=None)
        assert await store.apply([retry, claim.fails()], NOW) == [GONE, GONE]
        assert await store.extend([claim.hold], NOW + DAY, NOW) == [GONE]
        assert await store.note([Note(claim.hold, progress=0.5)], NOW) == [GONE]
        assert await store.record_step(claim.hold, "s", "1", NOW) is GONE

        assert await record(store, claim.job_id) == before
        assert await claim_ids(store, slots={claim.job.job_type: 1}) == []

    async def test_a_repeated_id_is_answered_from_the_archive(self, store: Store) -> None:
        before = await archived(store, own_id=True)

        [answer] = await store.insert([new_job(job_id=before.job_id, own_id=True)], NOW)

        assert (answer.job_id, answer.status) == (before.job_id, Status.COMPLETED)
        assert answer.existing == await record(store, before.job_id)
        assert sum((await store.counts()).values()) == 0

    async def test_a_result_that_is_gone_is_not_reused(self, store: Store) -> None:
        await archived(store, job_type="embed", content_hash="h")

        [answer] = await store.insert([new_job(job_type="embed", content_hash="h", reuse_since=0)], NOW)

        assert (answer.status, answer.reused_from) == (Status.PENDING, None)


class TestDedupOfArchived:
    async def test_a_guard_for_ever_answers_with_the_archived_job(self, store: Store) -> None:
        before = await archived(store, dedup_key="k", dedup_until=FOREVER)

        [answer] = await store.insert([new_job(dedup_key="k")], NOW + 100 * 365 * DAY)

        assert (answer.job_id, answer.existing) == (before.job_id, await record(store, before.job_id))
        assert sum((await store.counts()).values()) == 0

    async def test_a_period_holds_the_key_until_it_is_over(self, store: Store) -> None:
        before = await archived(store, dedup_key="k", dedup_until=NOW + DAY)

        assert await submit(store, dedup_key="k", now=NOW + DAY - 1) == before.job_id
        assert await submit(store, dedup_key="k", now=NOW + DAY) != before.job_id

    async def test_the_key_of_an_archived_job_that_held_it_while_active_is_free(self, store: Store) -> None:
        before = await archived(store, dedup_key="k")

        assert await submit(store, dedup_key="k") != before.job_id

    async def test_a_key_that_passed_to_another_job_stays_with_that_one(self, store: Store) -> None:
        await completed(store, job_type="old", dedup_key="k")
        second = await submit(store, dedup_key="k")

        await retire(store, a_policy(0, 0, 0, archive=0), now=NOW + DAY)
        await remove_files(store)
        await retire(store, a_policy(0, 0, 0, archive=0), now=NOW + 2 * DAY)

        assert await submit(store, dedup_key="k") == second

    async def test_a_payload_that_nobody_knows_any_more_is_no_conflict(self, store: Store) -> None:
        before = await archived(store, dedup_key="k", dedup_until=FOREVER, payload="1")

        assert await submit(store, dedup_key="k", payload="1", dedup_conflict_is_error=True) == before.job_id


class TestDependingOnArchived:
    async def test_a_completed_one_is_met(self, store: Store) -> None:
        parent = await archived(store)

        [answer] = await store.insert([new_job(depends_on=(parent.job_id,))], NOW)

        assert answer.status is Status.PENDING
        assert await claim_ids(store) == [answer.job_id]

    @pytest.mark.parametrize("state", [Status.FAILED, Status.CANCELLED])
    @pytest.mark.parametrize(("policy", "target"), [("cancel", Status.CANCELLED), ("fail", Status.FAILED)])
    async def test_one_that_ended_badly_is_broken(
        self, store: Store, state: Status, policy: str, target: Status
    ) -> None:
        parent = await archived(store, state)

        [answer] = await store.insert([new_job(depends_on=(parent.job_id,), on_dependency_failure=policy)], NOW)

        assert answer.status is target

    async def test_a_dependent_still_waits_for_the_others(self, store: Store) -> None:
        done, open_one = await running(store, job_type="done"), await running(store)
        child = await submit(store, depends_on=(done.job_id, open_one.job_id))
        await settle(store, done.completes())
        await retire(store, a_policy(0, 0, 0, archive=0, job_types=("done",)), now=NOW + DAY)
        await remove_files(store)
        await retire(store, a_policy(0, 0, 0, archive=0, job_types=("done",)), now=NOW + 2 * DAY)
        assert await store.statuses([done.job_id, child]) == [None, Status.WAITING]

        await settle(store, open_one.completes())

        assert await claim_ids(store) == [child]

    @pytest.mark.parametrize(("state", "verdict"), [(Status.COMPLETED, "applied"), (Status.FAILED, "blocked")])
    async def test_a_retry_by_hand_asks_the_archive_too(self, store: Store, state: Status, verdict: str) -> None:
        parent = await running(store, max_attempts=1, job_type="parent")
        child = await submit(store, depends_on=(parent.job_id,))
        await settle(store, parent.completes() if state is Status.COMPLETED else parent.fails())
        if state is Status.COMPLETED:
            await settle(store, cancel(await record(store, child), by=None, reason=None))
        await retire(store, a_policy(0, 0, 0, job_types=("parent",)), now=NOW + DAY)

        retry = manual_retry(await record(store, child), now=NOW, by=None, reason=None)

        assert await store.apply([retry], NOW) == [Verdict(verdict)]


class TestEndOfTheArchive:
    async def test_a_row_of_the_archive_goes_after_its_own_time(self, store: Store) -> None:
        job = await archived(store)
        policy = a_policy(archive=30 * DAY)

        await retire(store, policy, now=NOW + 30 * DAY)
        assert await store.statuses([job.job_id]) == [Status.COMPLETED]

        done = await store.retire(policy, NOW + 31 * DAY, 10, None)

        assert (done.archived, done.dropped) == (0, 1)
        assert await store.get([job.job_id]) == [None]
        assert await store.statuses([job.job_id]) == [None]

    async def test_without_a_time_of_its_own_it_stays_for_ever(self, store: Store) -> None:
        job = await archived(store)

        await retire(store, a_policy(archive=None), now=NOW + 100 * 365 * DAY)

        assert await store.statuses([job.job_id]) == [Status.COMPLETED]

    async def test_what_was_dropped_no_longer_guards_its_key(self, store: Store) -> None:
        job = await archived(store, dedup_key="k", dedup_until=FOREVER)

        await retire(store, a_policy(archive=DAY), now=NOW + 3 * DAY)

        second = await submit(store, dedup_key="k", dedup_until=FOREVER)
        assert second != job.job_id
        assert await submit(store, dedup_key="k") == second

    async def test_a_pass_drops_all_that_is_over_however_small_its_steps(self, store: Store) -> None:
        ids = [await completed(store, job_type="work") for _ in range(7)]
        await retire(store, AT_ONCE, now=NOW + DAY)
        await remove_files(store)
        kept = await submit(store)

        await retire(store, a_policy(archive=DAY), now=NOW + 3 * DAY, limit=2)

        assert await store.statuses([*ids, kept]) == [None] * 7 + [Status.PENDING]


class TestFilesOfArchived:
    @pytest.mark.parametrize("field", ["log_location", "artifacts", "result_artifact"])
    async def test_a_job_with_files_is_named_until_they_are_gone(self, store: Store, field: str) -> None:
        claim = await running(store)
        await settle(store, msgspec.structs.replace(claim.completes(), **{field: '{"uri":"x"}'}))
        assert await store.with_files(10) == []

        await retire(store, AT_ONCE, now=NOW + DAY)
        assert await store.with_files(10) == [claim.job_id]

        await store.cleaned([claim.job_id])
        assert await store.with_files(10) == []
        assert (await record(store, claim.job_id)).status is Status.COMPLETED

    async def test_a_job_whose_last_attempt_names_none_may_have_files_of_others(self, store: Store) -> None:
        claim = await running(store, max_attempts=1)
        await settle(store, claim.fails())

        await retire(store, AT_ONCE, now=NOW + DAY)

        assert await store.with_files(10) == [claim.job_id]

    async def test_no_more_than_asked_are_named(self, store: Store) -> None:
        ids = []
        for _ in range(3):
            claim = await running(store)
            await settle(store, claim.ends(Completed("1"), log_location="/log"))
            ids.append(claim.job_id)
        await retire(store, AT_ONCE, now=NOW + DAY)

        first = await store.with_files(2)
        await store.cleaned(first)

        assert len(first) == 2
        assert sorted([*first, *await store.with_files(2)]) == sorted(ids)

    async def test_the_archive_keeps_a_row_until_its_files_are_gone(self, store: Store) -> None:
        claim = await running(store)
        await settle(store, claim.ends(Completed("1"), log_location="/log"))
        await retire(store, AT_ONCE, now=NOW + DAY)
        policy = a_policy(archive=DAY)

        await retire(store, policy, now=NOW + 9 * DAY)
        assert await store.with_files(10) == [claim.job_id]

        await store.cleaned([claim.job_id])
        await retire(store, policy, now=NOW + 9 * DAY)
        assert await store.get([claim.job_id]) == [None]
