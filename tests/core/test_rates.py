"""Rate limits: how they are written, and the bucket that keeps them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.core import admission
from backstay.core.records import Rate
from backstay.errors import InvalidOption

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "count", "seconds"),
    [("10/s", 10, 1), ("100/m", 100, 60), ("5/30s", 5, 30), ("1000/h", 1000, 3600), ("1 / d", 1, 86_400)],
)
def test_a_rate_is_a_count_in_a_span(text: str, count: int, seconds: int) -> None:
    assert admission.parse(text) == Rate(count, seconds * SECOND)


@pytest.mark.parametrize("text", ["", "10", "s", "0/s", "10/0s", "-1/s", "1.5/s", "10/week", "10/s/s", 10, ["10/s"]])
def test_what_is_no_rate_is_refused_with_help(text: Any) -> None:
    with pytest.raises(InvalidOption, match='"10/s"'):
        admission.parse(text)


def test_a_full_bucket_gives_the_whole_rate_and_then_refills_evenly() -> None:
    rate, now = Rate(10, SECOND), 1_000 * SECOND
    assert admission.room(rate, 0, now) == 10

    full_at = admission.take(rate, 0, now, 10)

    assert admission.room(rate, full_at, now) == 0
    assert admission.due_at(rate, full_at, now) == now + SECOND // 10
    assert [admission.room(rate, full_at, now + n * SECOND // 10) for n in range(12)] == [*range(11), 10]


def test_a_bucket_that_was_not_used_saves_nothing_up() -> None:
    rate = Rate(10, SECOND)
    full_at = admission.take(rate, 0, 0, 10)

    assert admission.room(rate, full_at, 3600 * SECOND) == 10


@given(
    count=st.integers(1, 50),
    span=st.integers(1, 3600).map(lambda seconds: seconds * SECOND),
    steps=st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(0, 60)), max_size=40),
)
def test_over_any_span_no_more_start_than_a_bucket_holds_and_refills(
    count: int, span: int, steps: list[tuple[int, int]]
) -> None:
    rate, now, full_at = Rate(count, span), 10**15, 0
    starts: list[int] = []
    for passed, wanted in steps:
        now += passed
        taken = min(wanted, admission.room(rate, full_at, now))
        if taken:
            full_at = admission.take(rate, full_at, now, taken)
            starts += [now] * taken

    for first, began in enumerate(starts):
        for last in range(first, len(starts)):
            assert (last - first + 1 - count) * span <= (starts[last] - began) * count


@given(count=st.integers(1, 1000), span=st.integers(1, 100_000_000), spent=st.integers(0, 200_000_000))
def test_at_the_time_it_names_one_may_start_and_not_before(count: int, span: int, spent: int) -> None:
    rate, now = Rate(count, span), 10**15
    full_at = now + min(spent, span)

    due = admission.due_at(rate, full_at, now)

    assert admission.room(rate, full_at, due) >= 1
    assert due == now or admission.room(rate, full_at, due - 1) == 0
