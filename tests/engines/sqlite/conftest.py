"""A queue in a file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backstay.engines.sqlite.store import SQLiteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await opened.open()
    yield opened
    await opened.close()
