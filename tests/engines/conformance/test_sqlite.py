"""The SQLite engine keeps the port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backstay.engines.sqlite.store import SQLiteStore
from backstay.testing.conformance import *  # noqa: F403
from tests.support.places import broken_rules


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await opened.open()
    yield opened
    await opened.close()
    assert broken_rules(opened.path) == []


@pytest.fixture
async def second_store(store: SQLiteStore) -> AsyncIterator[SQLiteStore]:
    second = SQLiteStore(store.location)
    await second.open()
    yield second
    await second.close()


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    other = SQLiteStore(f"sqlite:///{tmp_path}/elsewhere.db")
    await other.open()
    yield other
    await other.close()
    assert broken_rules(other.path) == []


@pytest.fixture
def nowhere(tmp_path: Path) -> SQLiteStore:
    return SQLiteStore(f"sqlite:///{tmp_path}/nowhere.db")
