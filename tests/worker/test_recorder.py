"""What a handler logs is written once, and is there when its job has ended."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, Context
from backstay.clock import Instant
from backstay.core.records import Note
from backstay.engines.sqlite.store import SQLiteStore
from backstay.errors import StoreUnavailable
from backstay.files.local import LOG_FILE, LocalFiles
from backstay.worker.recorder import Recorder
from backstay.worker.run import Report, Run


async def test_progress_is_written_at_most_once_a_second_however_often_it_is_told(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[float, float | None]] = []
    twice = asyncio.Event()
    note = SQLiteStore.note

    async def noted(store: SQLiteStore, notes: Sequence[Note], now: Instant) -> Any:
        written.extend((time.monotonic(), each.progress) for each in notes)
        if len(written) >= 2:
            twice.set()
        return await note(store, notes, now)

    monkeypatch.setattr(SQLiteStore, "note", noted)
    told = 0

    @app.job("work")
    async def work(payload: None, ctx: Context) -> None:
        nonlocal told
        while not twice.is_set():
            told += 1
            await ctx.progress(min(0.99, told / 1e6))
            await asyncio.sleep(0)

    async with app, app.worker():
        await (await work.submit(None)).result(timeout=20)
    (first, one), (second, other) = written
    assert told > 100 and one is not None and other is not None and one < other
    assert second - first >= app_seconds(app) * 0.99


def app_seconds(app: Backstay) -> float:
    return SQLiteStore(app.url).record_seconds


class SlowFiles(LocalFiles):
    """The first write fails, as if the store were away; the next one takes until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.writes = 0
        self.in_a_write, self.let_go = threading.Event(), threading.Event()

    def append(self, job_id: str, name: str, content: bytes, size_max: int) -> None:
        self.writes += 1
        if self.writes == 1:
            raise StoreUnavailable("away")
        self.in_a_write.set()
        self.let_go.wait(30)
        super().append(job_id, name, content, size_max)


async def test_a_line_that_is_being_written_when_the_worker_stops_is_in_the_log_once(
    app: Backstay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SlowFiles(tmp_path / "files")
    monkeypatch.setattr("backstay.app.open_files", lambda *_: files)
    close = Recorder.close

    async def close_during_the_write(recorder: Recorder, seconds: float) -> None:
        files.let_go.set()  # its loop has been cancelled, in the middle of the write
        await close(recorder, seconds)

    monkeypatch.setattr(Recorder, "close", close_during_the_write)

    @app.job("talk")
    async def talk(payload: None, ctx: Context) -> None:
        ctx.log.info("said once")

    async with app:
        worker = app.worker()
        async with worker:
            handle = await talk.submit(None)
            await handle.result(timeout=30)
            assert await asyncio.to_thread(files.in_a_write.wait, 30)
            await worker.stop()
    text = files.read_part(handle.job_id, LOG_FILE, 0, 1_000) or b""
    assert text.decode().count("said once") == 1


class HeldFiles(LocalFiles):
    """A write takes until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.in_a_write, self.let_go = threading.Event(), threading.Event()

    def append(self, job_id: str, name: str, content: bytes, size_max: int) -> None:
        self.in_a_write.set()
        self.let_go.wait(30)
        super().append(job_id, name, content, size_max)


async def test_a_job_that_has_ended_has_its_whole_log_even_if_a_write_was_under_way_when_it_ended(
    app: Backstay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = HeldFiles(tmp_path / "files")
    monkeypatch.setattr("backstay.app.open_files", lambda *_: files)
    settling = asyncio.Event()
    write_log = Recorder.write_log

    async def say_who_comes(recorder: Recorder, run: Report) -> None:
        if isinstance(run, Run) and run.settling:
            settling.set()
        await write_log(recorder, run)

    monkeypatch.setattr(Recorder, "write_log", say_who_comes)

    @app.job("talk")
    async def talk(payload: None, ctx: Context) -> None:
        ctx.log.info("said")
        await asyncio.to_thread(files.in_a_write.wait, 30)  # the recorder writes what was logged so far

    async with app, app.worker():
        handle = await talk.submit(None)
        async with asyncio.timeout(30):
            await settling.wait()
        unsettled = (await app.get(handle.job_id)).status
        files.let_go.set()
        await handle.result(timeout=30)
        job = await app.get(handle.job_id)

    assert unsettled == "processing"
    assert job.logs["log_location"] == files.uri(handle.job_id, LOG_FILE)
    assert b"said" in (files.read_part(handle.job_id, LOG_FILE, 0, 1_000) or b"")
