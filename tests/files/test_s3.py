"""A bucket keeps the files of jobs."""

import secrets
import uuid
from collections.abc import Callable, Iterator

import pytest

from holdfast import Holdfast
from holdfast.errors import ConfigurationError, StoreError
from holdfast.files import LOG_FILE
from holdfast.stores import s3
from holdfast.stores.aws.requests import Answer
from holdfast.stores.s3 import S3Files
from tests.files.suite import *  # noqa: F403
from tests.servers.s3 import S3


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with S3() as started:
        yield started


@pytest.fixture(scope="module")
def bucket(server: S3) -> str:
    return server.bucket(f"files-{secrets.token_hex(4)}")


@pytest.fixture
def files(bucket: str) -> Iterator[S3Files]:
    place = S3Files(bucket)
    yield place
    place.close()


@pytest.fixture
def again(bucket: str) -> Iterator[S3Files]:
    place = S3Files(bucket)
    yield place
    place.close()


@pytest.fixture
def new_job() -> Callable[[], str]:
    return lambda: str(uuid.uuid4())


@pytest.fixture
def job_id(new_job: Callable[[], str]) -> str:
    return new_job()


@pytest.fixture
def left_of(files: S3Files) -> Callable[[str], int]:
    return lambda job_id: len(files._list(files._key(job_id, "")))


def test_a_line_whose_answer_was_lost_is_there_once(
    files: S3Files, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = files._requests._try
    lost: list[int] = []

    def lose_the_first(method: str, *request: object) -> object:
        answer = ask(method, *request)  # type: ignore[arg-type]
        if method == "PUT" and not lost:
            lost.append(1)
            raise ConnectionResetError
        return answer

    monkeypatch.setattr(files._requests, "_try", lose_the_first)
    files.append(job_id, LOG_FILE, b"once\n", 1000)

    assert files.read_part(job_id, LOG_FILE, 0, 100) == b"once\n"


def test_an_upload_whose_last_answer_was_lost_is_there(
    files: S3Files, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = files._requests._try
    lost: list[str] = []

    def lose_the_end(method: str, path: str, query: dict[str, str], *request: object) -> object:
        ends = method == "POST" and "uploadId" in query
        if ends and lost:
            return Answer(404, b"<Error><Code>NoSuchUpload</Code></Error>", {})  # as S3 may say of one that is done
        answer = ask(method, path, query, *request)  # type: ignore[arg-type]
        if ends:
            lost.append(query["uploadId"])
            raise ConnectionResetError
        return answer

    monkeypatch.setattr(files._requests, "_try", lose_the_end)
    stored = files.write(job_id, 1, "large", bytes(s3.PIECE_BYTES + 1))

    assert lost
    assert sum(map(len, files.stream(stored))) == s3.PIECE_BYTES + 1


def test_an_upload_that_s3_does_not_finish_is_an_error(
    files: S3Files, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins to answer with 200 before it knows."""
    ask = files._requests._try

    def fail_at_the_end(method: str, path: str, query: dict[str, str], *request: object) -> object:
        if method == "POST" and "uploadId" in query:
            return Answer(200, b"<Error><Code>InternalError</Code><Message>try again</Message></Error>", {})
        return ask(method, path, query, *request)  # type: ignore[arg-type]

    monkeypatch.setattr(files._requests, "_try", fail_at_the_end)
    with pytest.raises(StoreError, match="try again"):
        files.write(job_id, 1, "large", bytes(s3.PIECE_BYTES + 1))


def test_an_upload_that_fails_leaves_no_parts_behind(files: S3Files, job_id: str) -> None:
    def fails() -> Iterator[bytes]:
        yield bytes(s3.PIECE_BYTES)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        files.write(job_id, 1, "large", fails())

    assert b"<Upload>" not in files._ask("GET", "", query={"uploads": ""}).body


def test_a_bucket_that_is_not_there_says_so(server: S3, job_id: str) -> None:
    nowhere = S3Files(f"s3://nowhere-at-all/x?region=us-east-1&endpoint=http://127.0.0.1:{server.port}")

    with pytest.raises(StoreError, match="NoSuchBucket"):
        nowhere.write(job_id, 1, "a", b"")
    with pytest.raises(StoreError, match="NoSuchBucket"):
        nowhere.look()
    with pytest.raises(StoreError, match=r"job\.log: S3 says"):
        nowhere.append(job_id, "job.log", b"line", 100)
    nowhere.close()


def test_a_bucket_of_amazon_has_a_host_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)

    assert s3.parse("s3://shop-files/a/b?region=eu-north-1") == s3.Bucket(
        "shop-files", "a/b", "eu-north-1", "https://shop-files.s3.eu-north-1.amazonaws.com", False
    )
    assert s3.parse("s3://shop.files?region=eu-north-1").path("k") == "/shop.files/k"


@pytest.mark.parametrize("uri", ["s3://", "s3://UPPER/x?region=eu-north-1", "s3://bucket/x?colour=red"])
def test_what_is_no_bucket_is_an_error_at_once(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="s3://bucket/prefix"):
        Holdfast("sqlite:///jobs.db", artifacts=uri)


def test_any_engine_may_keep_files_in_a_bucket() -> None:
    Holdfast("sqlite:///jobs.db", artifacts="s3://bucket/prefix?region=eu-north-1")
    Holdfast("dynamodb://shop?region=eu-north-1", artifacts="s3://bucket/prefix?region=eu-north-1")
