"""What is left of an archived job, what it still stands for, and when that ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.lifecycle import TERMINAL, Completed, Status, cancel, manual_retry
from holdfast.store.conformance.factories import (
    DAY,
    NOW,
    SECOND,
    a_policy,
    archived,
    claim_ids,
    completed,
    failed,
    new_job,
    record,
    remove_files,
    retire,
    running,
    settle,
    submit,
)
from holdfast.store.port import Store
from holdfast.store.types import FOREVER, Note, Verdict

GONE = Verdict.GONE
AT_ONCE = a_policy(0, 0, 0)
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
