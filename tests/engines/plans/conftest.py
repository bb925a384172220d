import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from backstay.engines.sqlite.store import READERS, SQLiteStore
from tests.engines.plans.backlog import Meter


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def meter(store: SQLiteStore) -> Meter:
    meeting = threading.Barrier(READERS)

    def meet(connection: apsw.Connection) -> None:
        connection.execute("SELECT 1 FROM job").fetchall()  # reads the schema, which takes steps
        meeting.wait()

    await asyncio.gather(*(store._read(meet) for _ in range(READERS)))  # all have connected
    return Meter(store)
