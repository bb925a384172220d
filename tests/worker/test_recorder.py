"""What a handler logs is written once, even if its worker stops in the middle of a write."""

import asyncio
import threading
from pathlib import Path

import pytest

from backstay import Backstay, Context
from backstay.errors import StoreUnavailable
from backstay.files.local import LOG_FILE, LocalFiles
from backstay.worker.recorder import Recorder


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
