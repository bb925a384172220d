"""Who may start, decided on plain data: keys, rates, slots, and what one commit takes."""

from __future__ import annotations

from typing import Any

from backstay.clock import MICROS
from backstay.engines.dynamodb.admission import (
    COMMIT_ITEMS_MAX,
    HOLDERS_MAX,
    Admission,
    Bucket,
    Drawn,
    GateStates,
    Head,
    RateGate,
    Turn,
    rate_gate,
)
from backstay.engines.dynamodb.schema import NO_TIME

NOW = 1_800_000_000 * MICROS
SPAN = 60 * MICROS
BUCKET: Bucket = ("api", 3, SPAN)


def _head(job_id: str, *, turn: Turn | None = None, **changes: Any) -> Head:
    return Head({"job_id": job_id, "job_type": "work", **changes}, turn)


def _keyed(job_id: str, key: str = "gpu", limit: int = 2, **changes: Any) -> Head:
    return _head(job_id, concurrency_key=key, concurrency_limit=limit, **changes)


def _rated(job_id: str) -> Head:
    return _head(job_id, rate_key="api", rate_count=3, rate_micros=SPAN)


def _admission(gates: GateStates | None = None, *, limit: int = 100, slots: int = 100) -> Admission:
    return Admission(gates or GateStates(), limit, {"work": slots}, NOW)


def _ids(heads: list[Head]) -> list[str]:
    return [head.job_id for head in heads]


def test_no_more_than_the_limit_are_admitted_in_order() -> None:
    admission = _admission(limit=2)

    admission.consider([_head("a"), _head("b"), _head("c")])

    assert _ids(admission.admitted) == ["a", "b"]
    assert admission.is_full
    assert not admission.cut


def test_a_type_gets_no_more_than_its_slots() -> None:
    admission = _admission(slots=1)

    admission.consider([_head("a"), _head("b"), _head("c", job_type="unasked")])

    assert _ids(admission.admitted) == ["a"]


def test_a_key_takes_as_many_as_it_has_room_for_and_says_who_comes_in() -> None:
    admission = _admission(GateStates(running={"gpu": 1}))

    admission.consider([_keyed("a"), _keyed("b"), _head("c"), _keyed("d", "other")])

    assert _ids(admission.admitted) == ["a", "c", "d"]
    assert _ids(admission.key_full) == ["b"]
    assert admission.joins() == [("gpu", 2, {"a"}), ("other", 2, {"d"})]


def test_a_key_holds_no_more_than_fit_its_gate() -> None:
    admission = _admission(GateStates(running={"gpu": HOLDERS_MAX - 1}))

    admission.consider([_keyed("a", limit=100_000), _keyed("b", limit=100_000)])

    assert (_ids(admission.admitted), _ids(admission.key_full)) == (["a"], ["b"])


def test_of_one_key_with_several_limits_each_keeps_to_its_own() -> None:
    admission = _admission(GateStates(running={"gpu": 1}))

    admission.consider([_keyed("a", limit=9), _keyed("b", limit=2), _keyed("c", limit=3), _keyed("d", limit=9)])

    assert (_ids(admission.admitted), _ids(admission.key_full)) == (["a", "c", "d"], ["b"])
    assert admission.joins() == [("gpu", 4, {"a", "c", "d"})]  # c came second, where no more than one ran


def test_a_key_without_a_limit_limits_nothing() -> None:
    admission = _admission()

    admission.consider([_head(name, concurrency_key="gpu") for name in "abc"])

    assert _ids(admission.admitted) == ["a", "b", "c"]
    assert admission.joins() == []


def test_a_bucket_gives_as_many_starts_as_it_has_and_is_looked_at_again_for_the_others() -> None:
    admission = _admission()

    admission.consider([_rated(name) for name in "abcde"])

    assert (_ids(admission.admitted), _ids(admission.over_rate)) == (["a", "b", "c"], ["d", "e"])
    assert admission.drawn() == [Drawn(BUCKET, RateGate(), NOW + SPAN, NOW + SPAN // 3, NOW)]


def test_a_bucket_from_which_nobody_has_to_wait_needs_no_second_look() -> None:
    admission = _admission()

    admission.consider([_rated("a")])

    assert admission.drawn() == [Drawn(BUCKET, RateGate(), NOW + SPAN // 3, None)]


def test_a_start_gives_those_that_wait_out_of_sight_a_time() -> None:
    was = RateGate(NOW, NO_TIME, "n")
    admission = _admission(GateStates(rates={BUCKET: was}))

    admission.consider([_rated("a")])

    assert admission.drawn() == [Drawn(BUCKET, was, NOW + SPAN // 3, NOW)]


def test_a_spent_bucket_that_says_so_already_is_not_written_again() -> None:
    was = RateGate(NOW + SPAN, NOW + SPAN // 3, "n", NOW)
    admission = _admission(GateStates(rates={BUCKET: was}))

    admission.consider([_rated("a")])

    assert _ids(admission.over_rate) == ["a"]
    assert admission.drawn() == []


def test_a_bucket_that_was_written_by_a_clock_far_ahead_is_taken_back_by_as_much() -> None:
    item = {"full_at": NOW + 10 * SPAN, "set_at": NOW + 9 * SPAN + 1, "nonce": "n"}

    assert rate_gate(item, NOW).full_at == NOW + SPAN - 1
    assert rate_gate({**item, "set_at": NOW + SPAN}, NOW).full_at == NOW + 10 * SPAN


def test_what_does_not_fit_one_commit_is_left_for_the_next() -> None:
    admission = _admission(limit=1_000, slots=1_000)

    admission.consider([_keyed(f"{i}", f"key-{i}") for i in range(100)])

    assert len(admission.admitted) == COMMIT_ITEMS_MAX // 2
    assert admission.cut


def test_gates_and_turns_that_are_shared_are_counted_once() -> None:
    admission = _admission(limit=1_000, slots=1_000)
    turn = Turn(("q", "work"), "tenant", 1)

    admission.consider([_keyed(f"{i}", "gpu", 1_000, turn=turn) for i in range(100)])

    assert len(admission.admitted) == COMMIT_ITEMS_MAX - 3  # one gate, one lane, one key of it


def test_large_jobs_are_claimed_in_smaller_commits() -> None:
    admission = _admission()

    admission.consider([_head(f"{i}", history="x" * 300_000) for i in range(20)])

    assert 0 < len(admission.admitted) < 12
    assert admission.cut
