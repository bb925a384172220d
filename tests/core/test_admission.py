"""Who may start, decided on plain data: limits of keys, rates, slots, and turns between fairness keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.clock import MICROS, Instant
from backstay.core import admission
from backstay.core.admission import (
    NO_TIME,
    SET_BACK,
    Admission,
    Bucket,
    Draw,
    Gates,
    LaneTurns,
    Level,
    Turn,
    TurnOrder,
    after_turns,
    refuse_over_limit,
)
from backstay.errors import QueueFull
from backstay.limits import IN_SIGHT_MAX

NOW: Instant = 1_800_000_000 * MICROS
SPAN = 60 * MICROS
API = Bucket("api", 3, SPAN)
LANE = ("default", "work")


class Head(msgspec.Struct, frozen=True):
    job_id: str
    job_type: str = "work"
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    rate_key: str | None = None
    rate_count: int | None = None
    rate_micros: int | None = None
    rate_cost: int | None = None
    turn: Turn | None = None


def _keyed(job_id: str, key: str = "gpu", limit: int = 2) -> Head:
    return Head(job_id, concurrency_key=key, concurrency_limit=limit)


def _rated(job_id: str, bucket: Bucket = API, cost: int | None = None) -> Head:
    named = {"rate_key": bucket.key, "rate_count": bucket.starts, "rate_micros": bucket.micros}
    return Head(job_id, **named, rate_cost=cost)  # type: ignore[arg-type]


def _decide(
    heads: Sequence[Head],
    *,
    running: dict[str, int] | None = None,
    levels: dict[Bucket, Level] | None = None,
    turns: dict[tuple[str, str], LaneTurns] | None = None,
    limit: int = 100,
    slots: int = 100,
) -> Admission[Head]:
    gates = Gates(turns=turns or {})
    keys, buckets = gates.missing(heads)
    gates.running = dict.fromkeys(keys, 0) | (running or {})
    gates.levels = dict.fromkeys(buckets, Level()) | (levels or {})
    decided: Admission[Head] = Admission(gates, limit, {"work": slots, "other": slots}, NOW)
    decided.consider(heads)
    return decided


def _ids(heads: Iterable[Head]) -> list[str]:
    return [head.job_id for head in heads]


# The claim and its slots


def test_a_claim_takes_no_more_than_it_asked_for_in_order() -> None:
    decided = _decide([Head("a"), Head("b"), Head("c")], limit=2)

    assert _ids(decided.started) == ["a", "b"]
    assert decided.is_full
    assert not decided.cut


def test_a_type_gets_no_more_than_its_slots_and_others_start_in_spite_of_it() -> None:
    decided = _decide([Head("a"), Head("b"), Head("c", job_type="other"), Head("d", job_type="unasked")], slots=1)

    assert _ids(decided.started) == ["a", "c"]
    assert not decided.parks


def test_what_does_not_fit_into_one_commit_is_left_for_the_next() -> None:
    room = iter([True, True, False, True])
    decided: Admission[Head] = Admission(Gates(), 9, {"work": 9}, NOW, fits=lambda _: next(room))

    decided.consider([Head(name) for name in "abcd"])

    assert _ids(decided.started) == ["a", "b"]
    assert decided.cut
    assert not decided.parks


def test_a_job_whose_gate_was_not_read_does_not_start() -> None:
    for head in (_keyed("a"), _rated("a")):
        decided: Admission[Head] = Admission(Gates(), 9, {"work": 9}, NOW)
        with pytest.raises(KeyError):
            decided.consider([head])


def test_gates_that_were_read_for_earlier_jobs_are_not_read_again() -> None:
    gates = Gates(running={"gpu": 1}, levels={API: Level()})

    keys, buckets = gates.missing([_keyed("a"), _keyed("b", "disk"), _rated("c"), _rated("d", Bucket("api", 5, SPAN))])

    assert (keys, buckets) == ({"disk"}, {Bucket("api", 5, SPAN)})


# Concurrency keys


def test_an_urgent_job_of_a_full_key_is_parked_and_those_behind_it_start() -> None:
    decided = _decide([_keyed("urgent"), Head("b"), _keyed("c", "disk")], running={"gpu": 2})

    assert _ids(decided.started) == ["b", "c"]
    assert _ids(decided.key_full) == ["urgent"]


def test_jobs_of_one_claim_count_against_the_limit_of_their_key() -> None:
    decided = _decide([_keyed("a"), _keyed("b"), _keyed("c")], running={"gpu": 1})

    assert (_ids(decided.started), _ids(decided.key_full)) == (["a"], ["b", "c"])


def test_each_job_of_a_key_keeps_to_its_own_limit() -> None:
    heads = [_keyed("a", limit=9), _keyed("b", limit=2), _keyed("c", limit=3), _keyed("d", limit=9)]

    decided = _decide(heads, running={"gpu": 1})

    assert (_ids(decided.started), _ids(decided.key_full)) == (["a", "c", "d"], ["b"])


def test_a_key_without_a_limit_limits_nothing() -> None:
    decided = _decide([Head(name, concurrency_key="gpu") for name in "abc"])

    assert _ids(decided.started) == ["a", "b", "c"]


def test_a_job_that_its_key_stops_takes_nothing_from_its_rate_and_leaves_its_place_to_another() -> None:
    both = Head("both", "work", "gpu", 1, *API)

    decided = _decide([both, _rated("a"), _rated("b"), _rated("c")], running={"gpu": 1})

    assert _ids(decided.started) == ["a", "b", "c"]
    assert decided.left_sight() == {API}


# Rates


def test_a_bucket_gives_as_many_starts_as_it_has_and_its_parked_jobs_are_checked_when_one_may_start() -> None:
    decided = _decide([_rated(name) for name in "abcde"])

    assert (_ids(decided.started), _ids(decided.over_rate)) == (["a", "b", "c"], ["d", "e"])
    [draw] = decided.draws()
    assert draw == Draw(API, Level(NOW + SPAN, NOW + SPAN // 3), 3, refused=True)
    assert draw.level.room(API, NOW + SPAN // 3) == 1


def test_a_bucket_without_parked_jobs_is_not_checked() -> None:
    decided = _decide([_rated("a")])

    assert decided.draws() == [Draw(API, Level(NOW + SPAN // 3, None), 1, refused=False)]


def test_a_start_gives_the_parked_jobs_that_waited_for_one_a_time() -> None:
    decided = _decide([_rated("a")], levels={API: Level(NOW, NO_TIME)})

    assert decided.draws() == [Draw(API, Level(NOW + SPAN // 3, NOW), 1, refused=False)]


def test_two_rates_of_one_key_have_buckets_of_their_own() -> None:
    slow = Bucket("api", 1, SPAN)

    decided = _decide([_rated("a", slow), _rated("b", slow), _rated("c")])

    assert _ids(decided.started) == ["a", "c"]


def test_no_more_jobs_are_claimable_than_may_start_nor_than_are_counted_often() -> None:
    assert Level().places(API, NOW) == 3
    assert Level().places(Bucket("api", 10**6, SPAN), NOW) == IN_SIGHT_MAX
    assert Level().check_at(API, NOW) == NO_TIME
    assert Level(NOW + SPAN).places(API, NOW) == 0
    assert Level(NOW + SPAN).check_at(API, NOW) == NOW + SPAN // 3


def test_what_a_job_costs_is_taken_from_its_bucket() -> None:
    budget = Bucket("tokens", 100, SPAN)
    decided = _decide([_rated("a", budget, 60), _rated("b", budget, 40), _rated("c", budget)])

    assert (_ids(decided.started), _ids(decided.over_rate)) == (["a", "b"], ["c"])
    [draw] = decided.draws()
    assert (draw.spent, draw.level.full_at) == (100, NOW + SPAN)


def test_behind_a_job_that_costs_more_than_there_is_cheaper_ones_wait() -> None:
    budget = Bucket("tokens", 100, SPAN)
    decided = _decide([_rated("a", budget, 60), _rated("b", budget, 50), _rated("c", budget)])

    assert (_ids(decided.started), _ids(decided.over_rate)) == (["a"], ["b", "c"])
    [draw] = decided.draws()
    assert (draw.level.wanted, draw.level.due_at) == (50, NOW + SPAN // 10)
    # So it stays, though the cheap one alone comes next.
    again = _decide([_rated("c", budget)], levels={budget: draw.level})
    assert (_ids(again.started), again.draws()[0].level) == ([], draw.level)


def test_a_bucket_with_as_much_as_the_first_job_wants_is_open_to_all() -> None:
    budget = Bucket("tokens", 100, SPAN)
    waiting = Level(NOW + SPAN // 2, NOW, 50)

    decided = _decide([_rated("b", budget, 50), _rated("c", budget)], levels={budget: waiting})

    assert (_ids(decided.started), _ids(decided.over_rate)) == (["b"], ["c"])
    assert (waiting.places(budget, NOW), waiting.next_start(budget, NOW, 80)) == (1, NOW + 3 * SPAN // 10)


def test_a_job_that_costs_more_than_its_bucket_holds_takes_all_of_it() -> None:
    assert _ids(_decide([_rated("a", cost=1_000)]).started) == ["a"]


@given(spent=st.integers(0, SPAN), back=st.integers(0, 10**13), passed=st.integers(0, SPAN))
def test_a_clock_that_is_set_back_never_overdraws_a_bucket_nor_empties_it_for_long(
    spent: int, back: int, passed: int
) -> None:
    set_at, now = NOW, NOW - back
    had = Level(set_at + spent).room(API, set_at)

    read = Level(admission.by_this_clock(set_at + spent, set_at, now))

    assert read.room(API, now) <= had
    if back > SET_BACK:
        assert read.room(API, now) == had
    assert read.room(API, now + SET_BACK + SPAN + passed) == API.starts


@given(
    st.lists(st.tuples(st.integers(-100 * SPAN, SPAN), st.integers(1, 8)), max_size=30),
    st.integers(1, 5),
)
def test_whatever_the_clock_does_no_span_has_more_starts_than_the_rate_twice(
    claims: list[tuple[int, int]], starts: int
) -> None:
    """Time that passes refills a bucket; a clock that jumps back does not."""
    bucket = Bucket("api", starts, SPAN)
    full_at = set_at = now = NOW
    taken = passed = 0
    for step, wanted in claims:
        now += step
        passed += max(0, step)
        level = Level(admission.by_this_clock(full_at, set_at, now))
        gates = Gates(levels={bucket: level})
        decided: Admission[Head] = Admission(gates, 99, {"work": 99}, now)
        decided.consider([_rated(str(number), bucket) for number in range(wanted)])
        taken += len(decided.started)
        [draw] = decided.draws()
        full_at, set_at = draw.level.full_at, now

    assert (taken - starts) * SPAN <= passed * starts


# Turns

Waits = dict[str, int]  # how many jobs of each fairness key wait


def _in_turn(lane: LaneTurns, waits: Waits, weights: dict[str, int], limit: int) -> list[Turn]:
    left, turns, order = dict(waits), [], TurnOrder(lane, {key: weights.get(key, 1) for key in waits})
    while len(turns) < limit and (key := order.next()) is not None:
        if left[key] == 0:
            order.has_none()
        else:
            left[key] -= 1
            turns.append(Turn(LANE, key, weights.get(key, 1)))
            order.started()
    return turns


def _claim(lane: LaneTurns, waits: Waits, weights: dict[str, int], limit: int) -> tuple[list[str], LaneTurns]:
    """Claim, and store what the claim decides, as an engine does."""
    heads = [Head(f"{number}", turn=turn) for number, turn in enumerate(_in_turn(lane, waits, weights, limit))]
    decided = _decide(heads, turns={LANE: lane}, limit=limit, slots=limit)
    new = decided.turns()[LANE]
    keys = [head.turn.key for head in decided.started if head.turn is not None]
    return keys, LaneTurns(new.position, lane.positions | new.positions)


def _keys(turns: Iterable[Turn]) -> list[str]:
    return [turn.key for turn in turns]


def test_keys_take_turns() -> None:
    assert _keys(_in_turn(LaneTurns(), {"a": 3, "b": 3}, {}, 5)) == ["a", "b", "a", "b", "a"]


def test_jobs_without_a_key_are_one_more_key() -> None:
    assert Counter(_keys(_in_turn(LaneTurns(), {"": 9, "a": 9, "b": 9}, {}, 9))) == {"": 3, "a": 3, "b": 3}


def test_a_key_that_runs_out_leaves_its_turns_to_others() -> None:
    assert Counter(_keys(_in_turn(LaneTurns(), {"a": 1, "b": 9}, {}, 6))) == {"a": 1, "b": 5}


def test_turns_continue_where_the_last_claim_stopped() -> None:
    waits = {"a": 9, "b": 9}
    first, lane = _claim(LaneTurns(), waits, {}, 1)

    second, _ = _claim(lane, waits, {}, 1)

    assert (first, second) == (["a"], ["b"])


def test_a_key_that_comes_late_starts_where_the_lane_is() -> None:
    _, lane = _claim(LaneTurns(), {"old": 100}, {}, 50)

    turns = Counter(_keys(_in_turn(lane, {"old": 50, "new": 50}, {}, 20)))

    assert 9 <= turns["new"] <= 11


def test_a_key_that_was_idle_has_saved_nothing_up() -> None:
    _, lane = _claim(LaneTurns(), {"a": 9, "b": 9}, {}, 2)
    _, lane = _claim(lane, {"b": 99}, {}, 90)

    turns = Counter(_keys(_in_turn(lane, {"a": 50, "b": 50}, {}, 20)))

    assert 9 <= turns["a"] <= 11


def test_a_job_that_was_parked_has_had_no_turn() -> None:
    lane = LaneTurns()
    mine, others = Turn(LANE, "a", 1), Turn(LANE, "b", 1)
    parked = msgspec.structs.replace(_keyed("parked"), turn=mine)

    decided = _decide([parked, Head("b", turn=others)], running={"gpu": 2}, turns={LANE: lane})

    assert decided.turns()[LANE].positions.keys() == {"b"}


WEIGHTS = st.dictionaries(st.sampled_from(["", *"abcdef"]), st.sampled_from([1, 2, 3, 5, 10, 100]), min_size=1)


@given(weights=WEIGHTS, limits=st.lists(st.integers(1, 20), min_size=1, max_size=20))
def test_a_weight_is_a_share_over_any_claims(weights: dict[str, int], limits: list[int]) -> None:
    lane, waits = LaneTurns(), dict.fromkeys(weights, 1000)
    turns: Counter[str] = Counter()
    for limit in limits:
        keys, lane = _claim(lane, waits, weights, limit)
        turns.update(keys)

    for one in weights:
        for other in weights:
            ahead = turns[one] / weights[one] - turns[other] / weights[other]
            assert ahead <= 1 / weights[one] + 0.01


@given(weights=WEIGHTS, waits=st.lists(st.integers(0, 12), min_size=7, max_size=7), limit=st.integers(1, 40))
def test_many_small_claims_hand_out_the_same_turns_as_one_large_one(
    weights: dict[str, int], waits: list[int], limit: int
) -> None:
    waiting = dict(zip(weights, waits, strict=False))
    in_one = _keys(_in_turn(LaneTurns(), waiting, weights, limit))

    lane, left, one_by_one = LaneTurns(), dict(waiting), []
    for _ in in_one:
        [key], lane = _claim(lane, left, weights, 1)
        left[key] -= 1
        one_by_one.append(key)

    assert Counter(one_by_one) == Counter(in_one)


def test_the_lane_is_where_its_last_key_had_its_turn() -> None:
    new = after_turns(LaneTurns(5, {"a": 3, "b": 9}), [Turn(LANE, "a", 1), Turn(LANE, "b", 2)])

    assert new == LaneTurns(9, {"a": 1_000_005, "b": 500_009})


def test_a_lane_does_not_go_back_when_a_claim_reaches_a_lower_priority() -> None:
    new = after_turns(LaneTurns(0, {"a": 3, "b": 9}), [Turn(LANE, "b", 1), Turn(LANE, "a", 1)])

    assert new.position == 9


# All together

HEADS = st.lists(
    st.builds(
        Head,
        job_id=st.uuids().map(str),
        job_type=st.sampled_from(["work", "other", "unasked"]),
        concurrency_key=st.sampled_from([None, "k1", "k2"]),
        concurrency_limit=st.integers(1, 4),
        rate_key=st.sampled_from([None, "r1", "r2"]),
        rate_count=st.integers(1, 3),
        rate_micros=st.just(SPAN),
    ),
    max_size=40,
)


@given(
    heads=HEADS,
    running=st.dictionaries(st.sampled_from(["k1", "k2"]), st.integers(0, 4)),
    spent=st.integers(0, 2 * SPAN),
    limit=st.integers(1, 20),
    slots=st.integers(0, 10),
)
def test_no_limit_is_exceeded_and_no_job_waits_that_could_start(
    heads: list[Head], running: dict[str, int], spent: int, limit: int, slots: int
) -> None:
    level = Level(NOW + spent)
    levels = {Bucket(key, count, SPAN): level for key in ("r1", "r2") for count in (1, 2, 3)}

    decided = _decide(heads, running=running, levels=levels, limit=limit, slots=slots)

    parked_by_key, parked_by_rate = set(_ids(decided.key_full)), set(_ids(decided.over_rate))
    started, of_type, of_key, of_bucket = 0, Counter[str](), Counter(running), Counter[Bucket]()
    for head in heads:
        bucket = admission.bucket_of(head)
        has_slot = head.job_type != "unasked" and of_type[head.job_type] < slots and started < limit
        has_key = head.concurrency_key is None or of_key[head.concurrency_key] < (head.concurrency_limit or 0)
        has_rate = bucket is None or of_bucket[bucket] < level.room(bucket, NOW)
        assert (head in decided.started) == (has_slot and has_key and has_rate)
        assert (head.job_id in parked_by_key) == (has_slot and not has_key)
        assert (head.job_id in parked_by_rate) == (has_slot and has_key and not has_rate)
        if head in decided.started:
            started += 1
            of_type[head.job_type] += 1
            of_key.update([head.concurrency_key] if head.concurrency_key is not None else [])
            of_bucket.update([bucket] if bucket is not None else [])
    assert {draw.bucket: draw.spent for draw in decided.draws() if draw.spent} == of_bucket
    assert {draw.bucket for draw in decided.draws() if draw.refused} == {
        admission.bucket_of(head) for head in decided.over_rate
    }


# Queues


def test_a_full_queue_says_how_many_more_jobs_it_takes() -> None:
    refuse_over_limit("mail", 1_000, 3, 3)

    with pytest.raises(
        QueueFull, match=r"the queue mail accepts 1,000 pending jobs and has room for 3: .*submit again"
    ):
        refuse_over_limit("mail", 1_000, 3, 4)
