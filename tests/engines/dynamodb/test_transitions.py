"""The moves of items, against the SQLite store: the same changes on both make equal records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backstay.core.dependencies import Awaits, Brood, TriggerRule
from backstay.core.dependencies import moved as brood_of_move
from backstay.core.lifecycle import Raised, Snoozed, edges, reprioritise
from backstay.core.records import JobRecord, NewJob, Transition, Verdict
from backstay.core.states import Event, Status
from backstay.engines.dynamodb import items, schema, transitions
from backstay.engines.dynamodb.attributes import Form
from backstay.engines.dynamodb.expressions import above, apply, wire
from backstay.engines.dynamodb.schema import Item
from backstay.engines.sqlite.store import SQLiteStore
from backstay.limits import HISTORY_HEAD, HISTORY_SLACK, HISTORY_TAIL
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    Claim,
    an_error,
    cancelled,
    claim_again,
    completed,
    failed,
    in_state,
    new_job,
    record,
    request,
    running,
    settle,
    submit,
    transition,
)

APPLIED = [
    (event, source, target)
    for event, source, target in edges()
    if source is not None and event not in (Event.CLAIM, Event.DUE, Event.RELEASE, Event.REUSE)
]
FULL: dict[str, Any] = {
    "reason": "because",
    "by": "me",
    "failures": 2,
    "snoozes": 3,
    "give_backs": 0,
    "progress": 0.5,
    "stage": "half",
    "logs": '["l"]',
    "log_location": "/log",
    "metrics": '{"m":1}',
    "artifacts": '{"a":1}',
    "priority": 7,
    "scheduled_for": NOW + 9,
}

RENAMED = {
    "trigger_rule": "rule",
    "open_children": "open",
    "failed_children": "bad",
    "cancelled_children": "left",
}
FOR_ALL = Awaits(TriggerRule.ALL_SUCCESS, "fail")


def decided(event: Event, source: Status, extras: dict[str, Any]) -> dict[str, Any]:
    """Of these extras, those that core/lifecycle.py says: all completions say the same progress, and one who edits a
    running job leaves alone what its holder writes."""
    if event is Event.COMPLETE:
        return {**extras, "progress": 1.0, "stage": "complete"}
    if source is Status.PROCESSING and event in (Event.REPRIORITISE, Event.SKIP_TICK):
        return {name: value for name, value in extras.items() if name in ("priority", "by", "reason")}
    return extras


WITH_EXTRAS = [
    (event, source, target, decided(event, source, extras))
    for event, source, target in APPLIED
    for extras in ({}, FULL, {"error": an_error()}, {"clear_result": True}, {"result": "1"})
    if "result" not in extras or target is Status.COMPLETED  # only such a job has one
]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(f"sqlite:///{tmp_path}/reference.db")
    await opened.open()
    yield opened
    await opened.close()


def as_item(job: JobRecord, token: str | None = None) -> Item:
    """An item that reads as this record."""
    skipped = ("dependencies", "dependent_jobs", "dependent_count", "processing_micros", "parked", "archived_at")
    usual = {field.name: field.default for field in msgspec.structs.fields(JobRecord)}
    item: Item = {
        name: value
        for name, value in msgspec.structs.asdict(job).items()
        if name not in skipped and value is not None and value != usual[name]
    }
    for name, kept in RENAMED.items():
        if name in item:
            item[kept] = item.pop(name)
    item["status"], item["version"] = job.status.value, job.version
    item["history"] = "\n".join(msgspec.json.encode(event).decode() for event in job.history)
    if job.errors:
        item["errors"] = msgspec.json.encode(job.errors).decode()
    if job.dependencies:
        item["depends_on"], item["unmet"] = list(job.dependencies), len(job.dependencies)
    if token is not None:
        item["claim_token"] = token
    return item


def as_record(item: Item, like: JobRecord) -> JobRecord:
    return items.record(item, {}, items.Edges(like.dependencies, like.dependent_jobs, like.dependent_count))


def moved_by(item: Item, t: Transition, now: int = NOW) -> Item:
    moved = transitions.applied(item, t, now, "wid")
    assert isinstance(moved, transitions.Moved)
    return moved.item


class TestAgainstSQLite:
    @pytest.mark.parametrize(("event", "source", "target", "extras"), WITH_EXTRAS)
    async def test_every_transition_makes_the_same_record(
        self, store: SQLiteStore, event: Event, source: Status, target: Status, extras: dict[str, Any]
    ) -> None:
        before = await in_state(store, source)
        if event is Event.WAIT_FOR_CHILDREN:
            extras = {**extras, "awaits": FOR_ALL, "join": "merge", "waits": 1}
            await submit(store, parent_job_id=before.job_id)
            before = await record(store, before.job_id)
        change = transition(before, event, target, **{"clear_result": source is Status.COMPLETED, **extras})

        after = moved_by(as_item(before), change, NOW + 5)
        await settle(store, change, now=NOW + 5)

        assert as_record(after, before) == await record(store, before.job_id)

    async def test_a_claim_and_a_promotion_make_the_same_record(self, store: SQLiteStore) -> None:
        before = await in_state(store, Status.SCHEDULED)
        item = transitions.promoted(as_item(before), NOW + HOUR, "wid")
        await store.promote(NOW + HOUR, 10)
        assert as_record(item, before) == await record(store, before.job_id)

        asked = request()
        item = transitions.claimed(item, asked, NOW + HOUR, "wid")
        await store.claim(asked, NOW + HOUR)
        assert as_record(item, before) == await record(store, before.job_id)

    @pytest.mark.parametrize("policy", ["cancel", "fail"])
    @pytest.mark.parametrize("end", [completed, failed, cancelled])
    @pytest.mark.parametrize("delay", [0, HOUR])
    async def test_a_release_makes_the_same_record(self, store: SQLiteStore, end: Any, policy: str, delay: int) -> None:
        parent = await running(store, max_attempts=1)
        child_id = await submit(
            store, depends_on=(parent.job_id,), on_dependency_failure=policy, scheduled_for=NOW + delay
        )
        before = await record(store, child_id)
        outcome = {completed: Status.COMPLETED, failed: Status.FAILED, cancelled: Status.CANCELLED}[end]
        seen = await record(store, parent.job_id)
        how = {Status.COMPLETED: Event.COMPLETE, Status.FAILED: Event.EXHAUST, Status.CANCELLED: Event.CANCEL}[outcome]
        await settle(store, transition(seen, how, outcome), now=NOW + 5)

        moved = transitions.released(as_item(before), parent.job_id, outcome, None, NOW + 5, "wid")

        assert as_record(moved.item, before) == await record(store, child_id)
        assert moved.ended == (outcome is not Status.COMPLETED)

    @pytest.mark.parametrize("succeeds", [True, False])
    async def test_one_that_joined_makes_the_same_record(self, store: SQLiteStore, succeeds: bool) -> None:
        leader = await running(store, job_type="embed", content_hash="h", max_attempts=1)
        joined = await submit(store, job_type="embed", content_hash="h", reuse_since=0)
        before = await record(store, joined)
        await settle(store, leader.completes('"x"', metrics='{"m":1}') if succeeds else leader.fails())

        item = {**as_item(before), "joins": leader.job_id}
        donor = as_item(await record(store, leader.job_id))
        moved = transitions.released(item, leader.job_id, Status(donor["status"]), donor, NOW, "wid")

        assert as_record(moved.item, before) == await record(store, joined)

    @pytest.mark.parametrize("rule", [TriggerRule.ALL_DONE, TriggerRule.ALL_SUCCESS])
    @pytest.mark.parametrize("policy", ["cancel", "fail"])
    @pytest.mark.parametrize("end", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
    async def test_a_parent_that_goes_on_makes_the_same_record(
        self, store: SQLiteStore, rule: TriggerRule, policy: str, end: Status
    ) -> None:
        parent = await running(store)
        child = await running(store, parent_job_id=parent.job_id)
        await settle(store, parent.waits(rule, policy))
        before = await record(store, parent.job_id)
        await settle(store, child.ends_as(end), now=NOW + 5)

        moved = transitions.joined(as_item(before), brood_of_move(Status.PROCESSING, end), NOW + 5, "wid")

        assert moved is not None
        assert as_record(moved.item, before) == await record(store, parent.job_id)
        assert moved.ended == (rule is TriggerRule.ALL_SUCCESS and end is not Status.COMPLETED)

    async def test_a_wait_for_nobody_makes_the_same_record(self, store: SQLiteStore) -> None:
        parent = await running(store)
        item = as_item(await record(store, parent.job_id), parent.token)
        await settle(store, parent.waits(now=NOW + 5), now=NOW + 5)

        after = moved_by(item, parent.waits(now=NOW + 5), NOW + 5)

        assert as_record(after, await record(store, parent.job_id)) == await record(store, parent.job_id)

    async def test_a_new_job_and_a_reused_one_make_the_same_record(self, store: SQLiteStore) -> None:
        fields: dict[str, Any] = {"subject": "s", "tags": '["a"]', "created_by": "me", "payload_version": 3}
        plain = new_job(job_type="embed", content_hash="h", fairness_key="t", fairness_weight=5, **fields)
        await store.insert([plain], NOW)
        assert items.record(_begun(plain, Status.PENDING), {}) == await record(store, plain.job_id)

        await completed(store, '"x"', job_type="other", content_hash="h")
        same = new_job(job_type="other", content_hash="h", reuse_since=0, dedup_key="k")
        [answer] = await store.insert([same], NOW + 5)
        donor = as_item(await record(store, str(answer.reused_from)))
        item = items.new_item(same, Status.COMPLETED, NOW + 5, Event.REUSE, "wid")

        assert items.record(transitions.reused(item, donor, NOW + 5), {}) == await record(store, same.job_id)

    async def test_a_long_history_is_trimmed_alike(self, store: SQLiteStore) -> None:
        claim = await running(store)
        item = as_item(await record(store, claim.job_id), claim.token)
        for _ in range((HISTORY_HEAD + HISTORY_TAIL + HISTORY_SLACK) // 3 + 10):
            back = msgspec.structs.replace(claim.gives_back(), give_backs=1)
            await settle(store, back)
            item = moved_by(item, back)
            claim = await claim_again(store, claim)
            item = transitions.claimed(item, request(token=claim.token), NOW, "wid")
            edit = reprioritise(await record(store, claim.job_id), priority=9, by=None, reason=None)
            await settle(store, edit)
            item = moved_by(item, edit)

        assert as_record(item, await record(store, claim.job_id)) == await record(store, claim.job_id)


def _begun(job: NewJob, status: Status) -> Item:
    return items.new_item(job, status, NOW, Event.SUBMIT, "wid")


class TestVerdicts:
    async def test_guards_judge_as_those_of_sqlite_do(self, store: SQLiteStore) -> None:
        claim = await running(store)
        item = as_item(await record(store, claim.job_id), claim.token)
        right = claim.completes()
        wrong = [
            msgspec.structs.replace(right, **guard)
            for guard in ({"attempt": 2}, {"token": "other"}, {"version": 9}, {"lease": 9})
        ]

        assert [transitions.applied(item, t, NOW, "wid") for t in wrong] == [Verdict.STALE] * 4
        assert transitions.applied(None, right, NOW, "wid") is Verdict.GONE
        assert (
            transitions.applied({"job_id": "x", "archived_at": 1, "ended": "completed"}, right, NOW, "w")
            is Verdict.GONE
        )

    async def test_an_earlier_try_of_the_same_settlement_is_recognised_and_another_is_not(
        self, store: SQLiteStore
    ) -> None:
        claim = await running(store)
        done = moved_by(as_item(await record(store, claim.job_id), claim.token), claim.completes())

        assert transitions.applied(done, claim.completes(), NOW, "wid") is Verdict.APPLIED
        assert transitions.applied(done, claim.fails(), NOW, "wid") is Verdict.STALE


class TestWhatIsWritten:
    async def test_what_notes_may_have_changed_is_written_whatever_was_remembered(self, store: SQLiteStore) -> None:
        claim, item = await _remembered(store)
        noted = {**item, "progress": 0.7, "stage": "far", "logs": '["old"]'}
        moved = transitions.applied(item, claim.gives_back(), NOW, "wid")
        assert isinstance(moved, transitions.Moved)

        stored = apply(transitions.written(moved).expression, noted)

        assert "progress" not in stored
        assert (stored["stage"], stored["logs"]) == ("requeued", '["old"]')

    async def test_a_job_that_is_parked_meanwhile_is_not_parked_when_it_leaves_the_line(
        self, store: SQLiteStore
    ) -> None:
        before = await in_state(store, Status.PENDING)
        moved = transitions.applied(as_item(before), transition(before, Event.CANCEL, Status.CANCELLED), NOW, "wid")
        assert isinstance(moved, transitions.Moved)

        assert "parked" not in apply(transitions.written(moved).expression, {**as_item(before), "parked": "c"})

    @pytest.mark.parametrize(
        ("outcome", "rests_on"),
        [(Raised(an_error()), ()), (Snoozed(HOUR), ())],
        ids=["retry", "snooze"],
    )
    async def test_a_settlement_that_ends_nothing_rests_on_the_version_alone(
        self, store: SQLiteStore, outcome: Any, rests_on: tuple[str, ...]
    ) -> None:
        claim, item = await _remembered(store)

        moved = transitions.applied(item, claim.ends(outcome), NOW, "wid")

        assert isinstance(moved, transitions.Moved)
        assert moved.rests_on == rests_on

    async def test_an_end_rests_on_who_awaits_it_and_a_rescue_on_the_lease(self, store: SQLiteStore) -> None:
        claim, item = await _remembered(store)
        rescued = transition(
            await record(store, claim.job_id), Event.RESCUE, Status.FAILED, lease=item["lease_expires_at"]
        )

        ended, lost = (transitions.applied(item, t, NOW, "wid") for t in (claim.completes(), rescued))

        assert isinstance(ended, transitions.Moved)
        assert isinstance(lost, transitions.Moved)
        assert ended.rests_on == ("awaited",)
        assert set(lost.rests_on) == {"awaited", "lease_expires_at"}

    async def test_a_wait_rests_on_no_more_than_that_one_is_open(self, store: SQLiteStore) -> None:
        claim, item = await _remembered(store)
        brings, has, has_none = (
            transitions.applied({**item, **numbers}, claim.waits(), NOW, "wid", brood)
            for numbers, brood in (({}, Brood(2, 2)), ({"children": 9, "open": 5}, Brood()), ({}, Brood(1)))
        )

        for moved in (brings, has, has_none):
            assert isinstance(moved, transitions.Moved)
        assert isinstance(brings, transitions.Moved)
        assert isinstance(has, transitions.Moved)
        assert isinstance(has_none, transitions.Moved)
        assert (brings.only_if, brings.rests_on) == (None, ())
        assert (has.only_if, has.rests_on) == (above("open", 0), ())
        assert (has_none.rests_on, has_none.item["status"]) == (transitions.NUMBERS, "pending")

    async def test_who_waits_for_children_is_not_let_go_by_a_dependency(self, store: SQLiteStore) -> None:
        claim, item = await _remembered(store)
        waiting = moved_by({**item, "open": 1, "rule": "one_success"}, claim.waits())

        late = transitions.released(waiting, "late", Status.COMPLETED, None, NOW, "wid")

        assert late.item is late.was

    async def test_a_hold_is_taken_away_once(self, store: SQLiteStore) -> None:
        before = await in_state(store, Status.WAITING)
        held = {**as_item(before), "unmet": 1, "linking": 1}

        let = transitions.let_go(held, NOW, "wid")

        assert (let.item["status"], "linking" in let.item) == ("pending", False)
        for other in (
            {**held, "awaits": Awaits(TriggerRule.ALL_DONE, "fail").stored},
            {name: held[name] for name in held if name != "linking"},
        ):
            assert transitions.let_go(other, NOW, "wid").item is other

    @pytest.mark.parametrize(("event", "source", "target"), APPLIED)
    async def test_every_index_attribute_is_set_or_removed(
        self, store: SQLiteStore, event: Event, source: Status, target: Status
    ) -> None:
        before = await in_state(store, source)
        moved = transitions.applied(as_item(before), transition(before, event, target), NOW, "wid")
        assert isinstance(moved, transitions.Moved)

        body = wire(transitions.written(moved), "jobs", Form(4))

        named = set(body["ExpressionAttributeNames"].values())
        assert named >= set(schema.DERIVED)


async def _remembered(store: SQLiteStore) -> tuple[Claim, Item]:
    claim = await running(store)
    return claim, as_item(await record(store, claim.job_id), claim.token)
