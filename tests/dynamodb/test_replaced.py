"""A queue that is deleted and made anew is another one: who has it open is told, and goes no further."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreGone
from holdfast.store.conformance.factories import NOW, request
from holdfast.stores.dynamodb import DynamoStore
from tests.servers.dynamodb import DynamoDB


@pytest.fixture
def url(dynamodb: DynamoDB) -> str:
    return dynamodb.url()


async def _made_anew(url: str) -> None:
    store = DynamoStore(url)
    await store.erase()
    await store.migrate()


async def test_an_open_store_whose_tables_were_made_anew_is_gone(url: str) -> None:
    store = DynamoStore(url)
    await store.open()
    await _made_anew(url)

    with pytest.raises(StoreGone, match="made anew"):
        await store.claim(request(), NOW)
    await store.close()


async def test_an_idle_worker_whose_queue_was_made_anew_stops(url: str) -> None:
    app = Holdfast(url)

    @app.job("work")
    async def work(payload: Any) -> None: ...

    async with app:
        worker = app.worker()
        async with worker:
            await _made_anew(url)
            async with asyncio.timeout(60):
                await worker.join()
        assert isinstance(worker.failure, StoreGone)


async def test_a_migration_says_that_it_raised_the_shards(url: str) -> None:
    assert await DynamoStore(url).migrate() == ["0001_tables"]
    assert await DynamoStore(f"{url}&shards=4").migrate() == ["shards=4"]
    assert await DynamoStore(f"{url}&shards=4").migrate() == []
