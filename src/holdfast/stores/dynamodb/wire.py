"""Requests: signed, on a pool of connections, by urgency; repeated until they are answered or time is up."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from statistics import median
from typing import Any

import msgspec

from holdfast.clock import MICROS, SystemClock
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.aws.credentials import Credentials
from holdfast.stores.aws.signing import Keys, Signer, sha256
from holdfast.stores.aws.tls import tls
from holdfast.stores.dynamodb.address import Address
from holdfast.stores.dynamodb.connection import Connection, Reply
from holdfast.stores.dynamodb.errors import (
    AGAIN,
    Answer,
    Reason,
    Refused,
    Unanswered,
    answer,
    refused_of,
)
from holdfast.stores.dynamodb.values import decode

__all__ = ["Lane", "Meter", "Reason", "Refused", "Unanswered", "Wire"]

REPLY_SECONDS = 3.0
COMMIT_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.025
PAUSE_SECONDS_MAX = 1.0
CONFLICT_PAUSE_SECONDS_MAX = (
    0.1  # a transaction takes a tenth of it: whoever waits for longer loses to those who do not
)
IDLE_PAUSE_SECONDS = 0.5  # what can wait makes room while the tables are throttled
URGENT_ONLY = 4  # connections that only what is urgent may take
DATES_KEPT = 5
_document = msgspec.json.Decoder(dict[str, Any])


class Lane(Enum):
    """How urgent a call is. Leases and settlements must get through where claims can wait."""

    URGENT = "urgent"
    USUAL = "usual"
    IDLE = "idle"


class Meter:
    """What was used: calls, units where the address asks for them, and how often others were in the way."""

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
                continue  # a figure that cannot be read must not make a write look refused that was applied
            self.read_units += units if reads else 0
            self.write_units += 0 if reads else units


class Wire:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.meter = Meter()
        self._credentials = Credentials(address.profile, dummy=address.on_this_machine)
        self._signer = Signer("dynamodb", address.region)
        self._tls = tls() if address.scheme == "https" else None
        self._free: list[Connection] = []
        self._closed = False
        self._dropped: deque[Connection] = deque(maxlen=address.pool)  # closed, but the loop may not have come to it
        self._all = asyncio.Semaphore(address.pool)
        self._usual = asyncio.Semaphore(address.pool - URGENT_ONLY)
        self._idle = asyncio.Semaphore(address.pool // 2)
        self._skews: deque[float] = deque(maxlen=DATES_KEPT)

    @property
    def skew_seconds(self) -> float | None:
        """How far this machine's clock is ahead of DynamoDB's; None: it has not said what time it is."""
        return median(self._skews) if len(self._skews) == DATES_KEPT else None

    async def persist(self, operation: str, body: dict[str, Any], *, lane: Lane, seconds: float) -> dict[str, Any]:
        """The same request until it is answered. Writes carry a token or a condition that makes a repeat harmless."""
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
        """One try."""
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
        signed = self._signer.headers(keys, datetime.now(UTC), "POST", host, "/", {}, headers, sha256(encoded))
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
            raise Unanswered("AWS keys cannot be fetched: not in time", sent=False) from None
        except StoreUnavailable as error:
            raise Unanswered(str(error), sent=False) from None

    def _read(self, operation: str, reply: Reply) -> dict[str, Any]:
        """What is not DynamoDB's is no answer: whatever stands between may have sent it, before or after the write."""
        try:
            document = _document.decode(reply.body) if reply.body else {}
            refused = None if reply.status == 200 else refused_of(reply.status, document, decode)
        except (msgspec.MsgspecError, StoreError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
            if reply.status < 500:
                raise Unanswered(f"HTTP {reply.status} that is not DynamoDB's", sent=True, astray=True) from None
            refused = refused_of(reply.status, {}, decode)
        if reply.status < 400 and (refused is not None or not reply.body):
            raise Unanswered(f"HTTP {reply.status} that is not DynamoDB's", sent=True, astray=True)
        if refused is not None:
            raise refused
        self.meter.add(operation, document)
        return document

    def _note_date(self, reply: Reply, asked_at: int) -> None:
        """How far the clocks are apart, at the least: the header tells whole seconds, and the way takes time."""
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
