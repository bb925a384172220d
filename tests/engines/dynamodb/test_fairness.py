"""Turns of fairness keys: on plain data, and where very many keys have had one."""

from __future__ import annotations

from collections import Counter

import pytest

from backstay.engines.dynamodb import fairness, schema
from backstay.engines.dynamodb.admission import Turn
from backstay.engines.dynamodb.expressions import Ask
from backstay.engines.dynamodb.fairness import LaneState, Waiting, count_turns, in_turn
from backstay.engines.dynamodb.schema import Item, Table, turn_of
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing.conformance.factories import HOUR, NOW, claim_ids, record, submit_many

LANE = ("default", "work")


def _waiting(key: str | None, count: int, weight: int = 1) -> Waiting:
    return Waiting(turn_of(*LANE, key)[1], key, weight, [{"job_id": f"{key}{i}"} for i in range(count)])


def _keys(waiting: list[Waiting], lane_state: LaneState, limit: int) -> list[str | None]:
    return [each.key for each, _ in in_turn(waiting, lane_state, limit)]


def _counted(lane_state: LaneState, waiting: list[Waiting], limit: int) -> LaneState:
    """The lane after a claim."""
    turns = [Turn(LANE, each.key, each.weight) for each, _ in in_turn(waiting, lane_state, limit)]
    lane, *rows = [write.item for write in count_turns(LANE, lane_state, turns, NOW)]
    assert lane is not None
    positions = dict(lane_state.positions)
    positions.update({row["sk"]: row["position"] for row in rows if row is not None})
    return LaneState(position=lane["position"], nonce=lane["nonce"], positions=positions)


def test_keys_take_turns_and_their_own_jobs_keep_their_order() -> None:
    taken = in_turn([_waiting("a", 3), _waiting("b", 3)], LaneState(), 5)

    assert [row["job_id"] for _, row in taken] == ["a0", "b0", "a1", "b1", "a2"]


def test_jobs_without_a_key_are_one_key_more() -> None:
    assert Counter(_keys([_waiting(None, 9), _waiting("a", 9), _waiting("b", 9)], LaneState(), 9)) == {
        None: 3,
        "a": 3,
        "b": 3,
    }


def test_a_weight_is_a_share() -> None:
    assert Counter(_keys([_waiting("heavy", 99, 3), _waiting("light", 99)], LaneState(), 40)) == {
        "heavy": 30,
        "light": 10,
    }


def test_a_key_that_runs_out_leaves_its_turns_to_others() -> None:
    assert Counter(_keys([_waiting("a", 1), _waiting("b", 9)], LaneState(), 6)) == {"a": 1, "b": 5}


def test_turns_go_on_where_the_last_claim_stopped() -> None:
    lane_state = _counted(LaneState(), [_waiting("a", 9), _waiting("b", 9)], 1)

    assert _keys([_waiting("a", 9), _waiting("b", 9)], lane_state, 1) == ["b"]


def test_who_comes_new_starts_where_the_lane_is() -> None:
    lane_state = _counted(LaneState(), [_waiting("old", 100)], 50)

    turns = Counter(_keys([_waiting("old", 50), _waiting("new", 50)], lane_state, 20))

    assert 9 <= turns["new"] <= 11


class TestMoreKeysThanAClaimReads:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fairness, "_ROWS_READ_MAX", 2)

    async def test_take_their_turns_all_the_same(self, store: DynamoStore) -> None:
        for key in "abcdef":
            await submit_many(store, 4, fairness_key=key)

        taken = [job_id for _ in range(12) for job_id in await claim_ids(store, limit=1)]

        assert Counter([(await record(store, job_id)).fairness_key for job_id in taken]) == dict.fromkeys("abcdef", 2)

    async def test_are_not_read_by_a_claim(self, store: DynamoStore) -> None:
        await _had_turns(store, 20, ago=0)

        lane_state = await fairness.read(_session(store), *LANE)

        assert (len(lane_state.positions), lane_state.unread) == (2, True)


class TestForgetting:
    async def test_all_that_were_idle_for_long_go_in_one_sweep(self, store: DynamoStore) -> None:
        await _had_turns(store, 300, ago=2 * HOUR)

        await fairness.forget_idle(_session(store), [LANE], NOW)

        assert await _rows(store) == []

    async def test_those_that_stay_keep_no_others_from_being_forgotten(
        self, store: DynamoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fairness, "_FORGOTTEN_MAX", 10)
        await _had_turns(store, 25, ago=0)
        await _had_turns(store, 10, ago=2 * HOUR, name="old")

        for _ in range(4):
            await fairness.forget_idle(_session(store), [LANE], NOW)

        rows = await _rows(store)
        assert len(rows) == 25
        assert not any("old" in row["sk"] for row in rows)


def _session(store: DynamoStore) -> Session:
    assert store._session is not None
    return store._session


async def _had_turns(store: DynamoStore, count: int, *, ago: int, name: str = "new") -> None:
    pk = schema.turns(*LANE)
    rows = [
        {"pk": pk, "sk": turn_of(*LANE, f"{name}{n:03d}")[1], "position": 1, "turn_at": NOW - ago} for n in range(count)
    ]
    await _session(store).tables.put_many(Table.RECORDS, rows)


async def _rows(store: DynamoStore) -> list[Item]:
    ask = Ask(table=Table.RECORDS, hash=schema.turns(*LANE), begins="key|", consistent=True)
    return [row async for row in _session(store).tables.ask(ask)]
