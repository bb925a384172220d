"""Stores on DynamoDB Local, empty and of this test alone."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from backstay.engines.dynamodb.store import DynamoStore
from backstay.engines.dynamodb.table import Tables
from tests.support.servers.dynamodb import DynamoDB, empty


@pytest.fixture(scope="module")
def url(dynamodb: DynamoDB) -> str:
    return dynamodb.url(f"d_{secrets.token_hex(4)}")


@pytest.fixture
async def tables(url: str) -> AsyncIterator[Tables]:
    """A connection to whatever is there, without a store."""
    made = DynamoStore(url)._tables()
    yield made
    await made.wire.close()


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


@pytest.fixture(autouse=True)
def _patience(patient: None) -> None:
    """For all modules, except those about time limits, which replace `patient`."""
