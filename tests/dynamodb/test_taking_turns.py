"""Turns of fairness keys, on plain data."""

from __future__ import annotations

from collections import Counter

from holdfast.stores.dynamodb.admitting import Turn
from holdfast.stores.dynamodb.keys import turn_of
from holdfast.stores.dynamodb.taking_turns import Standing, Waiting, count_turns, in_turn

LANE = ("default", "work")
NOW = 1_800_000_000_000_000


def _waiting(key: str | None, count: int, weight: int = 1) -> Waiting:
    return Waiting(turn_of(*LANE, key)[1], key, weight, [{"job_id": f"{key}{i}"} for i in range(count)])


def _keys(waiting: list[Waiting], standing: Standing, limit: int) -> list[str | None]:
    return [each.key for each, _ in in_turn(waiting, standing, limit)]


def _counted(standing: Standing, waiting: list[Waiting], limit: int) -> Standing:
    """The lane after a claim."""
    turns = [Turn(LANE, each.key, each.weight) for each, _ in in_turn(waiting, standing, limit)]
    lane, *rows = [write.item for write in count_turns(LANE, standing, turns, NOW)]
    assert lane is not None
    positions = dict(standing.positions)
    positions.update({row["sk"]: row["position"] for row in rows if row is not None})
    return Standing(position=lane["position"], nonce=lane["nonce"], positions=positions)


def test_keys_take_turns_and_their_own_jobs_keep_their_order() -> None:
    taken = in_turn([_waiting("a", 3), _waiting("b", 3)], Standing(), 5)

    assert [row["job_id"] for _, row in taken] == ["a0", "b0", "a1", "b1", "a2"]


def test_jobs_without_a_key_are_one_key_more() -> None:
    assert Counter(_keys([_waiting(None, 9), _waiting("a", 9), _waiting("b", 9)], Standing(), 9)) == {
        None: 3,
        "a": 3,
        "b": 3,
    }


def test_a_weight_is_a_share() -> None:
    assert Counter(_keys([_waiting("heavy", 99, 3), _waiting("light", 99)], Standing(), 40)) == {
        "heavy": 30,
        "light": 10,
    }


def test_a_key_that_runs_out_leaves_its_turns_to_others() -> None:
    assert Counter(_keys([_waiting("a", 1), _waiting("b", 9)], Standing(), 6)) == {"a": 1, "b": 5}


def test_turns_go_on_where_the_last_claim_stopped() -> None:
    standing = _counted(Standing(), [_waiting("a", 9), _waiting("b", 9)], 1)

    assert _keys([_waiting("a", 9), _waiting("b", 9)], standing, 1) == ["b"]


def test_who_comes_new_starts_where_the_lane_is() -> None:
    standing = _counted(Standing(), [_waiting("old", 100)], 50)

    turns = Counter(_keys([_waiting("old", 50), _waiting("new", 50)], standing, 20))

    assert 9 <= turns["new"] <= 11
