"""Files of a job go in and out in pieces, whichever way the handler runs."""

import asyncio
import hashlib
import tempfile
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backstay import ArtifactNotFound, Backstay, BlockingContext, ClaimLost, Context, JobFailed, StoreError
from backstay.limits import MIB
from backstay.sync import Backstay as BlockingBackstay
from tests.app import results_jobs
from tests.app.results_jobs import KINDS, WHOLE
from tests.support.eventually import eventually

HEAVY = 200 * MIB


def in_a_loop(app: Backstay) -> Any:
    @app.job("keep", max_attempts=1)
    async def keep(payload: str, ctx: Context) -> None:
        await results_jobs.keep_async(ctx, payload)

    return keep


def in_a_thread(app: Backstay) -> Any:
    @app.job("keep", max_attempts=1)
    def keep(payload: str, ctx: BlockingContext) -> None:
        results_jobs.keep(ctx, payload)

    return keep


def in_a_process(app: Backstay) -> Any:
    return app.job("keep_in_a_process", isolation="process", max_attempts=1)(results_jobs.keep_in_a_process.function)


def in_an_async_process(app: Backstay) -> Any:
    function = results_jobs.keep_in_an_async_process.function
    return app.job("keep_in_an_async_process", isolation="process", max_attempts=1)(function)


@pytest.mark.parametrize("handler", [in_a_loop, in_a_thread, in_a_process, in_an_async_process])
async def test_a_file_may_be_handed_over_in_any_form(
    app: Backstay, handler: Callable[[Backstay], Any], tmp_path: Path
) -> None:
    keep = handler(app)
    async with app, app.worker():
        job = await keep.submit(str(tmp_path))
        await job.result(timeout=60)

        stored = {each.name: each for each in await app.artifacts(job.job_id)}
        assert set(stored) == set(KINDS)
        for name in KINDS:
            wanted = ("ä" * (len(WHOLE) // 2)).encode() if name == "text" else WHOLE
            sizes = []
            found = hashlib.sha256()
            async for piece in app.open_artifact(job.job_id, name):
                sizes.append(len(piece))
                found.update(piece)
            assert found.hexdigest() == hashlib.sha256(wanted).hexdigest() == stored[name].sha256
            assert max(sizes) <= MIB < sum(sizes)
    assert list(Path(tempfile.gettempdir()).glob("backstay-child-*")) == []


async def test_a_large_file_is_never_in_memory_whole(app: Backstay) -> None:
    @app.job("heavy", max_attempts=1)
    async def heavy(payload: Any, ctx: Context) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            piece = bytes(MIB)
            for _ in range(HEAVY // MIB):
                yield piece

        await ctx.artifact("heavy", pieces())

    async with app, app.worker():
        tracemalloc.start()
        try:
            job = await heavy.submit(None)
            await job.result(timeout=60)
            size = sum([len(piece) async for piece in app.open_artifact(job.job_id, "heavy")])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert size == HEAVY
    assert peak < 16 * MIB


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (7, "not int"),
        (None, "not NoneType"),
        (["a"], "not bytes"),
        (iter([b"a", 7]), "not bytes"),
        ({"a": 1}, "not bytes"),
    ],
)
async def test_what_is_no_file_is_refused_with_what_to_give(app: Backstay, data: Any, says: str) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: Any, ctx: Context) -> None:
        await ctx.artifact("file", data)

    async with app, app.worker():
        job = await work.submit(None)
        with pytest.raises(JobFailed, match=says):
            await job.result(timeout=10)
        assert await app.artifacts(job.job_id) == []


async def test_a_file_open_for_text_says_how_to_open_it(app: Backstay, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")

    @app.job("work", max_attempts=1)
    async def work(payload: Any, ctx: Context) -> None:
        with (tmp_path / "a").open() as file:
            await ctx.artifact("file", file)  # type: ignore[arg-type]

    async with app, app.worker():
        with pytest.raises(JobFailed, match='"rb"'):
            await (await work.submit(None)).result(timeout=10)


async def test_pieces_of_a_thread_are_made_in_that_thread(app: Backstay) -> None:
    threads: list[int] = []

    def pieces() -> Iterator[bytes]:
        threads.append(threading.get_ident())
        yield b"here"

    @app.job("work", max_attempts=1)
    def work(payload: Any, ctx: BlockingContext) -> int:
        ctx.artifact("file", pieces())
        return threading.get_ident()

    async with app, app.worker():
        assert [await (await work.submit(None)).result(timeout=10)] == threads


async def test_a_run_that_is_cancelled_stops_writing(app: Backstay) -> None:
    asked = threading.Event()
    ended = threading.Event()

    def endless() -> Iterator[bytes]:
        try:
            while True:
                asked.set()
                yield bytes(1000)
        finally:
            ended.set()

    @app.job("work", max_attempts=1)
    async def work(payload: Any, ctx: Context) -> None:
        await ctx.artifact("endless", endless())

    async with app, app.worker():
        job = await work.submit(None)
        assert await asyncio.to_thread(asked.wait, 10)
        await app.cancel(job.job_id)
        assert await asyncio.to_thread(ended.wait, 10)

        async def nothing_left() -> bool:
            folder = Path(f"{app.store.path}.files", job.job_id)  # type: ignore[attr-defined]
            return not any(path.is_file() for path in folder.rglob("*"))

        await eventually(nothing_left)


async def test_what_outlives_its_run_neither_changes_a_file_of_it_nor_submits_for_it(app: Backstay) -> None:
    ended, refused = asyncio.Event(), asyncio.Event()
    left: list[asyncio.Task[None]] = []

    @app.job("leaves_a_task", max_attempts=1)
    async def leaves_a_task(payload: None, ctx: Context) -> None:
        await ctx.artifact("kept.txt", b"as recorded")

        async def goes_on() -> None:
            await ended.wait()
            with pytest.raises(ClaimLost):
                await ctx.artifact("kept.txt", b"too late")
            with pytest.raises(ClaimLost):
                await ctx.submit("leaves_a_task")
            refused.set()

        left.append(asyncio.create_task(goes_on()))

    async with app, app.worker():
        job = await leaves_a_task.submit(None)
        await job.result(timeout=30)
        ended.set()
        await asyncio.gather(*left)

        assert refused.is_set()
        assert await app.artifact(job.job_id, "kept.txt") == b"as recorded"


async def test_a_thread_that_timed_out_changes_no_file_of_its_job(app: Backstay) -> None:
    go_on, gone_on = threading.Event(), threading.Event()
    told: list[BaseException] = []

    @app.job("stays", max_attempts=1, timeout=0.2)
    def stays(payload: None, ctx: BlockingContext) -> None:
        ctx.artifact("kept.txt", b"as recorded")
        go_on.wait(30)
        try:
            ctx.artifact("kept.txt", b"too late")
        except ClaimLost as error:
            told.append(error)
        gone_on.set()

    async with app, app.worker():
        job = await stays.submit(None)
        with pytest.raises(JobFailed):
            await job.result(timeout=30)
        go_on.set()
        assert await asyncio.to_thread(gone_on.wait, 30)

        assert told
        assert await app.artifact(job.job_id, "kept.txt") == b"as recorded"


async def test_a_file_that_was_changed_ends_in_an_error_and_not_in_its_last_piece(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: Any, ctx: Context) -> str:
        return await ctx.artifact("file", bytes(3 * MIB))

    async with app, app.worker():
        job = await work.submit(None)
        path = Path((await job.result(timeout=10)).removeprefix("file://"))
        path.write_bytes(bytes(3 * MIB - 1) + b"!")
        got: list[bytes] = []

        async def read() -> None:
            async for piece in app.open_artifact(job.job_id, "file"):
                got.append(piece)

        with pytest.raises(StoreError, match="hash"):
            await read()
        assert sum(map(len, got)) < 3 * MIB
        with pytest.raises(ArtifactNotFound, match="other"):
            await anext(app.open_artifact(job.job_id, "other"))


def test_the_blocking_app_reads_in_pieces_too(tmp_path: Path) -> None:
    app = BlockingBackstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("work")
    def work(payload: Any, ctx: BlockingContext) -> None:
        ctx.artifact("file", results_jobs.pieces())

    with app, app.worker():
        job = work.submit(None)
        job.result(timeout=10)
        pieces = list(app.open_artifact(job.job_id, "file"))

    assert len(pieces) > 1
    assert b"".join(pieces) == WHOLE
