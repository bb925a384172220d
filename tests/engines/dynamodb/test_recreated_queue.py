"""A queue that is deleted and created again is another one: who has it open is told, and goes no further."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay import Backstay
from backstay.engines.dynamodb.store import DynamoStore
from backstay.errors import StoreGone
from backstay.testing.conformance.factories import NOW, request
from tests.support.servers.dynamodb import DynamoDB


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

    with pytest.raises(StoreGone, match="created again"):
        await store.claim(request(), NOW)
    await store.close()


async def test_an_idle_worker_whose_queue_was_made_anew_stops(url: str) -> None:
    app = Backstay(url)

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
