"""Listeners of a SQLite queue in other processes: sockets that go when the store does."""

import gc
import os
from pathlib import Path

from backstay.core.records import Signal
from backstay.engines.sqlite.store import SQLiteStore


async def test_a_store_that_is_closed_leaves_no_socket_open_though_somebody_still_listens(tmp_path: Path) -> None:
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    stop = store.listen(frozenset(Signal), lambda signal: None)
    assert os.listdir(tmp_path / "jobs.db.bell")

    await store.close()

    assert os.listdir(tmp_path / "jobs.db.bell") == []
    stop()  # later, as the tasks of a server end
    gc.collect()  # a socket that was left open would warn here, and a warning is an error
