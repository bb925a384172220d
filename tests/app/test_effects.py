"""Files and SQL that belong to a job: kept with it, and committed with its completion."""

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

from backstay import ArtifactNotFound, Backoff, Backstay, BlockingContext, Context, JobFailed
from tests.support import process_jobs


def rows(app: Backstay) -> list[Any]:
    with apsw.Connection(str(app.store.path)) as file:  # type: ignore[attr-defined]
        return list(file.execute("SELECT who, amount FROM ledger ORDER BY amount"))


def with_ledger(app: Backstay) -> None:
    file = apsw.Connection(str(app.store.path))  # type: ignore[attr-defined]
    file.execute("CREATE TABLE ledger (who TEXT, amount INTEGER UNIQUE)")
    file.close()


async def test_an_artifact_is_kept_with_the_job_and_comes_back_whole(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int, ctx: Context) -> str:
        await ctx.artifact("report.html", "<p>é</p>")
        return await ctx.artifact("data.bin", b"\x00\xff")

    async with app, app.worker():
        handle = await work.submit(1)
        uri = await handle.result(timeout=10)
        job = await app.get(handle.job_id)
        assert [each.name for each in await app.artifacts(handle.job_id)] == ["report.html", "data.bin"]
        assert await app.artifact(handle.job_id, "report.html") == "<p>é</p>".encode()
        assert await app.artifact(handle.job_id, "data.bin") == b"\x00\xff"
        with pytest.raises(ArtifactNotFound):
            await app.artifact(handle.job_id, "other")
    assert job.artifacts[1] == uri
    assert Path(uri.removeprefix("file://")).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "nul\0", "x" * 200])
async def test_an_artifact_cannot_leave_its_jobs_folder(app: Backstay, name: str) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: str, ctx: Context) -> None:
        await ctx.artifact(name, b"")

    async with app, app.worker():
        with pytest.raises(JobFailed, match="artifact name"):
            await (await work.submit("x")).result(timeout=10)


async def test_sql_of_a_handler_commits_with_its_completion(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int, ctx: Context) -> str:
        async with ctx.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES (?, ?)", ("ann", payload))
            tx.executemany("INSERT INTO ledger VALUES (?, ?)", [("bob", payload + 1), ("cy", payload + 2)])
        return "ok"

    @app.job("threaded")
    def threaded(payload: int, ctx: BlockingContext) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES (?, ?)", ("dee", payload))

    async with app, app.worker():
        with_ledger(app)
        assert await (await work.submit(1)).result(timeout=10) == "ok"
        await (await threaded.submit(9)).result(timeout=10)
        assert rows(app) == [("ann", 1), ("bob", 2), ("cy", 3), ("dee", 9)]


async def test_sql_of_an_attempt_that_fails_or_a_block_that_raises_leaves_nothing(app: Backstay) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES ('x', 1)")
        if payload == 1:
            raise ValueError("after the block")
        async with ctx.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES ('x', 2)")
            raise ValueError("inside it")

    async with app, app.worker():
        with_ledger(app)
        for n in (1, 2):
            with pytest.raises(JobFailed):
                await (await work.submit(n)).result(timeout=10)
        assert rows(app) == []


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO ledger VALUES ('twice', 1)",
        "INSERT INTO no_such_table VALUES (1)",
        "nonsense",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT x",
        "PRAGMA synchronous = OFF",
        "ATTACH ':memory:' AS other",
        "UPDATE job SET priority = 99",
        "DELETE FROM dedup",
        "DROP TABLE job",
        "CREATE TRIGGER t AFTER UPDATE ON job BEGIN DELETE FROM ledger; END",
        "ALTER TABLE job RENAME TO mine",
    ],
)
async def test_sql_that_fails_or_would_leave_the_transaction_fails_its_attempt_and_no_other(
    app: Backstay, statement: str
) -> None:
    @app.job("bad", max_attempts=1)
    async def bad(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES ('first', 5)")
            tx.execute(statement)

    @app.job("good")
    async def good(payload: int) -> int:
        return payload

    async with app:
        handles = [await good.submit(n) for n in range(5)]
        broken = await bad.submit(1)
        with_ledger(app)
        file = apsw.Connection(str(app.store.path))  # type: ignore[attr-defined]
        file.execute("INSERT INTO ledger VALUES ('already', 1)")
        file.close()
        async with app.worker():
            with pytest.raises(JobFailed, match="EffectFailed"):
                await broken.result(timeout=10)
            assert [await handle.result(timeout=10) for handle in handles] == [0, 1, 2, 3, 4]
        assert rows(app) == [("already", 1)]
        assert (await app.get(broken.job_id)).failures == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_statement_outside_of_the_block_fails_the_attempt_instead_of_being_lost(
    app: Backstay, when: str
) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int, ctx: Context) -> None:
        tx = ctx.transaction()
        if when == "after":
            async with tx:
                pass
        tx.execute("INSERT INTO ledger VALUES ('lost', 1)")

    async with app, app.worker():
        with_ledger(app)
        with pytest.raises(JobFailed, match=r"outside of its block.*async with ctx.transaction\(\) as tx"):
            await (await work.submit(1)).result(timeout=10)


async def test_a_value_that_sqlite_does_not_take_fails_the_attempt_and_says_which_it_takes(app: Backstay) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES (?, 1)", [datetime.now(UTC)])

    async with app, app.worker():
        with_ledger(app)
        with pytest.raises(JobFailed, match=r"parameter datetime.*SQLite takes None, strings, numbers and bytes"):
            await (await work.submit(1)).result(timeout=10)
        assert rows(app) == []


async def test_a_dict_goes_as_json(app: Backstay) -> None:
    @app.job("work", max_attempts=1)
    async def work(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES (?, 1)", [{"who": ["ann"]}])

    async with app, app.worker():
        with_ledger(app)
        await (await work.submit(1)).result(timeout=10)
        assert rows(app) == [('{"who":["ann"]}', 1)]


async def test_a_child_process_keeps_artifacts_and_sql_too(make_app: Any) -> None:
    app = process_jobs.bind(make_app)
    async with app, app.worker():
        with_ledger(app)
        handle = await app.submit("effects", 7)
        await handle.result(timeout=30)
        assert await app.artifact(handle.job_id, "child.txt") == b"from the child"
        assert rows(app) == [("child", 7)]


async def test_a_run_that_lost_its_claim_cannot_touch_the_artifact_that_another_recorded(app: Backstay) -> None:
    late, wrote = threading.Event(), threading.Event()

    @app.job("work", timeout=0.2, max_attempts=2, backoff=Backoff(0))
    def work(payload: int, ctx: BlockingContext) -> int:
        if ctx.attempt == 1:
            late.wait(20)
        try:
            ctx.artifact("report", f"attempt {ctx.attempt}")
        finally:
            wrote.set()
        return ctx.attempt

    async with app, app.worker():
        handle = await work.submit(1)
        assert await handle.result(timeout=10) == 2
        wrote.clear()
        late.set()
        assert await asyncio.to_thread(wrote.wait, 10)
        assert await app.artifact(handle.job_id, "report") == b"attempt 2"
