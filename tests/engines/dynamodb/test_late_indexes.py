"""What an index shows late, twice or not at all: claims and sweeps hold to the table all the same."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.core.lifecycle import reprioritise
from backstay.engines.dynamodb import admission, claim, fairness, parking, schema
from backstay.engines.dynamodb.schema import Item
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing.conformance.factories import (
    NOW,
    SECOND,
    claim_ids,
    claim_one,
    record,
    settle,
    submit,
    submit_many,
)


def _session(store: DynamoStore) -> Session:
    assert store._session is not None
    return store._session


class TestAJobThatIsShownTwice:
    async def test_is_claimed_once(self, store: DynamoStore, monkeypatch: pytest.MonkeyPatch) -> None:
        ids = await submit_many(store, 2)
        shown_once = claim._shard

        async def shown_twice(*asked: Any) -> list[Item]:
            first, *others = await shown_once(*asked)
            return [first, {**first, "gq": first["gq"].replace("|050|", "|060|")}, *others]

        monkeypatch.setattr(claim, "_shard", shown_twice)

        assert await claim_ids(store) == ids

    async def test_because_it_moved_to_another_level_is_claimed_once(
        self, store: DynamoStore, second_store: DynamoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moved, other = await submit(store, fairness_key="a"), await submit(store, fairness_key="b", priority=10)
        next_level = fairness._next_level
        levels = 0

        async def next_level_after_a_move(*asked: Any) -> str | None:
            nonlocal levels
            levels += 1
            if levels == 2:
                edit = reprioritise(await record(second_store, moved), priority=20, by="me", reason=None)
                await settle(second_store, edit)
            return await next_level(*asked)

        monkeypatch.setattr(fairness, "_next_level", next_level_after_a_move)

        assert sorted(await claim_ids(store)) == sorted([moved, other])

    @pytest.mark.parametrize("key", [schema.HIGH, f"{schema.HIGH}z", "\x00"])
    async def test_because_of_its_fairness_key_is_claimed_once(self, store: DynamoStore, key: str) -> None:
        ids = [await submit(store, fairness_key=each) for each in ("tenant", key, None)]

        assert sorted(await claim_ids(store)) == sorted(ids)


async def test_one_who_starts_again_while_the_sweep_looks_keeps_its_place_under_the_limit(
    store: DynamoStore, second_store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await submit_many(store, 2, concurrency_key="gpu", concurrency_limit=1)
    claim = await claim_one(store, first)
    read = _session(second_store).tables.get
    looks = 0

    async def get_in_between(*asked: Any, **how: Any) -> list[Item | None]:
        """The sweep reads the gate, then the job; it is given back before the second look, and starts after it."""
        nonlocal looks
        looks += 1
        if looks == 2:
            await settle(store, claim.gives_back())
        found = await read(*asked, **how)
        if looks == 2:
            assert await claim_ids(store) == [first]
        return found

    monkeypatch.setattr(_session(second_store).tables, "get", get_in_between)
    await parking._drop_dead_holders(_session(second_store), "gpu", 1, NOW)
    monkeypatch.undo()

    assert looks == 2
    assert await admission.holders(_session(store).tables, "gpu") == {first}
    await store.release(NOW + SECOND, 100)
    assert await claim_ids(store) == []
    assert (await record(store, second)).attempt == 0
