"""Temporary."""
import secrets
from collections.abc import AsyncIterator
import pytest
from holdfast.store.conformance import *  # noqa: F403
from holdfast.stores.dynamodb import DynamoStore
from tests.servers.dynamodb import DynamoDB, empty


@pytest.fixture(scope="module")
def url(dynamodb: DynamoDB) -> str:
    return dynamodb.url(f"c_{secrets.token_hex(4)}", shards="3")


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
