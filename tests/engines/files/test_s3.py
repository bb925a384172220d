"""A bucket keeps the files of jobs."""

import io
import os
import secrets
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from urllib3 import HTTPResponse

from backstay import Backstay
from backstay.errors import ConfigurationError, StoreError, StoreUnavailable
from backstay.files import s3
from backstay.files.local import LOG_FILE
from backstay.files.s3 import S3Files
from backstay.limits import GIB
from tests.engines.files.suite import *  # noqa: F403
from tests.support.servers.s3 import S3


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
    place._client()  # the 12 MiB that botocore itself takes are not a file's
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


Send = Callable[[AWSPreparedRequest], AWSResponse]


def on_the_way(files: S3Files, monkeypatch: pytest.MonkeyPatch, handle: Callable[[Send, Any], AWSResponse]) -> None:
    """Whatever is sent goes through `handle`, which may answer in place of S3, or lose its answer."""
    session = files._client()._endpoint.http_session
    send: Send = session.send
    monkeypatch.setattr(session, "send", lambda request: handle(send, request))


def answer(status: int, body: bytes) -> AWSResponse:
    raw = HTTPResponse(io.BytesIO(body), preload_content=False)
    return AWSResponse("http://127.0.0.1/", status, {"Content-Type": "application/xml"}, raw)


def ends_an_upload(request: AWSPreparedRequest) -> bool:
    return request.method == "POST" and "uploadId=" in request.url


def uploads(files: S3Files) -> int:
    return len(files._client().list_multipart_uploads(Bucket=files._bucket.name).get("Uploads", ()))


def test_a_line_whose_answer_was_lost_is_there_once(
    files: S3Files, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []

    def lose_the_first(send: Send, request: AWSPreparedRequest) -> AWSResponse:
        found = send(request)
        if request.method == "PUT" and not lost:
            lost.append(1)
            raise ConnectionClosedError(endpoint_url=request.url)
        return found

    on_the_way(files, monkeypatch, lose_the_first)
    files.append(job_id, LOG_FILE, b"once\n", 1000)

    assert lost
    assert files.read_part(job_id, LOG_FILE, 0, 100) == b"once\n"


def test_an_upload_whose_last_answer_was_lost_is_there(
    files: S3Files, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def lose_the_end(send: Send, request: AWSPreparedRequest) -> AWSResponse:
        if not ends_an_upload(request):
            return send(request)
        if lost:  # as S3 may say of one that is done
            return answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")
        send(request)
        lost.append(request.url)
        raise ConnectionClosedError(endpoint_url=request.url)

    on_the_way(files, monkeypatch, lose_the_end)
    stored = files.write(job_id, 1, "large", bytes(s3.PART_BYTES + 1))

    assert lost
    assert sum(map(len, files.stream(stored))) == s3.PART_BYTES + 1


def test_an_upload_that_s3_does_not_finish_is_an_error(
    files: S3Files, job_id: str, monkeypatch: pytest.MonkeyPatch, left_of: Callable[[str], int]
) -> None:
    """It begins to answer with 200 before it knows."""

    def fail_at_the_end(send: Send, request: AWSPreparedRequest) -> AWSResponse:
        if ends_an_upload(request):
            return answer(200, b"<Error><Code>InternalError</Code><Message>try again</Message></Error>")
        return send(request)

    on_the_way(files, monkeypatch, fail_at_the_end)
    monkeypatch.setattr(s3, "PATIENCE_SECONDS", 0.2)
    with pytest.raises(StoreUnavailable, match="try again"):
        files.write(job_id, 1, "large", bytes(s3.PART_BYTES + 1))

    assert (left_of(job_id), uploads(files)) == (0, 0)


def test_a_part_that_is_not_answered_is_sent_again(
    files: S3Files, again: S3Files, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [answer(503, b"<Error><Code>SlowDown</Code></Error>"), None]

    def fail_twice(send: Send, request: AWSPreparedRequest) -> AWSResponse:
        if "partNumber=2" not in request.url or not failures:
            return send(request)
        if (failure := failures.pop()) is None:
            raise ReadTimeoutError(endpoint_url=request.url)
        return failure

    on_the_way(files, monkeypatch, fail_twice)
    content = b"1" * s3.PART_BYTES + b"2" * s3.PART_BYTES + b"3"
    stored = files.write(job_id, 1, "large", content)

    assert not failures
    assert again.read(stored) == content


def test_an_upload_that_fails_leaves_no_parts_behind(files: S3Files, job_id: str) -> None:
    begun: list[int] = []

    def fails() -> Iterator[bytes]:
        yield bytes(s3.PART_BYTES)
        yield b"and more"
        begun.append(uploads(files))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        files.write(job_id, 1, "large", fails())

    assert (begun, uploads(files)) == ([1], 0)


WRITES_FOR_EVER = """
import sys, time
from backstay.files import s3

def pieces():
    yield bytes(2 * s3.PART_BYTES)
    print("two parts are there", flush=True)
    time.sleep(600)

s3.S3Files(sys.argv[1]).write(sys.argv[2], 1, "large", pieces())
"""


def test_a_worker_killed_in_the_middle_of_an_upload_leaves_no_file_that_could_be_seen(
    files: S3Files, bucket: str, job_id: str, left_of: Callable[[str], int]
) -> None:
    command = [sys.executable, "-c", WRITES_FOR_EVER, bucket, job_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None and writer.stdout.readline() == b"two parts are there\n"
            assert uploads(files) == 1
        finally:
            writer.kill()

    assert left_of(job_id) == 0
    stored = files.write(job_id, 1, "large", b"the next try")
    assert files.read(stored) == b"the next try"
    [left] = files._client().list_multipart_uploads(Bucket=files._bucket.name)["Uploads"]
    assert left["Key"].endswith(f"{job_id}/1/large")  # for the bucket's own rule, as the documentation says
    files._client().abort_multipart_upload(Bucket=files._bucket.name, Key=left["Key"], UploadId=left["UploadId"])


def test_a_file_may_be_as_large_as_the_parts_that_s3_takes() -> None:
    assert s3.PART_BYTES * 10_000 >= S3Files.size_max > 5 * GIB


def test_a_bucket_that_is_away_says_so_when_patience_ends(job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PATIENCE_SECONDS", 0.2)
    away = S3Files("s3://files/x?region=us-east-1&endpoint=http://127.0.0.1:1")

    with pytest.raises(StoreUnavailable, match="s3://files does not answer"):
        away.write(job_id, 1, "a", b"")


def test_without_credentials_it_says_what_to_set(job_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID"):
        S3Files("s3://files/x?region=eu-north-1").write(job_id, 1, "a", b"")


def test_without_botocore_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "backstay.files.s3")
    monkeypatch.delattr("backstay.files.s3")
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)

    with pytest.raises(ConfigurationError, match=r"backstay\[s3\]"):
        Backstay("sqlite:///jobs.db", artifacts="s3://bucket/prefix?region=eu-north-1")


def test_a_bucket_that_is_not_there_says_so(server: S3, job_id: str) -> None:
    nowhere = S3Files(f"s3://nowhere-at-all/x?region=us-east-1&endpoint=http://127.0.0.1:{server.port}")

    with pytest.raises(StoreError, match="NoSuchBucket"):
        nowhere.write(job_id, 1, "a", b"")
    with pytest.raises(StoreError, match="NoSuchBucket"):
        nowhere.look()
    with pytest.raises(StoreError, match=r"job\.log: S3 says"):
        nowhere.append(job_id, "job.log", b"line", 100)
    nowhere.close()


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("s3://shop-files/a/b?region=eu-north-1", "https://shop-files.s3.eu-north-1.amazonaws.com/a/b/j/1/n"),
        ("s3://shop.files?region=eu-north-1", "https://s3.eu-north-1.amazonaws.com/shop.files/j/1/n"),
        ("s3://shop-files?region=cn-north-1", "https://shop-files.s3.cn-north-1.amazonaws.com.cn/j/1/n"),
        ("s3://shop-files/a?endpoint=http://127.0.0.1:9000/", "http://127.0.0.1:9000/shop-files/a/j/1/n"),
    ],
)
def test_a_bucket_of_amazon_has_a_host_of_its_own(uri: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    files = S3Files(uri)
    asked: list[str] = []

    def take(send: Send, request: AWSPreparedRequest) -> AWSResponse:
        asked.append(request.url)
        return answer(200, b"")

    on_the_way(files, monkeypatch, take)
    files.write("j", 1, "n", b"content")

    assert asked == [url]


@pytest.mark.parametrize("uri", ["s3://", "s3://UPPER/x?region=eu-north-1", "s3://bucket/x?colour=red"])
def test_what_is_no_bucket_is_an_error_at_once(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="s3://bucket/prefix"):
        Backstay("sqlite:///jobs.db", artifacts=uri)


@pytest.mark.parametrize("secret", ["another", None])
def test_a_request_with_a_wrong_signature_is_refused(
    files: S3Files, bucket: str, job_id: str, monkeypatch: pytest.MonkeyPatch, secret: str | None
) -> None:
    """The server of all of these tests checks each signature: this is what they would see."""
    files.write(job_id, 1, "kept.txt", b"kept")  # signed with the right one
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret or "secret")
    place = S3Files(bucket)
    try:
        if secret is None:
            place.write(job_id, 1, "other.txt", b"other")
        else:
            with pytest.raises(StoreError, match="SignatureDoesNotMatch"):
                place.write(job_id, 1, "other.txt", b"other")
    finally:
        place.close()


def test_any_engine_may_keep_files_in_a_bucket() -> None:
    Backstay("sqlite:///jobs.db", artifacts="s3://bucket/prefix?region=eu-north-1")
    Backstay("dynamodb://shop?region=eu-north-1", artifacts="s3://bucket/prefix?region=eu-north-1")
