"""DynamoDB on a bad day: late indexes, throttling, conflicts, another time. Nothing is lost, and nothing done twice."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from backstay.clock import SystemClock
from backstay.core.records import Rate, Signal, Verdict
from backstay.engines.dynamodb import table
from backstay.engines.dynamodb.store import DynamoStore
from backstay.errors import StoreBusy, StoreUnavailable, StoreUnsafe
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    SECOND,
    Claim,
    claim_ids,
    new_job,
    record,
    request,
    running,
    submit,
    submit_many,
)
from backstay.testing.conformance.test_read import SignalRecorder
from tests.support.servers.dynamo_proxy import DynamoProxy
from tests.support.servers.dynamodb import DynamoDB


@pytest.fixture
def patient() -> None:
    """Not here: time limits are what is tested."""


@pytest.fixture
def line(dynamodb: DynamoDB) -> Iterator[DynamoProxy]:
    with DynamoProxy(dynamodb.port) as proxy:
        yield proxy


@pytest.fixture
def url(dynamodb: DynamoDB, line: DynamoProxy) -> str:
    url = dynamodb.url(f"f_{secrets.token_hex(4)}", wake="false")
    return url.replace(f":{dynamodb.port}", f":{line.port}")


@pytest.fixture
async def store(url: str) -> AsyncIterator[DynamoStore]:
    opened = DynamoStore(url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def second_store(store: DynamoStore, url: str) -> AsyncIterator[DynamoStore]:
    second = DynamoStore(url)
    await second.open()
    yield second
    await second.close()


async def _drain(stores: list[DynamoStore], total: int) -> list[str]:
    """Claim until everything is taken, or nothing more comes for a while."""
    taken: list[str] = []
    idle = 0
    while len(taken) < total and idle < 200:
        rounds = await asyncio.gather(*(claim_ids(each, limit=7) for each in stores))
        found = [job_id for ids in rounds for job_id in ids]
        idle = 0 if found else idle + 1
        taken += found
    return taken


async def test_a_job_that_the_index_does_not_show_yet_is_claimed_later(store: DynamoStore, line: DynamoProxy) -> None:
    line.stale(60)
    job_id = await submit(store)

    assert await claim_ids(store) == []
    line.heal()
    assert await claim_ids(store) == [job_id]


async def test_who_is_woken_before_the_index_shows_the_job_is_woken_again(
    store: DynamoStore, line: DynamoProxy
) -> None:
    line.stale(0.3)
    ear = SignalRecorder(store, Signal.READY)
    job_id = await submit(store)

    taken: list[str] = []
    async with asyncio.timeout(5):
        while not taken:
            await ear.heard_anew()
            taken = await claim_ids(store)

    assert taken == [job_id]
    ear.stop()


async def test_a_job_for_later_that_the_index_does_not_show_yet_is_asked_for_again(
    store: DynamoStore, line: DynamoProxy
) -> None:
    line.stale(0.3)
    ear = SignalRecorder(store, Signal.DUE)
    await submit(store, scheduled_for=NOW + HOUR)

    due = None
    async with asyncio.timeout(5):
        while due is None:
            await ear.heard_anew()
            due = (await store.promote(NOW, 10)).next_due_at

    assert due == NOW + HOUR
    ear.stop()


async def test_a_job_that_the_index_still_shows_is_not_claimed_again(
    store: DynamoStore, second_store: DynamoStore, line: DynamoProxy
) -> None:
    first, second = await submit_many(store, 2)
    line.stale(0.001)
    assert await claim_ids(store, limit=1) == [first]  # and both were seen
    line.stale(60)
    assert await claim_ids(second_store, limit=1) == [second]
    line.calls.clear()

    assert await claim_ids(store) == []

    assert "BatchGetItem" in line.calls or "GetItem" in line.calls
    assert "UpdateItem" not in line.calls


async def test_with_late_indexes_no_job_is_claimed_twice_and_none_is_lost(
    store: DynamoStore, second_store: DynamoStore, line: DynamoProxy
) -> None:
    line.stale(0.3)
    ids = await submit_many(store, 40)

    taken = await _drain([store, second_store], len(ids))

    assert sorted(taken) == sorted(ids)
    assert {(await record(store, job_id)).attempt for job_id in ids} == {1}


@pytest.mark.parametrize(
    "changes",
    [{"concurrency_key": "gpu", "concurrency_limit": 2}, {"rate_key": "api", "rate": Rate(4, SECOND)}],
    ids=["key", "rate"],
)
async def test_with_late_indexes_those_that_have_to_wait_get_in_without_a_sweep(
    store: DynamoStore, line: DynamoProxy, changes: dict[str, Any]
) -> None:
    """As a worker does it: claim when woken, promote when due. Upkeep would let them in too, half a minute later."""
    line.stale(0.3)
    clock = SystemClock()
    ids = [await submit(store, now=clock.now(), **changes) for _ in range(8)]
    holders: list[Claim] = []
    done: list[str] = []
    async with asyncio.timeout(20):
        while len(done) < len(ids):
            asked = request(limit=5)
            await store.promote(clock.now(), 10)
            holders += [Claim(job, asked.token) for job in await store.claim(asked, clock.now())]
            assert len(holders) <= (2 if "concurrency_key" in changes else 5)
            if holders:
                claim = holders.pop(0)
                assert await store.apply([claim.completes()], clock.now()) == [Verdict.APPLIED]
                done.append(claim.job_id)

    assert sorted(done) == sorted(ids)


async def test_one_that_the_index_shows_late_gets_in_after_others_of_its_rate_did_without_a_sweep(
    store: DynamoStore, line: DynamoProxy
) -> None:
    rate = {"rate_key": "api", "rate": Rate(2, SECOND)}
    line.stale(0.001)
    first, second, third = [await submit(store, **rate) for _ in range(3)]
    await store.release(NOW, 10)  # now the index has been seen with the third
    assert sorted(await claim_ids(store)) == sorted([first, second])
    line.stale(60)
    late = await submit(store, **rate)
    assert (await record(store, third)).parked and (await record(store, late)).parked
    await store.promote(NOW + SECOND, 10)
    assert not (await record(store, third)).parked  # only this one was seen, and there was room for both
    line.heal()

    await store.promote(NOW + 3 * SECOND, 10)

    assert not (await record(store, late)).parked


async def test_one_that_was_parked_while_its_holder_was_leaving_gets_in_without_a_sweep(
    store: DynamoStore, line: DynamoProxy
) -> None:
    clock = SystemClock()
    holder = await running(store, concurrency_key="gpu", now=clock.now())
    line.stale(0.3)
    waiting = await submit(store, concurrency_key="gpu", now=clock.now())
    assert (await record(store, waiting)).parked
    ear = SignalRecorder(store, Signal.READY)
    assert await store.apply([holder.completes(now=clock.now())], clock.now()) == [Verdict.APPLIED]

    taken: list[str] = []
    async with asyncio.timeout(5):
        while not taken:
            await ear.heard_anew()
            taken = await claim_ids(store, now=clock.now())

    assert taken == [waiting]
    ear.stop()


async def test_throttled_by_a_third_everything_is_done_once_and_no_lease_is_lost(
    store: DynamoStore, line: DynamoProxy
) -> None:
    line.throttle(0.3)
    ids = await submit_many(store, 10)
    asked = request()
    claims = [Claim(job, asked.token) for job in await store.claim(asked, NOW)]

    extended = await store.extend([claim.hold for claim in claims], NOW + HOUR, NOW)
    settled = await store.apply([claim.completes() for claim in claims], NOW)

    assert extended == settled == [Verdict.APPLIED] * len(ids)
    line.heal()
    assert (await store.counts())["completed"] == len(ids)


async def test_conflicts_with_other_transactions_are_not_called_stale(store: DynamoStore, line: DynamoProxy) -> None:
    await submit_many(store, 5)
    line.conflict(0.5)
    asked = request()
    claims = [Claim(job, asked.token) for job in await store.claim(asked, NOW)]

    verdicts = await asyncio.gather(
        store.extend([claim.hold for claim in claims], NOW + HOUR, NOW),
        store.apply([claim.completes() for claim in claims], NOW),
    )

    assert verdicts[1] == [Verdict.APPLIED] * 5


async def test_a_clock_that_is_wrong_claims_nothing_and_goes_on_settling(store: DynamoStore, line: DynamoProxy) -> None:
    await submit(store)
    asked = request()
    [job] = await store.claim(asked, NOW)
    line.date(30)
    for _ in range(5):
        await store.insert([new_job()], NOW)

    with pytest.raises(StoreUnsafe, match="clock is"):
        await store.claim(request(), NOW)
    assert await store.apply([Claim(job, asked.token).completes()], NOW) == [Verdict.APPLIED]

    line.heal()
    await store.counts()
    assert len(await claim_ids(store)) == 5


async def test_a_line_that_is_silent_is_an_error_in_bounded_time_and_heals(
    store: DynamoStore, line: DynamoProxy
) -> None:
    job_id = await submit(store)
    line.blackhole()

    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(20):
            await store.claim(request(), NOW)

    line.heal()
    assert await claim_ids(store) == [job_id]


async def test_a_batch_of_which_nothing_gets_through_ends_with_its_time(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await submit_many(store, 3)
    wire = store._open().tables.wire
    persist = wire.persist

    async def leave(operation: str, body: dict[str, Any], **how: Any) -> dict[str, Any]:
        if operation == "BatchGetItem":
            return {"Responses": {}, "UnprocessedKeys": body["RequestItems"]}
        if operation == "BatchWriteItem":
            return {"UnprocessedItems": body["RequestItems"]}
        return await persist(operation, body, **how)

    monkeypatch.setattr(wire, "persist", leave)
    monkeypatch.setattr(table, "SECONDS", 0.1)

    async with asyncio.timeout(5):
        with pytest.raises(StoreBusy, match="throttled"):
            await store.get(ids)
        with pytest.raises(StoreBusy, match="throttled"):
            await store.insert([new_job(payload=f'"{"x" * 300}"')], NOW)


async def test_a_service_that_is_not_there_is_named() -> None:
    with pytest.raises(StoreUnavailable, match=r"dynamodb://nobody\?.*Connection refused.*is the endpoint right\?"):
        await DynamoStore("dynamodb://nobody?region=local&endpoint=http://127.0.0.1:1").open()
