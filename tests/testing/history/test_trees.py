"""Rules and trees: histories that keep their invariants, and that break them."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.records import JobRecord
from backstay.testing.history import Edge, digest
from backstay.testing.history.evidence import Item
from tests.testing.history.histories import Calls, job, judged

DONE, FAILED, CANCELLED = "submit, claim, complete", "submit, claim, exhaust", "submit, cancel pending"
RAN, ENDED = "submit waiting, release, claim, complete", "submit waiting, release to cancelled"
BROUGHT = Item(job_id="c", payload=digest("{}"), scheduled_for=1_000, parent="p")


# S12: rules


@pytest.mark.parametrize(
    ("rule", "parents", "child", "broken"),
    [
        ("all_success", [DONE, DONE], RAN, False),
        ("all_success", [DONE, DONE], ENDED, True),
        ("all_success", [DONE, FAILED], RAN, True),
        ("all_done", [FAILED, CANCELLED], RAN, False),
        ("all_done", [DONE, "submit"], RAN, True),
        ("all_done", [FAILED, DONE], ENDED, True),
        ("one_success", [DONE, FAILED], RAN, False),
        ("one_success", [DONE, "submit"], RAN, False),
        ("one_success", [FAILED, CANCELLED], RAN, True),
        ("one_success", [FAILED, CANCELLED], ENDED, False),
        ("one_success", [FAILED, DONE], ENDED, True),
        ("one_success", [DONE, "submit"], "submit waiting", True),
        ("none_failed", [DONE, CANCELLED], RAN, False),
        ("none_failed", [DONE, CANCELLED], ENDED, True),
        ("none_failed", [CANCELLED, FAILED], RAN, True),
        ("none_failed", [CANCELLED, FAILED], ENDED, False),
    ],
)
def test_s12_each_rule_says_what_may_start_and_what_must_end(
    rule: str, parents: list[str], child: str, broken: bool
) -> None:
    records = [job(f"p{n}", life, max_attempts=1) for n, life in enumerate(parents)]
    names = tuple(record.job_id for record in records)
    records.append(job("c", child, dependencies=names, trigger_rule=rule))

    assert judged(records) == ({"S12"} if broken else set())


def test_s12_a_job_that_waits_again_and_is_cancelled_again_is_right() -> None:
    again = job(
        "c", "submit waiting, release to cancelled, retry by hand to wait, release to cancelled", dependencies=("p",)
    )

    assert judged([job("p", FAILED, max_attempts=1), again], edges=[Edge("p", "c", True)]) == set()


# S22 to S24: trees


def _family(parent: str, *children: str, **says: Any) -> list[JobRecord]:
    records = [job(f"c{n}", life, parent_job_id="p", max_attempts=1) for n, life in enumerate(children)]
    return [job("p", parent, **({"children": len(children)} | says)), *records]


def test_s22_a_parent_whose_numbers_are_those_of_its_children_is_right() -> None:
    family = _family(DONE, DONE, FAILED, CANCELLED, "submit", open_children=1, failed_children=1, cancelled_children=1)

    assert judged(family) == set()


@pytest.mark.parametrize("says", [{"open_children": 1}, {"failed_children": 0}, {"children": 3}], ids=str)
def test_s22_a_parent_whose_numbers_are_others_is_reported(says: dict[str, int]) -> None:
    family = _family(DONE, DONE, FAILED, **({"failed_children": 1} | says))

    assert judged(family) == {"S22"}


def test_s22_while_a_run_goes_on_children_may_be_on_their_way() -> None:
    assert judged(_family(DONE, DONE, open_children=1), ended=False) == set()


def test_s23_a_child_of_parts_that_no_settlement_named_is_reported() -> None:
    calls = Calls()
    calls.submit("p")
    calls.claim("p")
    calls.stage("p", (BROUGHT,))
    calls.apply("p", "retry")
    parent = job("p", "submit, claim, retry", children=1, open_children=1)

    assert "S23" in judged([parent, job("c", "submit", parent_job_id="p")], calls)
    assert judged([job("p", "submit, claim, retry")], calls) == set()


def test_s24_one_that_waits_for_children_that_have_all_ended_is_reported() -> None:
    says: dict[str, Any] = {"awaits": Awaits(TriggerRule.ALL_DONE, "fail").stored, "waits": 1}

    assert judged(_family("submit, claim, wait", DONE, "submit", open_children=1, **says)) == set()
    assert judged(_family("submit, claim, wait", DONE, DONE, **says)) == {"S24"}
    assert judged(_family("submit, claim, wait", DONE, DONE, **says), ended=False) == set()


def _went_on(*, early: bool) -> tuple[list[JobRecord], Calls]:
    calls = Calls()
    calls.submit("p")
    calls.claim("p")
    calls.apply("p", "wait", jobs=(BROUGHT,))
    calls.claim("c")
    if early:
        calls.claim("p", 2)
    calls.apply("c", "complete")
    if not early:
        calls.claim("p", 2)
    calls.apply("p", "complete", 2)
    parent = job("p", "submit, claim, wait, release, claim, complete", children=1)
    return [parent, job("c", DONE, parent_job_id="p")], calls


def test_s24_one_that_goes_on_before_its_child_has_ended_is_reported() -> None:
    assert judged(*_went_on(early=False)) == set()
    assert judged(*_went_on(early=True)) == {"S24"}
