"""Stores on DynamoDB Local, empty and of this test alone."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from backstay.engines.dynamodb.store import DynamoStore
from tests.support.servers.dynamodb import DynamoDB, empty


@pytest.fixture(scope="module")
def url(dynamodb: DynamoDB) -> str:
    return dynamodb.url(f"d_{secrets.token_hex(4)}")


@pytest.fixture
async def store(url: str) -> AsyncIterator[DynamoStore]:
    opened = DynamoStore(url)
    await opened.migrate()
    await empty(opened)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def second_store(store: DynamoStore, url: str) -> AsyncIterator[DynamoStore]:
    second = DynamoStore(url)
    await second.open()
    yield second
    await second.close()
