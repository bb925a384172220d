"""Trees that are larger than one commit: as a whole or not at all, whoever dies in between."""

from __future__ import annotations

import pytest

from backstay.core.lifecycle import manual_retry
from backstay.core.records import Verdict
from backstay.engines.dynamodb import outbox, retention
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing.conformance.factories import DAY, NOW, SECOND, a_policy, completed, record, retire

AT_ONCE = a_policy(0, 0, 0)
LATER = NOW + DAY


class Died(Exception):
    pass


@pytest.fixture(autouse=True)
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "TREE_MAX", 3)
    monkeypatch.setattr(retention, "_MOVED_AT_ONCE", 2)


async def _tree(store: DynamoStore) -> list[str]:
    root = await completed(store)
    return [root, *[await completed(store, parent_job_id=root) for _ in range(4)]]


async def _archived(store: DynamoStore, job_ids: list[str]) -> list[bool]:
    return [(await record(store, job_id)).archived_at is not None for job_id in job_ids]


async def test_a_large_tree_goes_as_a_whole(store: DynamoStore) -> None:
    tree = await _tree(store)

    assert await retire(store, AT_ONCE, now=LATER) == 5

    assert await _archived(store, tree) == [True] * 5
    assert await store.release(LATER, 100) == 0


async def test_a_tree_of_which_a_part_was_retried_since_it_was_read_stays(
    store: DynamoStore, second_store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = await _tree(store)
    freeze = retention.retire_tree
    retry = manual_retry(await record(store, tree[3]), now=NOW, by=None, reason=None)

    async def after_a_retry(*given: object) -> int:
        assert await second_store.apply([retry], NOW) == [Verdict.APPLIED]
        return await freeze(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(retention, "retire_tree", after_a_retry)

    assert await retire(store, AT_ONCE, now=LATER) == 0

    assert await _archived(store, tree) == [False] * 5
    again = manual_retry(await record(store, tree[1]), now=NOW, by=None, reason=None)
    assert await store.apply([again], NOW) == [Verdict.APPLIED]  # nothing of it stayed frozen


async def test_who_dies_before_the_mark_leaves_ice_that_breaks(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = await _tree(store)

    with monkeypatch.context() as patched:
        patched.setattr(outbox, "new_mark", _dies)
        with pytest.raises(Died):
            await retire(store, AT_ONCE, now=LATER)
    retry = manual_retry(await record(store, tree[1]), now=NOW, by=None, reason=None)
    assert await store.apply([retry], NOW) == [Verdict.STALE]
    assert await retire(store, AT_ONCE, now=LATER + 30 * SECOND) == 0

    await retire(store, AT_ONCE, now=LATER + 120 * SECOND)
    assert await retire(store, AT_ONCE, now=LATER + 240 * SECOND) == 5
    assert await _archived(store, tree) == [True] * 5


async def test_what_is_left_of_a_tree_when_its_mover_dies_is_moved_by_others(
    store: DynamoStore, second_store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = await _tree(store)
    with monkeypatch.context() as patched:
        patched.setattr(retention, "remove", _dies)
        with pytest.raises(Died):
            await retire(store, AT_ONCE, now=LATER)
    assert sorted(await _archived(store, tree)) == [False] * 3 + [True] * 2

    assert await second_store.release(LATER, 100) == 3

    assert await _archived(store, tree) == [True] * 5


def _dies(*_: object, **__: object) -> None:
    raise Died
