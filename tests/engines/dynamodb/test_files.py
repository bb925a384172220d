"""The tables keep the files of jobs."""

import asyncio
import uuid
from collections.abc import Callable, Iterator

import pytest

from backstay import Backstay
from backstay.engines.dynamodb import files as dynamodb_files
from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.expressions import Ask
from backstay.engines.dynamodb.files import files_of
from backstay.engines.dynamodb.schema import Table
from backstay.engines.dynamodb.store import DynamoStore
from backstay.errors import JobFailed, StoreError
from backstay.files.local import Files
from backstay.limits import MIB
from tests.engines.files.suite import *  # noqa: F403
from tests.support.servers.dynamodb import DynamoDB


@pytest.fixture(scope="module")
def store(dynamodb: DynamoDB) -> DynamoStore:
    made = DynamoStore(dynamodb.url())
    asyncio.run(made.migrate())
    return made


@pytest.fixture
def heavy() -> int:
    return 32 * MIB


@pytest.fixture(autouse=True)
def room_for_large_files(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What every place must do with a large file, this one must do with what it refuses for its price."""
    if "heavy" in request.fixturenames:
        monkeypatch.setattr(dynamodb_files, "FILE_BYTES_MAX", 64 * MIB)


@pytest.fixture
def files(store: DynamoStore) -> Iterator[Files]:
    place = files_of(store.address)
    yield place
    place.close()


@pytest.fixture
def again(store: DynamoStore) -> Iterator[Files]:
    place = files_of(store.address)
    yield place
    place.close()


@pytest.fixture
def new_job() -> Callable[[], str]:
    return lambda: str(uuid.uuid4())


@pytest.fixture
def job_id(new_job: Callable[[], str]) -> str:
    return new_job()


@pytest.fixture
def left_of(store: DynamoStore) -> Callable[[str], int]:
    async def count(job_id: str) -> int:
        tables = store._tables()
        found = await tables.count(Ask(table=Table.RECORDS, hash=schema.files(job_id), consistent=True))
        await tables.wire.close()
        return found

    return lambda job_id: asyncio.run(count(job_id))


def test_a_file_that_is_replaced_leaves_nothing_behind(
    files: Files, job_id: str, left_of: Callable[[str], int]
) -> None:
    files.write(job_id, 1, "report.txt", b"x" * 1_000_000)
    files.write(job_id, 1, "report.txt", b"short")

    assert left_of(job_id) == 2  # its head and one part


def test_what_is_too_large_for_a_table_says_where_it_belongs(files: Files, job_id: str) -> None:
    with pytest.raises(StoreError, match="artifacts=s3://"):
        files.write(job_id, 1, "video", bytes(dynamodb_files.FILE_BYTES_MAX + 1))


async def test_an_append_that_is_asked_for_again_is_there_once(store: DynamoStore, job_id: str) -> None:
    """Its first answer was lost, for longer than the request was repeated."""
    place = dynamodb_files.TableFiling(store._tables())
    for append_id in ("first", "first", "second"):
        await place.append(job_id, "log", b"line\n", 1_000, append_id)
    assert await place.read(job_id, 0, "log", 0, 100) == b"line\nline\n"
    for append_id in ("large", "large"):
        await place.append(job_id, "long", b"x" * 4_000_000, 10_000_000, append_id)
    assert len(await place.read(job_id, 0, "long", 0, 10_000_000) or b"") == 4_000_000
    await place.close()


def test_a_log_that_is_too_large_for_a_table_says_where_it_would_fit(
    files: Files, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_files, "FILE_BYTES_MAX", 1_000)
    for _ in range(5):
        files.append(job_id, "job.log", b"x" * 400, 1_000_000)

    log = files.read_part(job_id, "job.log", 0, 10_000) or b""
    assert log.startswith(b"x" * 1_200 + b"The log is cut here")
    assert log.endswith(b"artifacts=s3://bucket/prefix\n") and log.count(b"is cut here") == 1


async def test_a_result_that_is_too_large_for_a_table_fails_once_and_says_where_it_would_fit(
    dynamodb: DynamoDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_files, "FILE_BYTES_MAX", 100_000)
    app = Backstay(dynamodb.url())  # tables without the large files of other tests, which a worker would look through
    await app.migrate()

    @app.job("report")
    async def report(payload: None) -> str:
        return "x" * 100_000

    async with app, app.worker():
        job = await app.submit("report", None)
        with pytest.raises(JobFailed, match=r"the limit is 100,000 in DynamoDB: .*artifacts=s3://"):
            await job.result(timeout=30)
        found = await job.record()

    assert (found.attempt, found.errors[-1]["type"]) == (1, "ResultTooLarge")
