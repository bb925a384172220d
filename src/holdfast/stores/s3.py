"""Files of jobs in a bucket of S3: artifacts="s3://bucket/prefix?region=…". Any engine may keep them there.

<prefix>/<job_id>/<attempt>/<name>        what an attempt wrote, one object each
<prefix>/<job_id>/job.log.000001          a log grows by objects: S3 cannot add to one
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

import msgspec

from holdfast.contents import Content, Tally, checked, in_pieces
from holdfast.errors import ConfigurationError, StoreError
from holdfast.files import Files, StoredFile
from holdfast.limits import ARTIFACT_BYTES_MAX, MIB
from holdfast.stores.aws.credentials import region_of
from holdfast.stores.aws.requests import Answer, Requests

PIECE_BYTES = 8 * MIB  # sent or asked for in one request; S3 takes 10,000 parts of at least 5 MiB
DELETES_MAX = 1_000  # of one request
APPEND_TRIES = 1_000  # a number that another took is passed over
_OPTIONS = ("region", "endpoint")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_CONTENTS = re.compile(r"<Contents>(.*?)</Contents>", re.DOTALL)
_NUMBER = re.compile(r"\.([0-9]{6})$")


class Bucket(msgspec.Struct, frozen=True):
    """Where objects are. A bucket of AWS has a host of its own; elsewhere it stands in the path."""

    name: str
    prefix: str
    region: str
    endpoint: str
    in_path: bool

    def path(self, key: str) -> str:
        return f"/{self.name}/{key}" if self.in_path else f"/{key}"


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
    in_path = named is not None or "." in parts.netloc
    host = f"s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    endpoint = named or (f"https://{host}" if in_path else f"https://{parts.netloc}.{host}")
    return Bucket(parts.netloc, unquote(parts.path).strip("/"), region, endpoint.rstrip("/"), in_path)


class _Upload(msgspec.Struct):
    """A file on its way, in parts."""

    key: str
    uri: str
    mark: str
    upload_id: str
    etags: list[str] = []


class S3Files(Files):
    size_max = ARTIFACT_BYTES_MAX

    def __init__(self, uri: str) -> None:
        self._bucket = parse(uri)
        self._requests = Requests("s3", self._bucket.region, self._bucket.endpoint)
        self._lock = threading.Lock()
        self._logs: dict[tuple[str, str], tuple[int, int]] = {}  # the next number, and how many bytes are there

    def uri(self, job_id: str, name: str) -> str:
        return f"s3://{self._bucket.name}/{self._key(job_id, name)}"

    def write(self, job_id: str, attempt: int, name: str, content: Content) -> StoredFile:
        key, uri = self._key(job_id, f"{attempt}/{name}"), self.uri(job_id, f"{attempt}/{name}")
        tally = Tally(name, self.size_max)
        upload: _Upload | None = None
        try:
            for piece in in_pieces(content, PIECE_BYTES):
                tally.add(piece)
                if upload is None and len(piece) < PIECE_BYTES:
                    self._expect(self._put(key, piece), 200, uri)
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
            answer = self._put(key, content, {"if-none-match": "*", "x-amz-meta-append": mark})
            if answer.status in (409, 412) and not self._is_ours(key, mark):  # another added at the same time
                number, size = self._look(job_id, name)
                continue
            if answer.status != 412:
                self._expect(answer, 200, self.uri(job_id, name))
            with self._lock:
                if len(self._logs) > 1_000:
                    self._logs.clear()
                self._logs[job_id, name] = (number + 1, size + len(content))
            return
        raise StoreError(f"{self.uri(job_id, name)}: others keep adding to it")

    def stream(self, file: StoredFile) -> Iterator[bytes]:
        return checked(file.uri, file.size, file.sha256, self._ranges(file, self._place(file)))

    def part(self, file: StoredFile, start: int, size: int) -> bytes:
        end = min(file.size, start + size)
        if start >= end:
            return b""
        found = self._range(file, self._place(file), start, end)
        return found if len(found) <= end - start else found[start:end]  # from a place that knows no ranges

    def _place(self, file: StoredFile) -> str:
        parts = urlsplit(file.uri)
        if parts.scheme != "s3" or parts.netloc != self._bucket.name:
            raise StoreError(f"{file.uri} is not in this bucket: open the app with the artifacts= it was written with")
        return unquote(parts.path).lstrip("/")

    def _ranges(self, file: StoredFile, key: str) -> Iterator[bytes]:
        for start in range(0, max(1, file.size), PIECE_BYTES):
            if not (piece := self._range(file, key, start, min(file.size, start + PIECE_BYTES))):
                return
            yield piece

    def _range(self, file: StoredFile, key: str, start: int, end: int) -> bytes:
        answer = self._ask("GET", key, {"range": f"bytes={start}-{end - 1}"} if file.size else {})
        if answer.status == 404:
            raise StoreError(f"{file.uri} is gone: the job that it belonged to was removed")
        if answer.status == 416:
            return b""  # it is shorter than it was
        self._expect(answer, 206, file.uri)
        return answer.body

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
                answer = self._ask("GET", key, {"range": f"bytes={first}-{first + wanted - 1}"})
                self._expect(answer, 206, self.uri(job_id, name))
                found += answer.body
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
        place = f"s3://{self._bucket.name}/{self._bucket.prefix}"
        query = {"list-type": "2", "prefix": self._key("", ""), "max-keys": "1"}
        self._expect(self._ask("GET", "", query=query), 200, place)
        return f"in {place}"

    def close(self) -> None:
        self._requests.close()

    def _key(self, job_id: str, name: str) -> str:
        return f"{self._bucket.prefix}/{job_id}/{name}" if self._bucket.prefix else f"{job_id}/{name}"

    def _is_ours(self, key: str, mark: str) -> bool:
        """What was written with an answer that was lost is refused when it is repeated: it is there."""
        return self._ask("HEAD", key).headers.get("x-amz-meta-append") == mark

    def _begin(self, key: str, uri: str) -> _Upload:
        mark = secrets.token_hex(8)
        answer = self._ask("POST", key, {"x-amz-meta-append": mark}, {"uploads": ""})
        self._expect(answer, 200, uri)
        return _Upload(key, uri, mark, _tag(answer.body.decode(), "UploadId"))

    def _add(self, upload: _Upload, piece: bytes) -> None:
        number = len(upload.etags) + 1
        answer = self._ask("PUT", upload.key, {}, {"partNumber": str(number), "uploadId": upload.upload_id}, piece)
        self._expect(answer, 200, upload.uri)
        upload.etags.append(answer.headers["etag"])

    def _finish(self, upload: _Upload) -> None:
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
            for number, etag in enumerate(upload.etags, 1)
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        answer = self._ask("POST", upload.key, {}, {"uploadId": upload.upload_id}, body)
        if answer.status == 404 and self._is_ours(upload.key, upload.mark):
            return
        self._expect(answer, 200, upload.uri)
        if b"<Error>" in answer.body:  # S3 has begun to answer before it knew
            raise StoreError(f"{upload.uri}: S3 could not finish it: {_tag(answer.body.decode(), 'Message')}")

    def _abort(self, upload: _Upload) -> None:
        """Its parts cost money until they are gone; a bucket's own rule for unfinished uploads takes the rest."""
        with contextlib.suppress(StoreError):
            self._ask("DELETE", upload.key, {}, {"uploadId": upload.upload_id})

    def _look(self, job_id: str, name: str) -> tuple[int, int]:
        pieces = self._pieces(job_id, name)
        found = _NUMBER.search(pieces[-1][0]) if pieces else None
        return (1 if found is None else int(found[1]) + 1), sum(size for _, size in pieces)

    def _pieces(self, job_id: str, name: str) -> list[tuple[str, int]]:
        found = self._list(self._key(job_id, f"{name}."))
        return sorted((key, size) for key, size in found if _NUMBER.search(key))

    def _list(self, prefix: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        while True:
            answer = self._ask("GET", "", query=query)
            self._expect(answer, 200, f"s3://{self._bucket.name}/{prefix.rstrip('.')}")
            text = answer.body.decode()
            found += [(unquote(_tag(each, "Key")), int(_tag(each, "Size"))) for each in _CONTENTS.findall(text)]
            if _tag(text, "IsTruncated") != "true":
                return found
            query["continuation-token"] = _tag(text, "NextContinuationToken")

    def _delete(self, found: Sequence[str]) -> None:
        listed = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in found)
        body = f"<Delete><Quiet>true</Quiet>{listed}</Delete>".encode()
        checksum = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        answer = self._ask("POST", "", {"content-md5": checksum}, {"delete": ""}, body)
        self._expect(answer, 200, f"s3://{self._bucket.name}")
        if b"<Error>" in answer.body:
            message = _tag(answer.body.decode(), "Message")
            raise StoreError(f"s3://{self._bucket.name}: files could not be removed: {message}")

    def _put(self, key: str, content: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        checksum = base64.b64encode(hashlib.sha256(content).digest()).decode()
        return self._ask("PUT", key, {"x-amz-checksum-sha256": checksum, **(headers or {})}, body=content)

    def _ask(
        self,
        method: str,
        key: str,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        return self._requests.ask(method, self._bucket.path(key), query or {}, headers or {}, body)

    def _expect(self, answer: Answer, status: int, what: str) -> None:
        if answer.status != status and not (status == 206 and answer.status == 200):
            code = _tag(answer.body.decode(errors="replace"), "Code") or f"HTTP {answer.status}"
            raise StoreError(f"{what}: S3 says {code}: check the bucket's name and what the credentials may do")


def _tag(text: str, name: str) -> str:
    found = re.search(f"<{quote(name)}>(.*?)</{quote(name)}>", text, re.DOTALL)
    return unescape(found[1], {"&quot;": '"', "&#39;": "'"}) if found else ""
