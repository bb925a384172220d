"""The DynamoDB engine keeps the port."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from backstay.engines.dynamodb import settle, transfer
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing import conformance
from backstay.testing.conformance import *  # noqa: F403
from tests.support.servers.dynamodb import DynamoDB, empty

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture(scope="module")
def url(dynamodb: DynamoDB) -> str:
    made = dynamodb.url(f"c_{secrets.token_hex(4)}")
    asyncio.run(DynamoStore(made).migrate())
    return made


@pytest.fixture
async def store(url: str) -> AsyncIterator[DynamoStore]:
    opened = DynamoStore(url)
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
def _nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process has looked at the board a moment ago."""
    monkeypatch.setattr(transfer, "SETTLING_SECONDS", 0.0)


@pytest.fixture
async def elsewhere(dynamodb: DynamoDB) -> AsyncIterator[DynamoStore]:
    other = DynamoStore(dynamodb.url(f"e_{secrets.token_hex(4)}"))
    await other.open()
    yield other
    await other.close()


@pytest.fixture
def nowhere(dynamodb: DynamoDB) -> DynamoStore:
    return DynamoStore(dynamodb.url(f"n_{secrets.token_hex(4)}"))


@pytest.fixture
def many() -> int:
    return 130  # more than one of its transactions takes, too; a thousand would take DynamoDB Local a minute


class TestReleaseOutbox(conformance.TestReleaseOutbox):
    """With fewer at once: a thousand edges of one job take DynamoDB Local ten seconds."""

    AT_ONCE = 120
    COUNT = AT_ONCE + 100

    @pytest.fixture(autouse=True)
    def _fewer_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(settle, "RELEASE_BATCH_MAX", self.AT_ONCE)
