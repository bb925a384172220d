"""Files of jobs in an S3 bucket: artifacts="s3://bucket/prefix?region=…", for any engine.

    <prefix>/<job_id>/<attempt>/<name>        what an attempt wrote, one object each
    <prefix>/<job_id>/job.log.000001          a log grows by objects: S3 cannot append to one

botocore's client sends the requests; it blocks, as the port does. Only its retries are switched off: it counts tries,
and a write here is worth repeating for as long as a claim lasts. A file larger than one part is a multipart upload,
part after part, so that no more than one is in memory. The object appears when the upload is completed: a worker that
is killed before that leaves nothing that a reader could see.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
)

from backstay.errors import ConfigurationError, StoreError, StoreUnavailable
from backstay.files.aws import NO_CREDENTIALS, Credentials, region_of
from backstay.files.local import Content, Files, StoredFile, Tally, checked, in_pieces
from backstay.limits import ARTIFACT_BYTES_MAX, LEASE_SECONDS, MIB

T = TypeVar("T")
PART_BYTES = 8 * MIB  # sent or read per request; S3 accepts 10,000 parts of at least 5 MiB
DELETES_MAX = 1_000  # timeout of one request
APPEND_TRIES = 1_000  # tries to find a free number; one that another writer took is skipped
REPLY_SECONDS = 20.0
PATIENCE_SECONDS = LEASE_SECONDS  # how long a request waits for an unavailable service: by then the claim is lost, too
# short: aborting follows an error that must be reported; the bucket's lifecycle rule removes the rest
ABORT_SECONDS = 5.0
_OPTIONS = ("region", "endpoint")
_LOCAL = ("127.0.0.1", "localhost", "::1")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NUMBER = re.compile(r"\.([0-9]{6})$")
_AWAY = (ConnectionError, HTTPClientError, IncompleteReadError, CredentialRetrievalError, MetadataRetrievalError)


class Bucket(msgspec.Struct, frozen=True):
    name: str
    prefix: str
    region: str
    endpoint: str | None  # a custom endpoint; None means Amazon's


def parse(uri: str) -> Bucket:
    parts = urlsplit(uri)
    options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    if parts.scheme != "s3" or not _BUCKET.fullmatch(parts.netloc):
        raise ConfigurationError(f"artifacts={uri!r:.100}: write s3://bucket/prefix?region=eu-north-1")
    if unknown := sorted(options.keys() - _OPTIONS):
        raise ConfigurationError(
            f"artifacts={uri!r:.100}: s3://bucket/prefix has no option {', '.join(unknown)};"
            f" it has {', '.join(_OPTIONS)}"
        )
    named = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = options.get("region") or region_of(None) or ("us-east-1" if named else None)
    if region is None:
        raise ConfigurationError(f"artifacts={uri!r:.100}: no region: add ?region=… or set AWS_REGION")
    return Bucket(parts.netloc, unquote(parts.path).strip("/"), region, named.rstrip("/") if named else None)


class _Upload(msgspec.Struct):
    """A file that is being uploaded, in parts."""

    key: str
    uri: str
    mark: str
    upload_id: str
    parts: list[dict[str, Any]] = []


class S3Files(Files):
    size_max = ARTIFACT_BYTES_MAX

    def __init__(self, uri: str) -> None:
        self._bucket = parse(uri)
        self._lock = threading.Lock()
        self._made: Any = None
        self._logs: dict[tuple[str, str], tuple[int, int]] = {}  # the next number, and the bytes stored so far

    def uri(self, job_id: str, name: str) -> str:
        return f"s3://{self._bucket.name}/{self._key(job_id, name)}"

    def write(self, job_id: str, attempt: int, name: str, content: Content) -> StoredFile:
        key, uri = self._key(job_id, f"{attempt}/{name}"), self.uri(job_id, f"{attempt}/{name}")
        tally = Tally(name, self.size_max)
        upload: _Upload | None = None
        try:
            for piece in in_pieces(content, PART_BYTES):
                tally.add(piece)
                if upload is None and len(piece) < PART_BYTES:
                    self._put(key, uri, piece)
                elif piece:
                    upload = upload or self._begin(key, uri)
                    self._add(upload, piece)
            if upload is not None:
                self._finish(upload)
        except BaseException:
            if upload is not None:
                self._abort(upload)
            raise
        return StoredFile(uri, tally.sha256, tally.size, name)

    def append(self, job_id: str, name: str, content: bytes, size_max: int) -> None:
        with self._lock:
            known = self._logs.get((job_id, name))
        number, size = known or self._look(job_id, name)
        mark = secrets.token_hex(8)
        for _ in range(APPEND_TRIES):
            if size >= size_max:
                return
            key = self._key(job_id, f"{name}.{number:06d}")
            # another writer appended at the same time
            if not self._put_new(key, content, mark, self.uri(job_id, name)):
                number, size = self._look(job_id, name)
                continue
            with self._lock:
                if len(self._logs) > 1_000:
                    self._logs.clear()
                self._logs[job_id, name] = (number + 1, size + len(content))
            return
        raise StoreError(f"{self.uri(job_id, name)}: other processes keep appending to it")

    def stream(self, file: StoredFile) -> Iterator[bytes]:
        return checked(file.uri, file.size, file.sha256, self._ranges(file, self._place(file)))

    def part(self, file: StoredFile, start: int, size: int) -> bytes:
        end = min(file.size, start + size)
        if start >= end:
            return b""
        found = self._range(file, self._place(file), start, end)
        return found if len(found) <= end - start else found[start:end]  # a server that does not support ranges

    def _place(self, file: StoredFile) -> str:
        parts = urlsplit(file.uri)
        if parts.scheme != "s3" or parts.netloc != self._bucket.name:
            raise StoreError(f"{file.uri} is not in this bucket: open the app with the artifacts= it was written with")
        return unquote(parts.path).lstrip("/")

    def _ranges(self, file: StoredFile, key: str) -> Iterator[bytes]:
        for start in range(0, max(1, file.size), PART_BYTES):
            if not (piece := self._range(file, key, start, min(file.size, start + PART_BYTES))):
                return
            yield piece

    def _range(self, file: StoredFile, key: str, start: int, end: int) -> bytes:
        try:
            return self._get(key, start, end)
        except ClientError as error:
            match _status(error):
                case 404:
                    raise StoreError(f"{file.uri} is gone: its job was removed") from None
                case 416:
                    return b""  # the file has become shorter
                case _:
                    raise _refusal(file.uri, error) from None

    def read_part(self, job_id: str, name: str, start: int, size_max: int) -> bytes | None:
        pieces = self._pieces(job_id, name)
        if not pieces:
            return None
        found = b""
        at = 0
        for key, size in pieces:
            first = max(start - at, 0)
            wanted = min(size - first, size_max - len(found))
            if wanted > 0 and first < size:
                try:
                    found += self._get(key, first, first + wanted)
                except ClientError as error:
                    raise _refusal(self.uri(job_id, name), error) from None
            at += size
            if len(found) == size_max:
                break
        return found

    def remove(self, job_ids: Sequence[str]) -> list[str]:
        for job_id in job_ids:
            found = [key for key, _ in self._list(self._key(job_id, ""))]
            for start in range(0, len(found), DELETES_MAX):
                self._delete(found[start : start + DELETES_MAX])
        with self._lock:
            for place in [each for each in self._logs if each[0] in job_ids]:
                del self._logs[place]
        return list(job_ids)

    def look(self) -> str:
        name, place = self._bucket.name, f"s3://{self._bucket.name}/{self._bucket.prefix}"
        self._ask(place, lambda s3: s3.list_objects_v2(Bucket=name, Prefix=self._key("", ""), MaxKeys=1))
        return f"in {place}"

    def close(self) -> None:
        with self._lock:
            if self._made is not None:
                self._made.close()  # its connections; it opens new ones if a file is read after this

    def _key(self, job_id: str, name: str) -> str:
        return f"{self._bucket.prefix}/{job_id}/{name}" if self._bucket.prefix else f"{job_id}/{name}"

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket.name, "Key": key}

    def _get(self, key: str, start: int, end: int) -> bytes:
        of_range = {"Range": f"bytes={start}-{end - 1}"} if end else {}  # an empty file has no ranges
        found: bytes = self._persist(lambda s3: s3.get_object(**self._at(key), **of_range)["Body"].read())
        return found

    def _put(self, key: str, uri: str, content: bytes) -> None:
        self._ask(uri, lambda s3: s3.put_object(**self._at(key), Body=content))

    def _put_new(self, key: str, content: bytes, mark: str, uri: str) -> bool:
        """Create an object; return False if another writer's object exists already."""
        try:
            self._persist(
                lambda s3: s3.put_object(**self._at(key), Body=content, IfNoneMatch="*", Metadata={"append": mark})
            )
        except ClientError as error:
            if _status(error) not in (409, 412):
                raise _refusal(uri, error) from None
            return self._is_ours(key, mark)
        return True

    def _is_ours(self, key: str, mark: str) -> bool:
        """Return whether the existing object is ours: a repeat after a lost response is refused because the first try
        was stored."""
        try:
            found = self._persist(lambda s3: s3.head_object(**self._at(key)))
        except ClientError:
            return False
        return bool(found["Metadata"].get("append") == mark)

    def _begin(self, key: str, uri: str) -> _Upload:
        mark = secrets.token_hex(8)
        begun = self._ask(uri, lambda s3: s3.create_multipart_upload(**self._at(key), Metadata={"append": mark}))
        return _Upload(key, uri, mark, begun["UploadId"])

    def _add(self, upload: _Upload, piece: bytes) -> None:
        place = {**self._at(upload.key), "UploadId": upload.upload_id, "PartNumber": len(upload.parts) + 1}
        added = self._ask(upload.uri, lambda s3: s3.upload_part(**place, Body=piece))
        upload.parts.append({"PartNumber": place["PartNumber"], "ETag": added["ETag"]})

    def _finish(self, upload: _Upload) -> None:
        place = {**self._at(upload.key), "UploadId": upload.upload_id}
        try:
            self._persist(lambda s3: s3.complete_multipart_upload(**place, MultipartUpload={"Parts": upload.parts}))
        except ClientError as error:
            if _status(error) == 404 and self._is_ours(upload.key, upload.mark):
                return
            raise _refusal(upload.uri, error) from None

    def _abort(self, upload: _Upload) -> None:
        """Abort an upload: its parts cost money until they are removed. The bucket's rule for unfinished uploads
        removes the rest."""
        place = {**self._at(upload.key), "UploadId": upload.upload_id}
        with contextlib.suppress(StoreError, ClientError):
            self._persist(lambda s3: s3.abort_multipart_upload(**place), ABORT_SECONDS)

    def _look(self, job_id: str, name: str) -> tuple[int, int]:
        pieces = self._pieces(job_id, name)
        found = _NUMBER.search(pieces[-1][0]) if pieces else None
        return (1 if found is None else int(found[1]) + 1), sum(size for _, size in pieces)

    def _pieces(self, job_id: str, name: str) -> list[tuple[str, int]]:
        found = self._list(self._key(job_id, f"{name}."))
        return sorted((key, size) for key, size in found if _NUMBER.search(key))

    def _list(self, prefix: str) -> list[tuple[str, int]]:
        def pages(s3: Any) -> list[tuple[str, int]]:
            found = s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket.name, Prefix=prefix)
            return [(each["Key"], each["Size"]) for page in found for each in page.get("Contents", ())]

        return self._ask(f"s3://{self._bucket.name}/{prefix.rstrip('.')}", pages)

    def _delete(self, found: Sequence[str]) -> None:
        listed = {"Objects": [{"Key": key} for key in found], "Quiet": True}
        place = f"s3://{self._bucket.name}"
        reply = self._ask(place, lambda s3: s3.delete_objects(Bucket=self._bucket.name, Delete=listed))
        if errors := reply.get("Errors"):
            raise StoreError(f"{place}: could not remove files: {errors[0].get('Message')}")

    def _ask(self, what: str, verb: Callable[[Any], T]) -> T:
        try:
            return self._persist(verb)
        except ClientError as error:
            raise _refusal(what, error) from None

    def _persist(self, verb: Callable[[Any], T], patience: float | None = None) -> T:
        """Repeat a request until it succeeds or time runs out. Every request is safe to repeat."""
        deadline = time.monotonic() + (PATIENCE_SECONDS if patience is None else patience)
        pause = 0.05
        while True:
            try:
                return verb(self._client())
            except ClientError as error:
                if not _passes(error):
                    raise
                why = str(error)
            except _AWAY as error:
                why = str(error)
            except (NoCredentialsError, PartialCredentialsError):
                raise ConfigurationError(NO_CREDENTIALS) from None
            if time.monotonic() + pause > deadline:
                raise StoreUnavailable(f"s3://{self._bucket.name} does not answer ({why}): repeating is safe")
            time.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, 2.0)

    def _client(self) -> Any:
        """Return the client, created at first use: loading botocore and its model of S3 takes a fifth of a second and
        20 MB."""
        with self._lock:
            if self._made is None:
                self._made = _client_of(self._bucket)
            return self._made


def _client_of(bucket: Bucket) -> Any:
    import botocore.session
    from botocore.config import Config

    local = urlsplit(bucket.endpoint or "").hostname in _LOCAL
    keys: dict[str, str | None] = {}
    if local:  # a local server accepts any
        found = Credentials(None, dummy=True).now()
        keys = {"aws_access_key_id": found.access_key, "aws_secret_access_key": found.secret_key}
        keys["aws_session_token"] = found.session_token
    config = Config(
        connect_timeout=REPLY_SECONDS,
        read_timeout=REPLY_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 1},
        proxies={} if local else None,
        signature_version="s3v4",
        # The signature already covers the content. Many S3-compatible servers do not support the additional checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if bucket.endpoint else "auto", "payload_signing_enabled": True},
    )
    try:
        return botocore.session.Session().create_client(
            "s3", region_name=bucket.region, endpoint_url=bucket.endpoint, config=config, **keys
        )
    except (BotoCoreError, ValueError) as error:  # a missing profile, an endpoint that is not an address
        raise ConfigurationError(f"s3://{bucket.name}: {error}") from None


def _status(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


def _passes(error: ClientError) -> bool:
    """Return whether an error may be temporary."""
    return _status(error) >= 500 or _status(error) == 429 or error.response["Error"]["Code"] == "RequestTimeout"


def _refusal(what: str, error: ClientError) -> StoreError:
    code = error.response["Error"].get("Code") or f"HTTP {_status(error)}"
    return StoreError(f"{what}: S3 says {code}: check the bucket's name and what the credentials may do")
