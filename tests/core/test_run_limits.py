"""What is set at run time: how a change leaves it, and how it reads."""

from __future__ import annotations

import pytest

from backstay.clock import MICROS
from backstay.core.admission import Bucket, RunLimits, parse
from backstay.core.records import LimitChange, LimitOf, LimitRow, QueueChange, QueueRow, Rate
from backstay.core.run_limits import Limit, changed_limit, changed_queue, is_over, rate_text, resumed, says_nothing

NOW = 1_763_300_000_000_000


def test_pausing_what_is_paused_keeps_who_did_it_first_and_takes_the_new_end() -> None:
    paused = changed_queue(QueueRow(name="q"), QueueChange(paused=True, by="me", reason="why", until=NOW + 9), NOW)
    again = changed_queue(paused, QueueChange(paused=True, by="you"), NOW + 1)

    assert (again.paused_at, again.paused_by, again.pause_reason, again.paused_until) == (NOW, "me", "why", None)
    assert changed_queue(paused, QueueChange(paused=False), NOW + 1) == resumed(paused) == QueueRow(name="q")
    assert (is_over(paused, NOW + 8), is_over(paused, NOW + 9), is_over(again, NOW + 9)) == (False, True, False)


def test_a_limit_of_a_queue_is_set_and_removed() -> None:
    assert changed_queue(QueueRow(name="q"), QueueChange(max_pending=5), NOW).max_pending == 5
    assert says_nothing(changed_queue(QueueRow(name="q", max_pending=5), QueueChange(max_pending=0), NOW))


def test_both_limits_of_a_type_are_set_and_its_pause_stays() -> None:
    row = changed_limit(LimitRow(of=LimitOf.TYPE, name="t"), LimitChange(paused=True, by="me"), NOW)
    row = changed_limit(row, LimitChange(limits=True, concurrency=4, rate=Rate(5, MICROS), by="you"), NOW)
    assert (row.concurrency, row.rate, row.set_by, row.paused_by) == (4, Rate(5, MICROS), "you", "me")

    row = changed_limit(row, LimitChange(limits=True, rate=Rate(5, MICROS), by="you"), NOW)
    assert (row.concurrency, Limit.of_row(row).rate) == (None, "5/s")
    assert changed_limit(row, LimitChange(limits=True), NOW) == LimitRow(
        of=LimitOf.TYPE, name="t", paused_at=NOW, paused_by="me"
    )


@pytest.mark.parametrize("text", ["10/s", "100/m", "5/30s", "1000/h", "50/d", "7/2d", "1/90m"])
def test_a_rate_reads_as_it_was_written(text: str) -> None:
    rate = parse(text)
    assert rate is not None
    assert rate_text(rate) == text


def test_what_was_set_for_a_key_comes_before_what_was_set_for_the_type_of_its_name() -> None:
    limits = RunLimits()
    own = Bucket("work", 9, MICROS)
    assert (limits.allowed("work", 7), limits.bucket(own), limits.bucket_of_type("work")) == (7, own, None)

    limits.add([LimitRow(of=LimitOf.TYPE, name="work", concurrency=3, rate_count=2, rate_micros=MICROS)])
    of_type = Bucket("work", 2, MICROS)
    assert (limits.allowed("work", 7), limits.bucket(own), limits.bucket_of_type("work")) == (3, of_type, of_type)
    assert (limits.allowed("other", 7), limits.bucket_of_type("other")) == (7, None)

    limits.add([LimitRow(of=LimitOf.KEY, name="work", concurrency=5)])
    assert (limits.allowed("work", 7), limits.bucket(own)) == (5, of_type)
