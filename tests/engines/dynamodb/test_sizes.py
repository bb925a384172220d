"""What is too large for an item is refused by name, or cut where nothing rests on it: DynamoDB's own words tell nobody
what to do."""

from __future__ import annotations

import msgspec
import pytest

from backstay.core.records import JobType, Verdict
from backstay.engines.dynamodb.store import DynamoStore
from backstay.errors import ConfigurationError, InvalidSchedule
from backstay.ids import new_id
from backstay.testing.conformance.factories import NOW, a_schedule, a_worker


async def test_a_schedule_of_which_an_item_cannot_hold_the_payload_is_refused(store: DynamoStore) -> None:
    quotes = "[" + '"",' * 87_000 + '""]'  # within what a payload may have
    large = msgspec.json.encode({"payload": quotes}).decode()

    with pytest.raises(InvalidSchedule, match="DynamoDB keeps"):
        await store.save_schedule(a_schedule(template=large), None)

    assert await store.save_schedule(a_schedule(), None) is Verdict.APPLIED
    with pytest.raises(InvalidSchedule, match="DynamoDB keeps"):
        await store.save_schedule(a_schedule(template=large), 1)


async def test_a_worker_that_runs_more_than_an_item_can_list_beats_all_the_same(store: DynamoStore) -> None:
    running = tuple(new_id(NOW) for _ in range(12_000))

    await store.beat(a_worker(running=running))

    [worker] = await store.workers()
    assert len(worker.running) > 1_000
    assert worker.running == running[: len(worker.running)]


async def test_a_model_whose_schema_an_item_cannot_hold_is_refused(store: DynamoStore) -> None:
    large = JobType(
        job_type="t",
        queue="q",
        priority=1,
        max_attempts=1,
        timeout_micros=1,
        payload_schema="x" * 410_000,
        version=1,
        last_seen=NOW,
    )

    with pytest.raises(ConfigurationError, match="announcement of t"):
        await store.announce([large])
