"""The gates of DynamoDB, decided on plain data: holders of keys, writes of buckets, and what one commit takes."""

from __future__ import annotations

from typing import Any

from backstay.clock import MICROS
from backstay.core.admission import NO_TIME, Admission, Bucket, Gates, RunLimits, Turn
from backstay.engines.dynamodb.admission import (
    COMMIT_ITEMS_MAX,
    HOLDERS_MAX,
    CommitRoom,
    Drawn,
    Head,
    RateGate,
    drawn,
    entries,
    rate_gate,
)

NOW = 1_800_000_000 * MICROS
SPAN = 60 * MICROS
BUCKET = Bucket("api", 3, SPAN)


def _head(job_id: str, *, turn: Turn | None = None, **changes: Any) -> Head:
    return Head({"job_id": job_id, "job_type": "work", **changes}, turn)


def _keyed(job_id: str, key: str = "gpu", limit: int = 2, **changes: Any) -> Head:
    return _head(job_id, concurrency_key=key, concurrency_limit=limit, **changes)


def _rated(job_id: str) -> Head:
    return _head(job_id, rate_key="api", rate_count=3, rate_micros=SPAN)


def _decide(heads: list[Head], running: int = 0, gate: RateGate | None = None) -> Admission[Head]:
    gates = Gates()
    keys, _ = gates.missing(heads)
    gates.running = dict.fromkeys(keys, running)
    gates.levels = {BUCKET: gate or RateGate()}
    decided = Admission(gates, 1_000, {"work": 1_000}, NOW, CommitRoom(RunLimits()).fits)
    decided.consider(heads)
    return decided


def _drawn(heads: list[Head], gate: RateGate) -> list[Drawn]:
    return drawn(_decide(heads, gate=gate), {BUCKET: gate}, NOW)


def _ids(heads: list[Head]) -> list[str]:
    return [head.job_id for head in heads]


def test_a_key_says_which_jobs_come_in_and_how_many_may_hold_it() -> None:
    decided = _decide([_keyed("a"), _keyed("b"), _head("c"), _keyed("d", "other")], running=1)

    assert _ids(decided.started) == ["a", "c", "d"]
    assert entries(decided.started, RunLimits()) == [("gpu", 2, {"a"}), ("other", 2, {"d"})]


def test_a_key_holds_no_more_than_fit_its_gate() -> None:
    decided = _decide([_keyed("a", limit=100_000), _keyed("b", limit=100_000)], running=HOLDERS_MAX - 1)

    assert (_ids(decided.started), _ids(decided.key_full)) == (["a"], ["b"])


def test_of_one_key_with_several_limits_the_strictest_holds_when_they_come_in() -> None:
    heads = [_keyed("a", limit=9), _keyed("b", limit=2), _keyed("c", limit=3), _keyed("d", limit=9)]

    decided = _decide(heads, running=1)

    assert entries(decided.started, RunLimits()) == [
        ("gpu", 4, {"a", "c", "d"})
    ]  # c came second, where no more than one ran


def test_a_bucket_that_had_to_refuse_notes_when_that_was() -> None:
    assert _drawn([_rated(name) for name in "abcde"], RateGate()) == [
        Drawn(BUCKET, RateGate(), NOW + SPAN, NOW + SPAN // 3, NOW)
    ]


def test_a_bucket_in_which_no_job_has_to_wait_needs_no_second_look() -> None:
    assert _drawn([_rated("a")], RateGate()) == [Drawn(BUCKET, RateGate(), NOW + SPAN // 3, None)]


def test_a_start_gives_parked_jobs_a_time() -> None:
    was = RateGate(NOW, NO_TIME, nonce="n")

    assert _drawn([_rated("a")], was) == [Drawn(BUCKET, was, NOW + SPAN // 3, NOW)]


def test_a_spent_bucket_that_says_so_already_is_not_written_again() -> None:
    was = RateGate(NOW + SPAN, NOW + SPAN // 3, nonce="n", parked_at=NOW)

    assert _drawn([_rated("a")], was) == []


def test_a_bucket_that_was_written_by_a_clock_far_ahead_is_taken_back_by_as_much() -> None:
    item = {"full_at": NOW + 10 * SPAN, "set_at": NOW + 9 * SPAN + 1, "nonce": "n"}

    assert rate_gate(item, NOW).full_at == NOW + SPAN - 1
    assert rate_gate({**item, "set_at": NOW + SPAN}, NOW).full_at == NOW + 10 * SPAN


def test_what_does_not_fit_one_commit_is_left_for_the_next() -> None:
    decided = _decide([_keyed(f"{i}", f"key-{i}") for i in range(100)])

    assert len(decided.started) == COMMIT_ITEMS_MAX // 2
    assert decided.cut


def test_gates_and_turns_that_are_shared_are_counted_once() -> None:
    turn = Turn(("q", "work"), "tenant", 1)

    decided = _decide([_keyed(f"{i}", "gpu", 1_000, turn=turn) for i in range(100)])

    assert len(decided.started) == COMMIT_ITEMS_MAX - 3  # one gate, one lane, one key of it


def test_large_jobs_are_claimed_in_smaller_commits() -> None:
    decided = _decide([_head(f"{i}", history="x" * 300_000) for i in range(20)])

    assert 0 < len(decided.started) < 12
    assert decided.cut
