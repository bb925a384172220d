"""A verb does not pay for what it has nothing to do with. Counted in SQLite's own steps, not in time."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from backstay.engines.sqlite.store import SQLiteStore
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    a_worker,
    claim_ids,
    completed,
    new_job,
    request,
    running,
    submit,
)
from tests.engines.plans.backlog import CROWDS, Meter, crowd

SLACK = 700  # steps, to let one job in that a key has held back; a walk past the crowd would take ten times as many


async def _claim(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    job_id = await submit(store, job_type="mine")

    async def claim() -> None:
        assert await claim_ids(store, slots={"mine": 9}) == [job_id]

    return claim


async def _claim_nothing(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.claim(request(slots={"a": 1, "b": 1}), NOW)


async def _repeat_claim(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await running(store)
    return lambda: store.claim(request(repeat=True, slots={"a": 1}), NOW)


async def _complete(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    claim = await running(store)
    return lambda: store.apply([claim.completes()], NOW)


async def _fail(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    claim = await running(store)
    return lambda: store.apply([claim.fails()], NOW)


async def _extend(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    claim = await running(store)
    return lambda: store.extend([claim.hold], NOW, NOW)


async def _insert(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.insert([new_job()], NOW)


async def _insert_with_a_key(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.insert([new_job(concurrency_key="gpu", dedup_key="k")], NOW)


async def _insert_to_reuse(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await completed(store, job_type="embed", content_hash="h")
    return lambda: store.insert([new_job(job_type="embed", content_hash="h", reuse_since=0)], NOW)


async def _insert_to_join(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await submit(store, job_type="embed", content_hash="h", scheduled_for=NOW + HOUR)
    return lambda: store.insert([new_job(job_type="embed", content_hash="h", reuse_since=NOW + 1)], NOW)


async def _promote(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await submit(store, scheduled_for=NOW + 1)
    return lambda: store.promote(NOW + 1, 10)


async def _expired(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    await running(store, lease_micros=0)
    return lambda: store.expired(NOW, 10)


async def _release(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.release(NOW, 10)


async def _beat(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    return lambda: store.beat(a_worker())


VERBS = [
    _claim,
    _claim_nothing,
    _repeat_claim,
    _complete,
    _fail,
    _extend,
    _insert,
    _insert_with_a_key,
    _insert_to_reuse,
    _insert_to_join,
    _promote,
    _expired,
    _release,
    _beat,
]


async def test_a_claim_never_walks_past_a_hundred_thousand_jobs_of_a_foreign_type(
    store: SQLiteStore, meter: Meter
) -> None:
    await (await _claim(store))()  # every statement has been prepared
    alone = await meter.cost(await _claim(store))
    await crowd(store, CROWDS["foreign pending"], 100_000)

    beside = await meter.cost(await _claim(store))

    assert beside == alone
    assert beside[0] < 1_000


@pytest.mark.parametrize("kind", CROWDS)
async def test_no_verb_of_the_hot_path_or_the_upkeep_pays_for_what_stands_beside_it(
    store: SQLiteStore, meter: Meter, kind: str
) -> None:
    alone = {verb.__name__: (await meter.cost(await verb(store)))[0] for verb in VERBS}
    await crowd(store, CROWDS[kind], 5_000)

    beside = {verb.__name__: (await meter.cost(await verb(store)))[0] for verb in VERBS}

    assert {name: (alone[name], beside[name]) for name in alone if beside[name] > alone[name] + SLACK} == {}
