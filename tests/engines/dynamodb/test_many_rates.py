"""More rates with waiting jobs than one promotion or sweep looks at: each gets its turn."""

from __future__ import annotations

import pytest

from backstay.core.lifecycle import cancel
from backstay.core.records import Rate, Signal
from backstay.engines.dynamodb import parking
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing.conformance.factories import HOUR, NOW, SECOND, claim_ids, record, settle, submit, submit_many

MANY = 5
DAILY = Rate(1, 24 * HOUR)


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "RATES_DUE_MAX", 2)
    monkeypatch.setattr(parking, "_PAGE", 2, raising=False)
    monkeypatch.setattr(parking, "_SWEPT_MAX", 2)


async def test_rates_that_wait_for_long_keep_none_from_its_turn(store: DynamoStore) -> None:
    for i in range(MANY):
        await submit_many(store, 2, job_type="slow", rate_key=f"a{i}", rate=DAILY)
    assert len(await claim_ids(store, slots={"slow": MANY})) == MANY
    quick = await submit_many(store, 3, rate_key="z", rate=Rate(1, SECOND))

    ran: list[str] = []
    for second in range(1, 8):
        ran += await claim_ids(store, now=NOW + second * SECOND)
        promoted = await store.promote(NOW + second * SECOND, 100)
        assert promoted.next_due_at is None or promoted.next_due_at <= NOW + 24 * HOUR

    assert ran == quick


async def test_of_many_that_are_due_at_once_those_left_over_come_next(store: DynamoStore) -> None:
    for i in range(MANY):
        await submit_many(store, 2, rate_key=f"a{i}", rate=Rate(1, SECOND))
    assert len(await claim_ids(store)) == MANY
    now = NOW + 2 * SECOND

    looks = 1
    while (await store.promote(now, 100)).next_due_at == now:
        looks += 1

    assert looks <= MANY
    assert len(await claim_ids(store, now=now)) == MANY


async def test_a_sweep_comes_to_each_that_nobody_looks_at(store: DynamoStore, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    for i in range(MANY):
        first = await submit(store, rate_key=f"a{i}", rate=DAILY)
        left.append(await submit(store, rate_key=f"a{i}", rate=DAILY))
        with monkeypatch.context() as patched:
            patched.setattr(parking, "after_leaving", _nothing)
            await settle(store, cancel(await record(store, first), by=None, reason=None))
    assert await claim_ids(store) == []

    for _ in range(MANY):
        await store.release(NOW, 100)

    assert sorted(await claim_ids(store)) == sorted(left)


async def test_marks_of_a_rate_do_not_pile_up(store: DynamoStore) -> None:
    await submit_many(store, 6, rate_key="a", rate=Rate(1, SECOND))
    for second in range(5):
        await claim_ids(store, now=NOW + second * SECOND)
        await store.promote(NOW + (second + 1) * SECOND, 100)

    assert store._session is not None
    marked = await parking.first(store._session, "r|", 100)
    assert len(marked[0]) <= 2


async def _nothing(*_: object) -> set[Signal]:
    return set()
