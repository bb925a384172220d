"""Turns of fairness keys: how they are stored, and where very many keys have had one."""

from __future__ import annotations

from collections import Counter

import pytest

from backstay.core.admission import LaneTurns
from backstay.engines.dynamodb import fairness, schema
from backstay.engines.dynamodb.expressions import Ask, equals, put
from backstay.engines.dynamodb.fairness import LaneState, Waiting, count_turns, in_turn
from backstay.engines.dynamodb.schema import Item, Table, turn_of
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing.conformance.factories import HOUR, NOW, claim_ids, record, submit_many

LANE = ("default", "work")


def _waiting(key: str, count: int) -> Waiting:
    return Waiting(turn_of(*LANE, key)[1], 1, [{"job_id": f"{key}{i}"} for i in range(count)])


def test_keys_take_turns_and_their_own_jobs_keep_their_order() -> None:
    taken = in_turn([_waiting("a", 3), _waiting("b", 3)], LaneState(), 5)

    assert [row["job_id"] for _, row in taken] == ["a0", "b0", "a1", "b1", "a2"]


def test_a_lane_that_another_claim_has_changed_is_not_written() -> None:
    was = LaneState(position=3, after="z", nonce="read")
    mine = turn_of(*LANE, "a")[1]

    lane, *rows = count_turns(LANE, was, LaneTurns(5, {mine: 8}), NOW)

    assert lane.item is not None
    assert lane == put(Table.RECORDS, lane.item, equals("nonce", "read"))
    assert (lane.item["position"], lane.item["after"]) == (5, "z")
    assert lane.item["nonce"] != "read"
    assert [row.item for row in rows] == [{"pk": lane.item["pk"], "sk": mine, "position": 8, "turn_at": NOW}]


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
