"""trees.py: how jobs wait for one another, as truth tables."""

import json
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.core.dependencies import (
    Again,
    Awaits,
    Began,
    Brood,
    Cycle,
    TriggerRule,
    again,
    began,
    breaker,
    joined,
    moved,
    order,
    released,
)
from backstay.core.states import ACTIVE, TERMINAL, Status

NOW = 1_700_000_000_000_000
ALL_SUCCESS, ALL_DONE, ONE_SUCCESS, ONE_FAILED, NONE_FAILED = (
    TriggerRule.ALL_SUCCESS,
    TriggerRule.ALL_DONE,
    TriggerRule.ONE_SUCCESS,
    TriggerRule.ONE_FAILED,
    TriggerRule.NONE_FAILED,
)
WAITS, STARTS, BREAKS = "waits", "starts", "breaks"


def after(rule: TriggerRule, outcome: Status | None, unmet: int, **changes: Any) -> Status | None:
    asked: dict[str, Any] = {"on_failure": "cancel", "scheduled_for": NOW, "now": NOW} | changes
    return released(rule=rule, outcome=outcome, unmet=unmet, **asked)


# What a waiting job does when one that it depends on has ended, with others left and as the last.
RELEASES = {
    (ALL_SUCCESS, Status.COMPLETED): (WAITS, STARTS),
    (ALL_SUCCESS, Status.FAILED): (BREAKS, BREAKS),
    (ALL_SUCCESS, Status.CANCELLED): (BREAKS, BREAKS),
    (ALL_SUCCESS, None): (WAITS, STARTS),
    (ALL_DONE, Status.COMPLETED): (WAITS, STARTS),
    (ALL_DONE, Status.FAILED): (WAITS, STARTS),
    (ALL_DONE, Status.CANCELLED): (WAITS, STARTS),
    (ALL_DONE, None): (WAITS, STARTS),
    (ONE_SUCCESS, Status.COMPLETED): (STARTS, STARTS),
    (ONE_SUCCESS, Status.FAILED): (WAITS, BREAKS),
    (ONE_SUCCESS, Status.CANCELLED): (WAITS, BREAKS),
    (ONE_SUCCESS, None): (WAITS, BREAKS),
    (ONE_FAILED, Status.COMPLETED): (WAITS, BREAKS),
    (ONE_FAILED, Status.FAILED): (STARTS, STARTS),
    (ONE_FAILED, Status.CANCELLED): (WAITS, BREAKS),
    (ONE_FAILED, None): (WAITS, BREAKS),
    (NONE_FAILED, Status.COMPLETED): (WAITS, STARTS),
    (NONE_FAILED, Status.FAILED): (BREAKS, BREAKS),
    (NONE_FAILED, Status.CANCELLED): (WAITS, STARTS),
    (NONE_FAILED, None): (WAITS, STARTS),
}


def test_the_table_of_releases_is_whole() -> None:
    assert set(RELEASES) == set(product(TriggerRule, [*TERMINAL, None]))


@pytest.mark.parametrize(("rule", "outcome"), RELEASES)
def test_a_waiting_job_moves_on_as_its_rule_says(rule: TriggerRule, outcome: Status | None) -> None:
    for unmet, does in zip((1, 0), RELEASES[rule, outcome], strict=True):
        on_time = {WAITS: None, STARTS: Status.PENDING, BREAKS: Status.CANCELLED}[does]
        later = {WAITS: None, STARTS: Status.SCHEDULED, BREAKS: Status.CANCELLED}[does]
        strict = {WAITS: None, STARTS: Status.PENDING, BREAKS: Status.FAILED}[does]
        assert after(rule, outcome, unmet) is on_time
        assert after(rule, outcome, unmet, scheduled_for=NOW + 1) is later
        assert after(rule, outcome, unmet, on_failure="fail") is strict


# How a job stands to what it depends on: completed, failed, cancelled and active ones.
STANDINGS: dict[TriggerRule, dict[tuple[int, int, int, int], Again]] = {
    ALL_SUCCESS: {
        (0, 0, 0, 0): Again(),
        (2, 0, 0, 0): Again(),
        (1, 0, 0, 2): Again(unmet=2),
        (1, 1, 0, 2): Again(blocked=True),
        (1, 0, 1, 2): Again(blocked=True),
        (0, 1, 1, 0): Again(blocked=True),
    },
    NONE_FAILED: {
        (0, 0, 0, 0): Again(),
        (1, 0, 1, 0): Again(),
        (0, 0, 2, 0): Again(),
        (1, 0, 1, 2): Again(unmet=2),
        (1, 1, 0, 2): Again(blocked=True),
    },
    ALL_DONE: {
        (0, 0, 0, 0): Again(),
        (0, 2, 1, 0): Again(),
        (1, 2, 1, 3): Again(unmet=3),
    },
    ONE_SUCCESS: {
        (0, 0, 0, 0): Again(),
        (1, 1, 1, 5): Again(),
        (0, 1, 1, 5): Again(unmet=5),
        (0, 0, 0, 5): Again(unmet=5),
        (0, 1, 0, 0): Again(blocked=True),
        (0, 0, 1, 0): Again(blocked=True),
    },
}
standings = [(rule, counts, stands) for rule, table in STANDINGS.items() for counts, stands in table.items()]


@pytest.mark.parametrize("active", sorted(ACTIVE))
@pytest.mark.parametrize(("rule", "counts", "stands"), standings)
def test_whether_a_job_may_run_follows_from_how_those_it_depends_on_stand(
    rule: TriggerRule, counts: tuple[int, int, int, int], stands: Again, active: Status
) -> None:
    names = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, active)
    outcomes = dict(zip(names, counts, strict=True))

    assert again(rule=rule, outcomes=outcomes) == stands
    for on_failure, due in product(("cancel", "fail"), (NOW, NOW + 1)):
        made = began(rule=rule, outcomes=outcomes, on_failure=on_failure, scheduled_for=due, now=NOW)
        if stands.blocked:
            broken = Status.FAILED if on_failure == "fail" else Status.CANCELLED
            assert made == Began(Status.WAITING, 0, broken)
        elif stands.unmet:
            assert made == Began(Status.WAITING, stands.unmet)
        else:
            assert made == Began(Status.SCHEDULED if due > NOW else Status.PENDING)


ends = st.sampled_from(sorted(TERMINAL))


@given(st.sampled_from(TriggerRule), st.lists(ends, max_size=6), st.lists(ends, max_size=6))
def test_it_makes_no_difference_whether_they_ended_before_or_after_the_job_came(
    rule: TriggerRule, before: list[Status], later: list[Status]
) -> None:
    def stands(ended: list[Status], active: int) -> Began:
        outcomes = {status: ended.count(status) for status in TERMINAL} | {Status.PENDING: active}
        return began(rule=rule, outcomes=outcomes, on_failure="cancel", scheduled_for=NOW, now=NOW)

    made = stands(before, len(later))
    reached = made.then or (None if made.unmet else made.status)
    unmet = made.unmet
    for outcome in later:
        if reached is None:
            unmet -= 1
            reached = after(rule, outcome, unmet)
    at_once = stands([*before, *later], 0)
    assert reached in (at_once.then or at_once.status, *([Status.PENDING] if rule is ONE_SUCCESS else []))
    assert reached is not None


# Children

BROODS = {
    Brood(3, 1, 0, 0): (None, None, None),
    Brood(3, 1, 2, 0): (None, None, None),
    Brood(0, 0, 0, 0): (Status.PENDING, Status.PENDING, Status.PENDING),
    Brood(3, 0, 0, 0): (Status.PENDING, Status.PENDING, Status.PENDING),
    Brood(3, 0, 1, 0): (Status.FAILED, Status.PENDING, Status.FAILED),
    Brood(3, 0, 0, 1): (Status.FAILED, Status.PENDING, Status.PENDING),
    Brood(3, 0, 1, 2): (Status.FAILED, Status.PENDING, Status.FAILED),
}


@pytest.mark.parametrize("brood", BROODS)
def test_a_parent_goes_on_when_its_last_child_has_ended(brood: Brood) -> None:
    for rule, target in zip((ALL_SUCCESS, ALL_DONE, NONE_FAILED), BROODS[brood], strict=True):
        assert joined(Awaits(rule, "fail"), brood) is target
        mild = Status.CANCELLED if target is Status.FAILED else target
        assert joined(Awaits(rule, "cancel"), brood) is mild


@pytest.mark.parametrize("rule", TriggerRule)
@pytest.mark.parametrize("on_failure", ["fail", "cancel"])
def test_what_a_parent_waits_for_is_stored_with_its_names(rule: TriggerRule, on_failure: str) -> None:
    awaits = Awaits(rule, on_failure)

    assert json.loads(awaits.stored) == {"for": "children", "rule": rule.value, "on_failure": on_failure}
    assert Awaits.of(awaits.stored) == awaits


def test_a_child_counts_from_when_it_comes_until_it_ends_and_again_when_it_comes_back() -> None:
    assert moved(None, Status.PENDING) == Brood(1, 1, 0, 0)
    assert moved(None, Status.COMPLETED) == Brood(1, 0, 0, 0)
    assert moved(Status.PROCESSING, Status.RETRYING) == Brood()
    assert moved(Status.PROCESSING, Status.COMPLETED) == Brood(0, -1, 0, 0)
    assert moved(Status.WAITING, Status.CANCELLED) == Brood(0, -1, 0, 1)
    assert moved(Status.PROCESSING, Status.FAILED) == Brood(0, -1, 1, 0)
    assert moved(Status.FAILED, Status.PENDING) == Brood(0, 1, -1, 0)
    assert moved(Status.COMPLETED, Status.WAITING) == Brood(0, 1, 0, 0)


@given(st.lists(st.lists(st.sampled_from(Status), min_size=1, max_size=6), max_size=5))
def test_a_parents_numbers_are_the_sum_of_its_childrens_changes(lives: list[list[Status]]) -> None:
    brood = Brood()
    for life in lives:
        for source, target in zip([None, *life], life, strict=False):
            brood += moved(source, target)
    last = [life[-1] for life in lives]
    assert brood == Brood(
        len(last),
        sum(status in ACTIVE for status in last),
        last.count(Status.FAILED),
        last.count(Status.CANCELLED),
    )


# Order of a batch


@pytest.mark.parametrize(
    ("brood", "says"),
    [
        (Brood(1), "1 child ended"),
        (Brood(5), "5 children ended"),
        (Brood(5, failed=2), "5 children ended, 2 failed"),
        (Brood(5, failed=1, cancelled=2), "5 children ended, 1 failed and 2 cancelled"),
    ],
)
def test_how_children_ended_is_said_in_words(brood: Brood, says: str) -> None:
    assert str(brood) == says


def test_of_those_that_end_a_job_as_it_comes_the_first_that_its_rule_does_not_bear_is_named() -> None:
    standing = {"a": Status.COMPLETED, "b": Status.CANCELLED, "c": Status.FAILED}

    assert breaker(TriggerRule.ALL_SUCCESS, standing) == "b"
    assert breaker(TriggerRule.NONE_FAILED, standing) == "c"


def test_a_batch_that_is_in_order_stays_as_it_is() -> None:
    assert order([]) == []
    assert order([("a", []), ("b", ["a", "elsewhere"]), ("c", []), ("d", ["b", "a"])]) == [0, 1, 2, 3]


def test_whoever_needs_a_later_one_of_the_batch_comes_after_it() -> None:
    assert order([("a", ["c"]), ("b", []), ("c", ["d"]), ("d", [])]) == [3, 2, 0, 1]


def test_a_chain_as_long_as_a_batch_is_ordered() -> None:
    count = 50_000
    batch = [(str(n), [str(n + 1)]) for n in range(count)]

    assert order(batch) == list(range(count - 1, -1, -1))


def test_an_id_that_comes_twice_stands_for_its_first() -> None:
    assert order([("b", ["a"]), ("a", []), ("a", ["b"])]) == [1, 0, 2]


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        ([("a", ["a"])], (0, 0)),
        ([("x", []), ("a", ["b"]), ("b", ["a"])], (1, 2, 1)),
        ([("a", ["d"]), ("b", ["a"]), ("c", []), ("d", ["b"])], (0, 3, 1, 0)),
        ([("a", ["b"]), ("b", ["c"]), ("c", ["b"])], (1, 2, 1)),
    ],
)
def test_jobs_that_wait_for_one_another_are_named_in_a_ring(batch: list[tuple[str, list[str]]], path: Any) -> None:
    with pytest.raises(Cycle) as refused:
        order(batch)

    assert refused.value.path == path


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=10))
def test_an_order_is_whole_and_right_or_there_is_a_ring(needs: list[list[int]]) -> None:
    batch = [(str(n), [str(each) for each in each_needs]) for n, each_needs in enumerate(needs)]
    path: tuple[int, ...] = ()
    found: list[int] = []
    try:
        found = order(batch)
    except Cycle as cycle:
        path = cycle.path
    if path:
        assert path[0] == path[-1]
        assert all(following in needs[each] for each, following in pairwise(path))
        return
    assert sorted(found) == list(range(len(needs)))
    for place, position in enumerate(found):
        assert {each for each in needs[position] if each < len(needs)} <= set(found[:place])
