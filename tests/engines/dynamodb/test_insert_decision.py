"""What an insert decides, over what it read and what its own batch brings."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.core.dependencies import Brood, TriggerRule
from backstay.core.records import Inserted, NewJob, Signal
from backstay.core.states import Counted, Event, Status
from backstay.engines.dynamodb import items
from backstay.engines.dynamodb.insert_decision import LINKED_AT_ONCE_MAX, Decided, Looked, decide, guards
from backstay.engines.dynamodb.schema import Item
from backstay.errors import DedupConflict, StoreError, UnknownDependency
from backstay.testing.conformance.factories import HOUR, NOW, new_job


def stored(status: Status = Status.PENDING, **changes: Any) -> Item:
    fields = {name: value for name, value in changes.items() if name in NewJob.__struct_fields__}
    others = {name: value for name, value in changes.items() if name not in fields}
    return {**items.new_item(new_job(**fields), status, NOW, Event.SUBMIT, "other"), **others}


def looked(*found: Item, **more: Any) -> Looked:
    return Looked(items={item["job_id"]: item for item in found}, **more)


def decided(*jobs: NewJob, seen: Looked | None = None, promised: bool = False) -> Decided:
    made = decide(jobs, seen or Looked(), NOW, "ours", promised=promised)
    if made.refusal is not None:
        raise made.refusal
    return made


class TestDependencies:
    def test_one_that_is_active_is_waited_for_and_touched(self) -> None:
        parent = stored()
        child = new_job(depends_on=(parent["job_id"],))

        made = decided(child, seen=looked(parent))

        item = made.news[child.job_id].item
        assert (item["status"], item["unmet"], item["depends_on"]) == ("waiting", 1, [parent["job_id"]])
        assert made.touched[parent["job_id"]].awaited == 1
        assert [(edge.parent, edge.met) for edge in made.news[child.job_id].edges] == [(parent["job_id"], False)]

    def test_of_a_batch_a_later_one_waits_on_an_earlier_one_which_knows_it(self) -> None:
        parent = new_job()
        child = new_job(depends_on=(parent.job_id, parent.job_id))

        made = decided(parent, child)

        assert made.touched == {}
        assert made.news[parent.job_id].item["awaited"] == 1
        assert made.news[child.job_id].item["unmet"] == 1

    def test_an_archived_one_is_met_or_broken_and_never_touched(self) -> None:
        done = {"job_id": new_job().job_id, "archived_at": 1, "ended": "completed"}
        dead = {"job_id": new_job().job_id, "archived_at": 1, "ended": "failed"}
        good, bad = new_job(depends_on=(done["job_id"],)), new_job(depends_on=(done["job_id"], dead["job_id"]))

        made = decided(good, bad, seen=looked(done, dead))

        assert [made.news[job.job_id].status for job in (good, bad)] == [Status.PENDING, Status.CANCELLED]
        assert made.news[bad.job_id].counted == [Counted.SUBMITTED, Counted.CANCELLED]
        assert made.touched == {}

    def test_an_unknown_one_is_refused_unless_the_batch_is_promised(self) -> None:
        job = new_job(depends_on=(new_job().job_id,))

        with pytest.raises(UnknownDependency):
            decided(job)

        assert decided(job, promised=True).news[job.job_id].status is Status.PENDING

    def test_many_are_linked_later_and_hold_the_job_until_then(self) -> None:
        parents = [stored() for _ in range(LINKED_AT_ONCE_MAX + 1)]
        job = new_job(depends_on=tuple(parent["job_id"] for parent in parents))

        made = decided(job, seen=looked(*parents))

        new = made.news[job.job_id]
        assert new.linked_later
        assert (new.item["needs"], new.item["unmet"], "depends_on" in new.item) == (
            len(parents),
            len(parents) + 1,
            False,
        )
        assert made.touched == {}

    def test_a_child_has_its_parents_root_and_is_counted_there(self) -> None:
        parent = stored(root_job_id="root")
        children = [new_job(parent_job_id=parent["job_id"]) for _ in range(2)]

        made = decided(*children, seen=looked(parent))

        assert {made.news[child.job_id].item["root_job_id"] for child in children} == {"root"}
        assert made.touched[parent["job_id"]].brood == Brood(2, 2)

    def test_a_child_that_ends_as_it_comes_is_not_open(self) -> None:
        parent, bad = stored(), stored(Status.FAILED)
        child = new_job(parent_job_id=parent["job_id"], depends_on=(bad["job_id"],))

        made = decided(child, seen=looked(parent, bad))

        assert made.touched[parent["job_id"]].brood == Brood(1, cancelled=1)

    def test_a_parent_of_the_same_batch_has_its_numbers_from_the_start(self) -> None:
        parent = new_job(special=True)
        children = [new_job(parent_job_id=parent.job_id) for _ in range(3)]

        made = decided(parent, *children)

        item = made.news[parent.job_id].item
        assert (item["children"], item["open"], made.touched) == (3, 3, {})

    def test_a_parent_counts_without_a_version_unless_it_is_on_its_way_to_the_archive(self) -> None:
        parent = stored()
        made = decided(new_job(parent_job_id=parent["job_id"]), seen=looked(parent))

        write = made.touched[parent["job_id"]].write()

        assert write.expression.adds == {"children": 1, "open": 1}
        assert "frozen" in str(write.expression.condition)
        assert "version" not in str(write.expression.condition)


class TestRules:
    @pytest.mark.parametrize(
        ("rule", "ends", "stands", "unmet"),
        [
            (TriggerRule.ALL_DONE, (Status.FAILED, Status.CANCELLED), Status.PENDING, None),
            (TriggerRule.ALL_DONE, (Status.FAILED, Status.PENDING), Status.WAITING, 1),
            (TriggerRule.ONE_SUCCESS, (Status.COMPLETED, Status.PENDING), Status.PENDING, None),
            (TriggerRule.ONE_SUCCESS, (Status.FAILED, Status.PENDING), Status.WAITING, 1),
            (TriggerRule.ONE_SUCCESS, (Status.FAILED, Status.CANCELLED), Status.CANCELLED, None),
            (TriggerRule.NONE_FAILED, (Status.CANCELLED, Status.COMPLETED), Status.PENDING, None),
            (TriggerRule.NONE_FAILED, (Status.FAILED, Status.PENDING), Status.CANCELLED, None),
        ],
    )
    def test_each_begins_as_its_rule_says(
        self, rule: TriggerRule, ends: tuple[Status, ...], stands: Status, unmet: int | None
    ) -> None:
        parents = [stored(end) for end in ends]
        job = new_job(depends_on=tuple(parent["job_id"] for parent in parents), trigger_rule=rule)

        item = decided(job, seen=looked(*parents)).news[job.job_id].item

        assert (item["status"], item.get("unmet"), item["rule"]) == (stands, unmet, rule)

    def test_one_with_a_rule_of_its_own_joins_nobody(self) -> None:
        leader, other = stored(job_type="embed"), stored()
        rule = TriggerRule.ONE_SUCCESS
        job = new_job(
            job_type="embed", content_hash="h", reuse_since=0, depends_on=(other["job_id"],), trigger_rule=rule
        )

        made = decided(job, seen=looked(other, leaders={("h", "embed"): leader}))

        assert "joins" not in made.news[job.job_id].item


class TestKeys:
    def test_a_key_twice_in_a_batch_stores_one_job(self) -> None:
        first, second = new_job(dedup_key="k"), new_job(dedup_key="k")

        made = decided(first, second)

        assert made.answers == [Inserted(first.job_id, Status.PENDING), first.job_id]
        assert [taken.job_id for taken in made.guarded.values()] == [first.job_id]

    @pytest.mark.parametrize(
        ("status", "until", "answers"),
        [
            (Status.PENDING, None, True),
            (Status.COMPLETED, None, False),
            (Status.COMPLETED, NOW + 1, True),
            (Status.PENDING, NOW, False),
        ],
        ids=["active", "ended", "not yet over", "over"],
    )
    def test_a_guard_stands_while_its_job_is_active_or_its_time_lasts(
        self, status: Status, until: int | None, answers: bool
    ) -> None:
        target = stored(status)
        guard = {"job_id": target["job_id"], "nonce": "n"} | ({} if until is None else {"until": until})
        job = new_job(dedup_key="k")

        made = decided(job, seen=looked(target, guards={"k": guard}))

        assert made.answers == [target["job_id"]] if answers else [Inserted(job.job_id, Status.PENDING)]

    def test_a_guard_that_is_taken_over_must_be_the_one_that_was_seen(self) -> None:
        seen = looked(guards={"k": {"job_id": "gone", "nonce": "n1"}})
        made = decided(new_job(dedup_key="k"), new_job(dedup_key="new"), seen=seen)

        over, fresh = guards(made, seen)

        assert "n1" in str(over.expression.condition)
        assert "attribute_not_exists" in str(fresh.expression.condition)

    def test_another_payload_is_a_conflict_where_that_was_asked_for(self) -> None:
        target = stored(payload="1")
        seen = looked(
            target, guards={"k": {"job_id": target["job_id"], "nonce": "n"}}, payloads={target["job_id"]: "1"}
        )
        other = new_job(dedup_key="k", payload="2", dedup_conflict_is_error=True)

        with pytest.raises(DedupConflict):
            decided(other, seen=seen)

        assert decided(other, seen=seen, promised=True).answers == [target["job_id"]]

    def test_an_id_that_is_there_answers_and_one_that_is_twice_in_a_batch_is_refused(self) -> None:
        there = stored()
        job = new_job()

        assert decided(new_job(job_id=there["job_id"], own_id=True), seen=looked(there)).answers == [there["job_id"]]
        with pytest.raises(StoreError):
            decided(job, job)

    def test_what_an_earlier_try_of_a_promised_batch_stored_is_no_existing_job(self) -> None:
        ours = {**stored(), "wid": "ours"}
        again = new_job(job_id=ours["job_id"], own_id=True)

        made = decided(again, seen=looked(ours), promised=True)

        assert made.answers == [Inserted(ours["job_id"], Status.PENDING)]
        assert made.news == {}


class TestIdenticalOnes:
    CONTENT = ("h", "embed")

    def _same(self, **changes: Any) -> NewJob:
        return new_job(**({"job_type": "embed", "content_hash": "h", "reuse_since": 0} | changes))

    def test_a_finished_one_gives_its_result(self) -> None:
        donor = stored(Status.COMPLETED, job_type="embed", completed_at=NOW, result='"x"', metrics="{}")
        job = self._same()

        made = decided(job, seen=Looked(donors={self.CONTENT: donor}))

        item = made.news[job.job_id].item
        assert (item["status"], item["result"], item["reused_from"]) == ("completed", '"x"', donor["job_id"])
        assert made.signals == {Signal.ENDED}

    def test_who_reuses_a_reused_result_names_the_job_that_ran_and_what_that_took(self) -> None:
        donor = stored(Status.COMPLETED, job_type="embed", completed_at=NOW, started_at=NOW - 30, tables={"words"})
        first, second = self._same(), self._same()

        reused = decided(first, seen=Looked(donors={self.CONTENT: donor})).news[first.job_id]
        again = decided(second, seen=Looked(donors={self.CONTENT: reused.item})).news[second.job_id]

        assert [new.saved_micros for new in (reused, again)] == [30, 30]
        assert again.counted == [Counted.SUBMITTED, Counted.COMPLETED, Counted.REUSED]
        assert (again.donor, again.item["reused_from"], again.item["rows_of"]) == (
            first.job_id,
            donor["job_id"],
            donor["job_id"],
        )

    def test_one_that_is_too_old_does_not_but_one_on_its_way_is_joined(self) -> None:
        donor = stored(Status.COMPLETED, job_type="embed", completed_at=NOW - HOUR)
        leader = stored(Status.PENDING, job_type="embed")
        job = self._same(reuse_since=NOW)

        made = decided(job, seen=Looked(donors={self.CONTENT: donor}, leaders={self.CONTENT: leader}))

        item = made.news[job.job_id].item
        assert (item["status"], item["joins"], item["joined"]) == ("waiting", leader["job_id"], leader["job_id"])
        assert made.touched[leader["job_id"]].awaited == 1

    def test_those_of_one_batch_join_its_first(self) -> None:
        jobs = [self._same() for _ in range(3)]

        made = decided(*jobs)

        assert [made.news[job.job_id].item.get("joins") for job in jobs] == [None, jobs[0].job_id, jobs[0].job_id]
        assert made.news[jobs[0].job_id].item["awaited"] == 2

    def test_one_that_is_waited_for_anyway_is_not_joined(self) -> None:
        leader = stored(Status.PENDING, job_type="embed")
        job = self._same(depends_on=(leader["job_id"],))

        made = decided(job, seen=looked(leader, leaders={self.CONTENT: leader}))

        assert "joins" not in made.news[job.job_id].item
