"""The files of jobs are in the database: every host finds them, and they go with their job."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from backstay import Backstay, Context
from backstay.engines.postgres.connection import Statements
from backstay.engines.postgres.files import files_of
from backstay.engines.postgres.store import PostgresStore
from backstay.errors import NotOpen, StoreError
from backstay.files.local import LOG_FILE, Files
from backstay.testing import drain
from backstay.testing.conformance.factories import NOW
from backstay.testing.conformance.factories import new_job as a_job
from tests.engines.files.suite import *  # noqa: F403
from tests.engines.files.suite import LARGE, read_log
from tests.engines.postgres import files_app
from tests.engines.postgres.query_plans import explain
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres
from tests.support.servers.proxy import Proxy

APP = f"{files_app.__file__}:app"


@pytest.fixture(scope="module")
def url(postgres: Postgres) -> str:
    url = postgres.url(schema=f"files_{secrets.token_hex(3)}")
    asyncio.run(PostgresStore(url).migrate())
    return url


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    plain, _, schema = url.partition("?schema=")
    with psycopg.connect(plain, autocommit=True, options=f"-c search_path={schema}") as connection:
        yield connection


def opened(url: str) -> Iterator[Files]:
    files = files_of(url)
    yield files
    files.close()


@pytest.fixture
def files(url: str) -> Iterator[Files]:
    yield from opened(url)


@pytest.fixture
def again(url: str) -> Iterator[Files]:
    yield from opened(url)


@pytest.fixture
def new_job(url: str) -> Callable[[], str]:
    async def insert() -> str:
        store = PostgresStore(url)
        await store.open()
        job = a_job()
        await store.insert([job], NOW)
        await store.close()
        return job.job_id

    return lambda: asyncio.run(insert())


@pytest.fixture
def job_id(new_job: Callable[[], str]) -> str:
    return new_job()


@pytest.fixture
def left_of(connection: Any) -> Callable[[str], int]:
    """How many rows there are of a job's files, and of files that have no head any more."""

    def count(job_id: str) -> int:
        row = connection.execute(
            "SELECT count(*) FROM file_part LEFT JOIN file USING (file_id) WHERE job_id = %s OR job_id IS NULL",
            [job_id],
        ).fetchone()
        return int(row[0])

    return count


def an_app(url: str) -> Backstay:
    app = Backstay(url)

    @app.job("report")
    async def report(payload: Any, ctx: Context) -> str:
        ctx.log.info("writing it")
        await ctx.artifact("report.txt", b"kept")
        return "x" * files_app.LARGE

    return app


# One end to the other


@contextmanager
def working(url: str, folder: Path, failpoints: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, in a folder that the reader does not look into."""
    process = subprocess.Popen(
        [sys.executable, "-m", "backstay", "worker", "--app", APP, "--url", url],
        cwd=folder,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"BACKSTAY_FAILPOINTS": failpoints},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture
def worker(url: str, tmp_path: Path) -> Iterator[Any]:
    with working(url, tmp_path) as process:
        yield process
    assert process.returncode == 0


async def announced(app: Backstay, job_type: str) -> bool:
    return job_type in {each.job_type for each in await app.store.job_types()}


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_whoever_reads_finds_what_a_worker_elsewhere_has_kept(url: str, kind: str, tmp_path: Path) -> None:
    async with Backstay(url) as app:
        await eventually(lambda: announced(app, kind), 60)
        job = await app.submit(kind, "me")

        assert await job.result(timeout=60) == "x" * files_app.LARGE
        assert (await app.get(job.job_id)).result == "x" * files_app.LARGE  # read from the event loop itself
        assert await app.artifact(job.job_id, "report.txt") == b"by me"
        record = await app.get(job.job_id)
        assert record.artifacts == [f"backstay:///{job.job_id}/1/report.txt"]
        assert record.logs["log_location"] == f"backstay:///{job.job_id}/job.log"

    logs = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "backstay", "--url", url, "logs", job.job_id],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [line.rpartition("line ")[2] for line in logs.stdout.splitlines()] == [
        str(n) for n in range(files_app.LINES)
    ]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", ["uncommitted@1", "committed@1", "uncommitted@2", "committed@2"])
async def test_a_worker_that_dies_at_a_file_leaves_none_half_and_none_behind(
    url: str, moment: str, tmp_path: Path, left_of: Callable[[str], int], connection: Any
) -> None:
    point, _, nth = moment.partition("@")
    async with Backstay(url) as app:
        with working(url, tmp_path, f"file.{point}=kill9@{nth}") as victim:
            await eventually(lambda: announced(app, "quiet"), 60)
            job = await app.submit("quiet")
            assert await asyncio.to_thread(victim.wait, 60) == -signal.SIGKILL
        whole = int(nth) - (point == "uncommitted")
        assert connection.execute("SELECT count(*) FROM file WHERE job_id = %s", [job.job_id]).fetchone() == (whole,)

        with working(url, tmp_path):
            assert await job.result(timeout=60) == "x" * files_app.LARGE
        assert await app.artifact(job.job_id, "report.txt") == b"attempt 2"
        await app.purge(older_than=0)
        assert left_of(job.job_id) == 0


# What goes, and when


async def test_an_archived_job_leaves_no_files_behind(url: str, left_of: Callable[[str], int]) -> None:
    async with an_app(url) as app:
        job = await app.submit("report")
        await drain(app)
        assert left_of(job.job_id) == 3

        await app.purge(older_than=0)

        assert left_of(job.job_id) == 0
        assert await app.store.with_files(10) == []


async def test_a_result_that_another_job_reuses_stays_until_that_job_goes_too(
    url: str, left_of: Callable[[str], int], connection: Any
) -> None:
    async with an_app(url) as app:
        first = await app.submit("report", content_hash="same")
        await drain(app)
        again = await app.submit("report", content_hash="same", reuse=True)
        connection.execute(
            "UPDATE ended SET completed_at = completed_at - 3600000000 WHERE job_id = %s", [first.job_id]
        )

        await app.purge(older_than=600)
        assert left_of(first.job_id) > 0
        assert await again.result(timeout=5) == "x" * files_app.LARGE

        await app.purge(older_than=0)
        assert left_of(first.job_id) == 0


async def test_a_job_that_sql_removes_takes_its_files_with_it(
    url: str, left_of: Callable[[str], int], connection: Any
) -> None:
    async with an_app(url) as app:
        job = await app.submit("report", subject="rule:7")
        await drain(app)
        assert left_of(job.job_id) == 3

        connection.execute("SELECT drop_jobs('report', 'rule:7', 'me')")

        assert left_of(job.job_id) == 0


def test_a_run_whose_job_was_removed_leaves_nothing_behind(
    files: Files, job_id: str, connection: Any, left_of: Callable[[str], int]
) -> None:
    connection.execute("DELETE FROM job WHERE job_id = %s", [job_id])

    with pytest.raises(StoreError, match="is gone"):
        files.write(job_id, 1, "report.txt", LARGE)
    files.append(job_id, LOG_FILE, b"line\n", 1000)

    assert left_of(job_id) == 0
    assert connection.execute("SELECT count(*) FROM file WHERE job_id = %s", [job_id]).fetchone() == (0,)


# Trouble


def through(proxy: Proxy, url: str, postgres: Postgres) -> str:
    return url.replace(f":{postgres.port}/", f":{proxy.port}/")


def test_a_line_whose_reply_was_lost_is_in_the_log_once(url: str, postgres: Postgres, job_id: str) -> None:
    with Proxy(postgres.port) as proxy:
        files = files_of(through(proxy, url, postgres))
        files.append(job_id, LOG_FILE, b"first\n", 1000)
        for number in range(5):
            proxy.swallow()
            files.append(job_id, LOG_FILE, b"line %d\n" % number, 1000)
        assert proxy.swallowed == 5

        assert read_log(files, job_id) == b"first\n" + b"".join(b"line %d\n" % n for n in range(5))
        files.close()


def test_a_file_waits_for_a_server_that_comes_back(url: str, postgres: Postgres, job_id: str) -> None:
    with Proxy(postgres.port) as proxy:
        files = files_of(through(proxy, url, postgres))
        proxy.refuse()
        written = threading.Thread(target=files.write, args=(job_id, 1, "report.txt", LARGE))
        written.start()
        proxy.heal()
        written.join()

        assert files.read(files.write(job_id, 1, "other.txt", b"here")) == b"here"
        files.close()


def test_what_was_closed_says_so_instead_of_waiting(url: str, job_id: str) -> None:
    files = files_of(url)
    files.write(job_id, 1, "report.txt", b"here")
    files.close()

    with pytest.raises(NotOpen):
        files.write(job_id, 1, "report.txt", b"again")


# What it costs


# So many that the server, which knows of them, has a reason to use an index.
_CROWD = """
INSERT INTO backstay.file (job_id, attempt, name, size)
    SELECT gen_random_uuid(), 1, 'x', 0 FROM generate_series(1, 5000);
INSERT INTO backstay.file_part (file_id, start, content) SELECT file_id, 0, '' FROM backstay.file WHERE name = 'x';
ANALYZE backstay.file;
ANALYZE backstay.file_part;
"""


async def test_a_look_into_a_long_log_touches_only_the_parts_that_are_asked_for(
    url: str, files: Files, job_id: str, postgres: Postgres
) -> None:
    for number in range(200):
        await asyncio.to_thread(files.append, job_id, LOG_FILE, b"%09d\n" % number, 10_000)
    statements = Statements(url.partition("schema=")[2])
    connection = await asyncpg.connect(postgres.url())
    await connection.execute(statements.named(_CROWD))
    file_id, size = await connection.fetchrow(statements["file_size"], job_id, 0, LOG_FILE)

    plan = await explain(connection, statements["file_parts"], [file_id, size - 25, size], "force_generic_plan")
    head = await explain(connection, statements["file_size"], [job_id, 0, LOG_FILE], "force_generic_plan")
    await connection.close()

    assert (plan.indexes, plan.scanned_whole) == ({"file_part_pkey"}, set())
    assert plan.rows <= 4
    assert (head.indexes, head.rows) == ({"file_job_id_attempt_name_key"}, 1)
