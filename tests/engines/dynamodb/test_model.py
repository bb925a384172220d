"""The state machine of tests/engines/model on DynamoDB: what it does is what a queue in plain Python does."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backstay.core.port import Store
from backstay.engines.dynamodb.store import DynamoStore
from tests.engines.model.engines import Engine
from tests.engines.model.test_model import _drive
from tests.support.servers.dynamodb import DynamoDB, empty


def on_dynamodb(server: DynamoDB, **options: str) -> Engine:
    """Two tables for all runs, emptied for each: to make them takes longer than to empty them."""
    url = server.url(f"model_{secrets.token_hex(4)}", wake="false", **options)

    @contextmanager
    def fresh(loop: asyncio.AbstractEventLoop) -> Iterator[Store]:
        store = DynamoStore(url)
        loop.run_until_complete(store.migrate())
        loop.run_until_complete(empty(store))
        loop.run_until_complete(store.open())
        yield store
        loop.run_until_complete(store.close())

    return fresh


@pytest.mark.timeout(600)
def test_dynamodb_does_what_a_queue_in_plain_python_does(dynamodb: DynamoDB) -> None:
    _drive(on_dynamodb(dynamodb), examples=12)
