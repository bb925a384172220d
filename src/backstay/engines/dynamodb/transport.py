"""Requests to DynamoDB: HTTP/1.1 connections, signing, urgency, retries, and answers as our own errors.

A connection tells whether a request that was not answered had been sent.

Why not a library: `scripts/bench dynamodb-clients` measures CPU per call on DynamoDB Local. The cheapest one, aiohttp
with botocore's signer, takes 1.9 times as much as this connection with our signer; aiobotocore takes 3.7 and httpx 6.4
times as much. The rule was to switch at 1.5 or less. aiohttp with our own signer is at that limit, 1.4 to 1.6. Measure
again before you replace this module; docs/explanation/dynamodb.md, "Its own client", has the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from statistics import median
from typing import Any

import msgspec

from backstay.clock import MICROS, SystemClock
from backstay.core import open_files
from backstay.engines.dynamodb.address import Address
from backstay.engines.dynamodb.schema import Item, decode
from backstay.errors import BackstayError, ConfigurationError, StoreBusy, StoreError, StoreGone, StoreUnavailable
from backstay.files.aws import Credentials, Keys, Signer, tls


class Reason(msgspec.Struct, frozen=True):
    """Why a transaction was cancelled, for one of its items; no code means that this item was not the cause."""

    code: str | None
    item: Item | None = None  # the existing item, if the condition failed


class Unanswered(Exception):
    """No response. `sent`: the request may have been applied anyway. `astray`: it may have reached another server."""

    def __init__(self, message: str, *, sent: bool, astray: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.astray = astray


class Refused(Exception):
    """A response that is an error."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        reasons: tuple[Reason, ...] = (),
        item: Item | None = None,
        http_status: int = 400,
    ) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.reasons = reasons
        self.item = item
        self.http_status = http_status


class Answer(Enum):
    """How to handle a refusal."""

    CONDITION = "condition"  # the verb decides
    CONFLICT = "conflict"  # a conflict with another transaction, or our own earlier try: repeat with the same token
    THROTTLED = "throttled"
    SERVER = "server"  # may or may not have been applied
    GONE = "gone"
    IN_USE = "in use"
    CREDENTIALS = "credentials"
    EXPIRED = "expired"  # credentials that can be fetched again
    OURS = "ours"  # an invalid request


_ANSWERS = {
    "ConditionalCheckFailedException": Answer.CONDITION,
    "ConditionalCheckFailed": Answer.CONDITION,
    "TransactionConflictException": Answer.CONFLICT,
    "TransactionConflict": Answer.CONFLICT,
    "TransactionInProgressException": Answer.CONFLICT,
    "ReplicatedWriteConflictException": Answer.CONFLICT,
    "ProvisionedThroughputExceededException": Answer.THROTTLED,
    "ProvisionedThroughputExceeded": Answer.THROTTLED,
    "ThrottlingException": Answer.THROTTLED,
    "ThrottlingError": Answer.THROTTLED,
    "RequestLimitExceeded": Answer.THROTTLED,
    "LimitExceededException": Answer.THROTTLED,
    "InternalServerError": Answer.SERVER,
    "InternalServerErrorException": Answer.SERVER,
    "InternalFailure": Answer.SERVER,
    "ServiceUnavailable": Answer.SERVER,
    "ServiceUnavailableException": Answer.SERVER,
    "ResourceNotFoundException": Answer.GONE,
    "TableNotFoundException": Answer.GONE,
    "ResourceInUseException": Answer.IN_USE,
    "ExpiredTokenException": Answer.EXPIRED,
    "ExpiredToken": Answer.EXPIRED,
    "AccessDeniedException": Answer.CREDENTIALS,
    "UnrecognizedClientException": Answer.CREDENTIALS,
    "InvalidSignatureException": Answer.CREDENTIALS,
    "MissingAuthenticationTokenException": Answer.CREDENTIALS,
    "MissingAuthenticationToken": Answer.CREDENTIALS,
    "IncompleteSignatureException": Answer.CREDENTIALS,
    "IncompleteSignature": Answer.CREDENTIALS,
    "RequestExpired": Answer.CREDENTIALS,
}
AGAIN = frozenset({Answer.CONFLICT, Answer.THROTTLED, Answer.SERVER})


def answer(refused: Refused) -> Answer:
    if refused.reasons:
        return _of_reasons(each.code for each in refused.reasons if each.code is not None)
    found = _ANSWERS.get(refused.code)
    if found is None:
        return Answer.SERVER if refused.http_status >= 500 else Answer.OURS
    return found


def _of_reasons(codes: Iterable[str]) -> Answer:
    """Return how to handle a cancelled transaction: a failed condition is final, even among conflicts; a conflict alone
    is not."""
    found = {_ANSWERS.get(code, Answer.OURS) for code in codes}
    for each in (Answer.OURS, Answer.CONDITION, Answer.THROTTLED, Answer.CONFLICT):
        if each in found:
            return each
    return Answer.SERVER


def refused_of(http_status: int, document: dict[str, Any], decode: Any) -> Refused:
    """Return the refusal from the body of an error response."""
    code = str(document.get("__type", "")).rpartition("#")[2] or f"HTTP {http_status}"
    message = str(document.get("message") or document.get("Message") or "")
    reasons = tuple(
        Reason(
            None if each.get("Code") in (None, "None") else str(each["Code"]),
            decode(each["Item"]) if each.get("Item") else None,
        )
        for each in document.get("CancellationReasons") or ()
    )
    if reasons and not message:
        message = ", ".join(each.code or "None" for each in reasons)
    item = decode(document["Item"]) if document.get("Item") else None
    return Refused(code, message, reasons=reasons, item=item, http_status=http_status)


def translate(error: Refused | Unanswered, shown: str, *, maybe_applied: bool = False) -> BackstayError:
    """Return the error that a caller sees, which says whether repeating helps."""
    may = "; the last write may have been applied; it is safe to retry" if maybe_applied else ""
    is_right = f": is the {'endpoint' if 'endpoint=' in shown else 'region'} right?"
    if isinstance(error, Unanswered):
        return StoreUnavailable(f"{shown} is not responding ({error}){may or (is_right if error.astray else '')}")
    if error.code.startswith("HTTP "):  # without DynamoDB's name of the error
        kind = StoreUnavailable if answer(error) is Answer.SERVER else StoreError
        return kind(f"{shown} answers {error}{may or is_right}")
    match answer(error):
        case Answer.CONFLICT:
            return StoreBusy(f"{shown}: other processes write to the same items ({error.code}); it is safe to retry")
        case Answer.THROTTLED:
            return StoreBusy(f"{shown} is throttled ({error.code}): raise the tables' capacity, or use more shards")
        case Answer.SERVER:
            return StoreUnavailable(f"{shown}: {error}{may}")
        case Answer.GONE:
            return StoreGone(f"{shown}: a table is gone ({error.message}): restore it, or run backstay migrate")
        case Answer.CREDENTIALS | Answer.EXPIRED:
            return ConfigurationError(f"{shown}: {error}: check the credentials and their permissions")
        case _:
            return StoreError(f"{shown}: {error}")


CONNECT_SECONDS = 1.0
IDLE_SECONDS = 15.0  # the server closes idle connections after about 20
REPLY_BYTES_MAX = 32 * 1024 * 1024  # a page holds 1 MB, a batch 16
HEAD_BYTES_MAX = 64 * 1024


class Reply(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Reader(asyncio.StreamReader):
    """A reader that knows how many bytes are unread: they belong to no request of ours."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=HEAD_BYTES_MAX, loop=loop)
        self.unread = 0

    def feed_data(self, data: Any) -> None:
        self.unread += len(data)
        super().feed_data(data)

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        found = await super().readuntil(separator)
        self.unread -= len(found)
        return found

    async def readexactly(self, n: int) -> bytes:
        found = await super().readexactly(n)
        self.unread -= len(found)
        return found


class Connection:
    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.idle_since = asyncio.get_running_loop().time()
        self.reusable = True

    @classmethod
    async def open(cls, host: str, port: int, context: ssl.SSLContext | None) -> Connection:
        loop = asyncio.get_running_loop()
        reader = _Reader(loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, _ = await loop.create_connection(
                    lambda: protocol, host, port, ssl=context, server_hostname=host if context else None
                )
        except (OSError, TimeoutError) as error:
            if open_files.is_shortage(error):
                raise Unanswered(open_files.what_to_do(), sent=False) from None
            raise Unanswered(f"no connection to {host}:{port}: {_why(error)}", sent=False, astray=True) from None
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    @property
    def stale(self) -> bool:
        """Whether it must not be reused: unexpected bytes would be taken for the response to the next request."""
        if not self.reusable or self._reader.unread or self._reader.at_eof() or self._writer.is_closing():
            return True
        return asyncio.get_running_loop().time() - self.idle_since > IDLE_SECONDS

    async def ask(self, head: bytes, body: bytes, seconds: float) -> Reply:
        self.reusable = False  # until the whole reply has been read
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(head + body)
                await self._writer.drain()
                reply = await self._reply()
            _refuse_damaged(reply)
        except (OSError, TimeoutError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            self.close()
            raise Unanswered(f"no reply: {_why(error)}", sent=True, astray=isinstance(error, ValueError)) from None
        except BaseException:
            self.close()
            raise
        self.idle_since = asyncio.get_running_loop().time()
        return reply

    async def _reply(self) -> Reply:
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError("the reply is not HTTP")
        status = int(rest[:3])
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            if name:
                headers[name.lower()] = value.strip()
        body = await self._body(status, headers)
        self.reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        return Reply(status, headers, body)

    async def _body(self, status: int, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunks()
        if "content-length" not in headers:
            raise ValueError("the reply does not say how long it is")
        length = int(headers["content-length"])
        if not 0 <= length <= REPLY_BYTES_MAX:
            raise ValueError("the reply is too long")
        return await self._reader.readexactly(length)

    async def _chunks(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            line = await self._reader.readuntil(b"\r\n")
            length = int(line.split(b";")[0], 16)
            total += length
            if length < 0 or total > REPLY_BYTES_MAX:
                raise ValueError("the reply is too long")
            if length == 0:
                while await self._reader.readuntil(b"\r\n") != b"\r\n":
                    pass
                return b"".join(parts)
            parts.append(await self._reader.readexactly(length))
            if await self._reader.readexactly(2) != b"\r\n":
                raise ValueError("the reply is not HTTP")

    def close(self) -> None:
        self.reusable = False
        self._writer.close()

    async def closed(self) -> None:
        self.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()


def _refuse_damaged(reply: Reply) -> None:
    if reply.status == 408:
        raise ValueError("the server gave up waiting for a request")  # does not say for which request
    checksum = reply.headers.get("x-amz-crc32")
    if checksum is not None and checksum != str(zlib.crc32(reply.body)):
        raise ValueError("it was damaged in transit")


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, EOFError):
        return "the server closed the connection"
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error) or type(error).__name__


REPLY_SECONDS = 3.0
COMMIT_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.025
PAUSE_SECONDS_MAX = 1.0
CONFLICT_PAUSE_SECONDS_MAX = 0.1  # a transaction takes a tenth of it: longer waits would lose against others
IDLE_PAUSE_SECONDS = 0.5  # less urgent calls wait while the tables are throttled
URGENT_ONLY = 4  # connections reserved for urgent calls
DATES_KEPT = 5
_document = msgspec.json.Decoder(dict[str, Any])


class Lane(Enum):
    """How urgent a call is. Leases and settlements must get through when claims can wait."""

    URGENT = "urgent"
    USUAL = "usual"
    IDLE = "idle"


class Meter:
    """Usage: calls, units if the address requests them, and conflicts."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.read_units = 0.0
        self.write_units = 0.0
        self.throttled = 0
        self.conflicts = 0

    def add(self, operation: str, reply: dict[str, Any]) -> None:
        self.calls[operation] += 1
        used = reply.get("ConsumedCapacity")
        reads = operation in ("GetItem", "BatchGetItem", "Query", "Scan")
        for each in used if isinstance(used, list) else [used] if used else []:
            try:
                units = float(each["CapacityUnits"])
            except (TypeError, KeyError, ValueError):
                continue  # an unreadable figure must not make an applied write look refused
            self.read_units += units if reads else 0
            self.write_units += 0 if reads else units


class Wire:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.meter = Meter()
        self._credentials = Credentials(address.profile, dummy=address.on_this_machine)
        self._signer = Signer(address.region)
        self._tls = tls() if address.scheme == "https" else None
        self._free: list[Connection] = []
        self._closed = False
        # closed, but the loop may not have processed it yet
        self._dropped: deque[Connection] = deque(maxlen=address.pool)
        self._all = asyncio.Semaphore(address.pool)
        self._usual = asyncio.Semaphore(address.pool - URGENT_ONLY)
        self._idle = asyncio.Semaphore(address.pool // 2)
        self._skews: deque[float] = deque(maxlen=DATES_KEPT)

    @property
    def skew_seconds(self) -> float | None:
        """How far this machine's clock is ahead of DynamoDB's; None if the server has not sent its time."""
        return median(self._skews) if len(self._skews) == DATES_KEPT else None

    async def persist(self, operation: str, body: dict[str, Any], *, lane: Lane, seconds: float) -> dict[str, Any]:
        """Repeat a request until it is answered. Writes carry a token or a condition that makes a repeat harmless."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        pause = FIRST_PAUSE_SECONDS
        renewed = False
        unanswered: Unanswered | None = None
        while True:
            left = deadline - loop.time()
            try:
                return await self.call(operation, body, lane=lane, seconds=max(0.1, left))
            except Unanswered as error:
                if unanswered is None or error.sent:
                    unanswered = error
                last: Unanswered | Refused = unanswered
            except Refused as error:
                last = error
                kind = answer(error)
                if kind is Answer.EXPIRED:
                    self._credentials.forget()
                    if not renewed:
                        renewed = True
                        continue
                elif kind not in AGAIN:
                    raise
                self.meter.throttled += kind is Answer.THROTTLED
                self.meter.conflicts += kind is Answer.CONFLICT
                if kind is Answer.THROTTLED and lane is Lane.IDLE:
                    pause = max(pause, IDLE_PAUSE_SECONDS)
                elif kind is Answer.CONFLICT:
                    pause = min(pause, CONFLICT_PAUSE_SECONDS_MAX)
            wait = pause * (0.5 + random.random())
            if loop.time() + wait >= deadline:
                raise last
            await asyncio.sleep(wait)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    async def call(self, operation: str, body: dict[str, Any], *, lane: Lane, seconds: float) -> dict[str, Any]:
        """Send a request once."""
        if self.address.meter and operation not in ("DescribeTable", "CreateTable", "UpdateTable", "DeleteTable"):
            body = {**body, "ReturnConsumedCapacity": "INDEXES"}
        keys = self._credentials.at_hand() or await self._fetched_keys(seconds)
        encoded = msgspec.json.encode(body)
        headers = {
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": f"DynamoDB_20120810.{operation}",
            "accept-encoding": "identity",
        }
        host = self.address.host_header
        signed = self._signer.headers(keys, datetime.now(UTC), host, headers, encoded)
        lines = [f"{name}: {value}" for name, value in signed.items()]
        head = "\r\n".join(["POST / HTTP/1.1", *lines, f"content-length: {len(encoded)}", "", ""]).encode()
        each = COMMIT_SECONDS if operation == "TransactWriteItems" else REPLY_SECONDS
        async with self._connection(lane, seconds) as connection:
            asked_at = SystemClock().now()
            reply = await connection.ask(head, encoded, min(each, seconds))
        self._note_date(reply, asked_at)
        return self._read(operation, reply)

    async def _fetched_keys(self, seconds: float) -> Keys:
        try:
            async with asyncio.timeout(seconds):
                return await self._credentials.keys()
        except TimeoutError:
            raise Unanswered("AWS credentials cannot be fetched: timed out", sent=False) from None
        except StoreUnavailable as error:
            raise Unanswered(str(error), sent=False) from None

    def _read(self, operation: str, reply: Reply) -> dict[str, Any]:
        """Read a response. One that is not DynamoDB's does not count: a proxy may have sent it, before or after the
        write."""
        try:
            document = _document.decode(reply.body) if reply.body else {}
            refused = None if reply.status == 200 else refused_of(reply.status, document, decode)
        except (msgspec.MsgspecError, StoreError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
            if reply.status < 500:
                raise Unanswered(f"HTTP {reply.status} not from DynamoDB", sent=True, astray=True) from None
            refused = refused_of(reply.status, {}, decode)
        if reply.status < 400 and (refused is not None or not reply.body):
            raise Unanswered(f"HTTP {reply.status} not from DynamoDB", sent=True, astray=True)
        if refused is not None:
            raise refused
        self.meter.add(operation, document)
        return document

    def _note_date(self, reply: Reply, asked_at: int) -> None:
        """Note the minimum difference of the clocks: the header has whole seconds, and the transfer takes time."""
        try:
            date = parsedate_to_datetime(reply.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError, OverflowError):
            return
        now = SystemClock().now()
        here, half_way = now / MICROS, (now - asked_at) / 2 / MICROS
        apart = min(here - date, 0.0) if here < date else max(here - date - 1.0, 0.0)
        self._skews.append(apart - half_way if apart > half_way else apart + half_way if apart < -half_way else 0.0)

    @contextlib.asynccontextmanager
    async def _connection(self, lane: Lane, seconds: float) -> AsyncIterator[Connection]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(seconds):
                    if lane is Lane.IDLE:
                        await stack.enter_async_context(self._idle)
                    if lane is not Lane.URGENT:
                        await stack.enter_async_context(self._usual)
                    await stack.enter_async_context(self._all)
            except TimeoutError:
                raise Unanswered("all connections are busy", sent=False) from None
            connection = self._take() or await Connection.open(self.address.host, self.address.port, self._tls)
            try:
                yield connection
            finally:
                if connection.reusable and not self._closed:
                    self._free.append(connection)
                else:
                    self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._dropped.append(connection)

    def _take(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if not connection.stale:
                return connection
            self._drop(connection)
        return None

    async def close(self) -> None:
        self._closed = True
        free, self._free = self._free, []
        for connection in (*free, *self._dropped):
            await connection.closed()
