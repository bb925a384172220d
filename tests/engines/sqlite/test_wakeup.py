"""Listeners of a SQLite queue in other processes: sockets that go when the store does."""

import asyncio
import gc
import os
from pathlib import Path

import pytest

from backstay.core.records import Signal
from backstay.engines.sqlite.store import SQLiteStore
from backstay.testing import ManualClock
from backstay.testing.conformance.factories import submit


async def test_a_store_that_is_closed_leaves_no_socket_open_though_somebody_still_listens(tmp_path: Path) -> None:
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    stop = store.listen(frozenset(Signal), lambda signal: None)
    assert os.listdir(tmp_path / "jobs.db.bell")

    await store.close()

    assert os.listdir(tmp_path / "jobs.db.bell") == []
    stop()  # later, as the tasks of a server end
    gc.collect()  # a socket that was left open would warn here, and a warning is an error


async def test_a_process_that_submits_and_leaves_wakes_the_workers(tmp_path: Path) -> None:
    worker, submitter = (SQLiteStore(f"sqlite:///{tmp_path}/jobs.db") for _ in range(2))
    await worker.open()
    heard = asyncio.Event()
    worker.listen(frozenset({Signal.READY}), lambda _: heard.set())
    await submitter.open()

    await submit(submitter)
    await submitter.close()

    async with asyncio.timeout(20):
        await heard.wait()
    await worker.close()


async def test_a_worker_that_starts_late_is_woken_though_none_was_there_for_long(tmp_path: Path) -> None:
    worker, submitter = (SQLiteStore(f"sqlite:///{tmp_path}/jobs.db") for _ in range(2))
    await submitter.open()
    clock = submitter._bell._watched.clock = ManualClock()
    await submit(submitter)
    clock.advance(60)
    await submit(submitter)
    await submit(submitter)  # by now it knows that there is none
    await worker.open()
    heard = asyncio.Event()
    worker.listen(frozenset({Signal.READY}), lambda _: heard.set())

    await submit(submitter)

    async with asyncio.timeout(20):
        await heard.wait()
    await submitter.close()
    await worker.close()


async def test_submits_do_not_list_the_listeners_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    clock = store._bell._watched.clock = ManualClock()
    await submit(store)
    clock.advance(60)
    await submit(store)
    monkeypatch.setattr("backstay.engines.sqlite.wakeup.os.listdir", lambda _: pytest.fail("it was listed again"))

    await submit(store)
    await submit(store)

    await store.close()


async def test_a_worker_is_woken_that_came_within_a_tick_of_the_folders_time(tmp_path: Path) -> None:
    worker, submitter = (SQLiteStore(f"sqlite:///{tmp_path}/jobs.db") for _ in range(2))
    await submitter.open()
    await worker.open()
    clock = submitter._bell._watched.clock = ManualClock()
    folder = tmp_path / "jobs.db.bell"
    before = os.stat(folder)
    await submit(submitter)
    heard = asyncio.Event()
    worker.listen(frozenset({Signal.READY}), lambda _: heard.set())
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    clock.advance(60)

    await submit(submitter)

    async with asyncio.timeout(20):
        await heard.wait()
    await submitter.close()
    await worker.close()
