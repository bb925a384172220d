"""A proxy in front of DynamoDB Local that can throttle, lose responses, hang, delay indexes and shift the clock."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from backstay.engines.dynamodb.schema import INDEXES

_WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems", "BatchWriteItem"})
_READS = frozenset({"GetItem", "BatchGetItem", "Query", "Scan"})
_TYPE = "com.amazonaws.dynamodb.v20120810#"
Message = tuple[bytes, dict[str, str], bytes]  # first line, headers by lower name, body


class DynamoProxy:
    """`with DynamoProxy(port) as proxy:`; clients connect to proxy.port. Its loop runs in a thread of its own."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.port = 0
        self.calls: list[str] = []  # operations received, in order
        self.unheard = 0  # applied writes whose response the client did not get
        self._lose = 0
        self._answer_500 = 0
        self._sever = 0
        self._throttle = 0.0
        self._conflict = 0.0
        self._contend = 0.0
        self._under_way: set[str] = set()  # items of transactions under way
        self._offset_seconds: float | None = None
        self._speaking = asyncio.Event()
        self._speaking.set()
        self._lag = _Lag()
        self._draw = random.Random(1)
        self._lock = threading.Lock()
        self._links: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> DynamoProxy:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # Faults

    def lose(self, count: int = 1) -> None:
        """Pass the next writes to the server, and cut the connection when it has applied them."""
        with self._lock:
            self._lose += count

    def reply_500_after(self, count: int = 1) -> None:
        """Pass the next writes to the server, and respond with an error."""
        with self._lock:
            self._answer_500 += count

    def sever(self, count: int = 1) -> None:
        """Cut the next connections at a random byte of a request or of its response."""
        with self._lock:
            self._sever += count

    def throttle(self, share: float) -> None:
        """Refuse this share of all calls before the server sees them."""
        self._throttle = share

    def conflict(self, share: float) -> None:
        """Cancel this share of all transactions as conflicts."""
        self._conflict = share

    def contend(self, seconds: float) -> None:
        """Delay each transaction by this much, and cancel others that use one of its items in the meantime, as DynamoDB
        does."""
        self._contend = seconds

    def blackhole(self) -> None:
        """Keep connections open without passing anything on."""
        self._loop.call_soon_threadsafe(self._speaking.clear)

    def stale(self, seconds: float) -> None:
        """Let indexes lag by this much: they show rows that are gone, and not yet new ones."""
        self._lag.seconds = seconds

    def date(self, offset_seconds: float) -> None:
        """Respond with a date that is this much later."""
        self._offset_seconds = offset_seconds

    def heal(self) -> None:
        with self._lock:
            self._lose = self._answer_500 = self._sever = 0
        self._throttle = self._conflict = self._contend = 0.0
        self._lag.seconds = 0.0
        self._offset_seconds = None
        if not self._speaking.is_set():
            self._loop.call_soon_threadsafe(self._cut)
            self._loop.call_soon_threadsafe(self._speaking.set)

    # The loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._link, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._cut()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _cut(self) -> None:
        for writer in tuple(self._links):
            writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._links.add(writer)
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                request = await _read(reader)
                if upstream is None:
                    upstream = await asyncio.open_connection("127.0.0.1", self._target_port)
                severed = self._take("_sever")
                if severed and self._draw.random() < 0.5:
                    await self._send_part(_written(request), upstream[1])
                    writer.transport.abort()
                    return
                reply = await self._serve(request, *upstream)
                if reply is None:
                    writer.transport.abort()
                    return
                if severed:
                    await self._send_part(_written(reply), writer)
                    writer.transport.abort()
                    return
                writer.write(_written(reply))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._links.discard(writer)
            if upstream is not None:
                upstream[1].transport.abort()

    async def _send_part(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data[: self._draw.randrange(len(data))])
        await writer.drain()

    async def _serve(
        self, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Message | None:
        operation = request[1].get("x-amz-target", "").rpartition(".")[2]
        self.calls.append(operation)
        await self._speaking.wait()
        if operation in _WRITES | _READS and self._draw.random() < self._throttle:
            return _error("ProvisionedThroughputExceededException", "slow down")
        if operation == "TransactWriteItems" and self._draw.random() < self._conflict:
            return _conflicting(request)
        if operation != "TransactWriteItems" or not self._contend:
            return await self._pass_on(operation, request, reader, writer)
        touched = _places(json.loads(request[2]))
        if touched & self._under_way:
            return _conflicting(request)
        self._under_way |= touched
        try:
            await asyncio.sleep(self._contend)
            return await self._pass_on(operation, request, reader, writer)
        finally:
            self._under_way -= touched

    async def _pass_on(
        self, operation: str, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Message | None:
        asked = self._lag.asked(request) if operation == "Query" else request
        writer.write(_written(asked))
        await writer.drain()
        reply = await _read(reader)
        if operation in _WRITES and b" 200 " in reply[0]:
            self._lag.note(json.loads(request[2]), json.loads(reply[2]))
            if self._take("_lose"):
                self.unheard += 1
                return None
            if self._take("_answer_500"):
                self.unheard += 1
                return _error("InternalServerError", "it may have been applied", status=b"500 Internal Server Error")
        if operation == "Query" and self._lag.seconds:
            reply = (reply[0], reply[1], self._lag.served(json.loads(request[2]), reply[2]))
        if self._offset_seconds is not None:
            date = formatdate(time.time() + self._offset_seconds, usegmt=True)
            reply = (reply[0], {**reply[1], "date": date}, reply[2])
        return reply

    def _take(self, name: str) -> bool:
        with self._lock:
            left: int = getattr(self, name)
            if left <= 0:
                return False
            setattr(self, name, left - 1)
            return True


class _Lag:
    """What lagging indexes would show. It knows only what passed through here."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._written: dict[str, float] = {}  # job id, to when it was last written
        self._shown: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}  # table, index, hash, to rows by id

    def note(self, request: dict[str, Any], _: dict[str, Any]) -> None:
        for key in _keys(request):
            self._written[key] = time.monotonic()

    def asked(self, request: Message) -> Message:
        """Return the query with its rows: a count alone cannot be delayed."""
        body = json.loads(request[2])
        if not self.seconds or body.pop("Select", None) != "COUNT":
            return request
        return request[0], request[1], json.dumps(body).encode()

    def served(self, request: dict[str, Any], body: bytes) -> bytes:
        index = INDEXES.get(request.get("IndexName", ""))
        reply = json.loads(body)
        if index is None or "Items" not in reply:
            return body
        if any("job_id" not in row for row in reply["Items"]):  # a projection without it: served as it is
            return body
        # The hash is the first value that our own queries name.
        partition = (request["TableName"], index.name, json.dumps(request["ExpressionAttributeValues"][":0"]))
        before = self._shown.setdefault(partition, {})
        now_there = {row["job_id"]["S"]: row for row in reply["Items"]}
        rows = {}
        for job_id, row in now_there.items():
            if not self._is_late(job_id):
                rows[job_id] = row
            elif job_id in before:
                rows[job_id] = before[job_id]  # as it was
        asked = _asked(request)
        kept = {}
        for job_id, row in before.items():
            if not asked(_key(row[index.range])):
                kept[job_id] = row  # another query shows it
            elif self._is_late(job_id):
                kept[job_id] = row
                if job_id not in now_there:
                    rows[job_id] = row  # a ghost
        self._shown[partition] = kept | rows
        ordered = sorted(rows.values(), key=lambda row: _key(row[index.range]))
        if request.get("ScanIndexForward") is False:
            ordered.reverse()
        items = {} if request.get("Select") == "COUNT" else {"Items": ordered}
        del reply["Items"]
        return json.dumps({**reply, **items, "Count": len(ordered)}).encode()

    def _is_late(self, job_id: str) -> bool:
        return time.monotonic() - self._written.get(job_id, float("-inf")) < self.seconds


def _key(value: dict[str, str]) -> Any:
    return float(value["N"]) if "N" in value else value["S"]


def _asked(request: dict[str, Any]) -> Callable[[Any], bool]:
    """Return whether a range key is among those that a query of ours asks for."""
    condition = request["KeyConditionExpression"]
    bounds = [_key(request["ExpressionAttributeValues"][name]) for name in re.findall(r":\d+", condition)[1:]]
    if not bounds:
        return lambda key: True
    if "begins_with" in condition:
        return lambda key: key.startswith(bounds[0])
    if "BETWEEN" in condition:
        return lambda key: bounds[0] <= key <= bounds[1]
    if "<=" in condition:
        return lambda key: key <= bounds[0]
    assert ">=" in condition, condition
    return lambda key: key >= bounds[0]


def _keys(request: Any) -> list[str]:
    """Return every job id that a write names as a key or inside an item."""
    found: list[str] = []
    if isinstance(request, dict):
        for name, value in request.items():
            if name in ("Key", "Item") and isinstance(value, dict) and "job_id" in value:
                found.append(value["job_id"]["S"])
            else:
                found += _keys(value)
    elif isinstance(request, list):
        for value in request:
            found += _keys(value)
    return found


def _places(request: dict[str, Any]) -> set[str]:
    """Return the items of a transaction."""
    found = set()
    for each in request["TransactItems"]:
        [body] = each.values()
        item = body.get("Key") or body["Item"]
        key = {name: item[name] for name in ("job_id", "pk", "sk") if name in item}
        found.add(json.dumps([body["TableName"], key], sort_keys=True))
    return found


def _conflicting(request: Message) -> Message:
    count = len(json.loads(request[2])["TransactItems"])
    reasons = [{"Code": "TransactionConflict"}] + [{"Code": "None"}] * (count - 1)
    return _error("TransactionCanceledException", "conflict", CancellationReasons=reasons)


# The subset of HTTP that is used here


async def _read(reader: asyncio.StreamReader) -> Message:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        del headers["transfer-encoding"]
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return first, headers, body


def _written(message: Message) -> bytes:
    first, headers, body = message
    kept = {name: value for name, value in headers.items() if name not in ("content-length", "x-amz-crc32")}
    kept["content-length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in kept.items())
    return first + b"\r\n" + lines.encode("latin-1") + b"\r\n" + body


def _error(kind: str, message: str, *, status: bytes = b"400 Bad Request", **more: Any) -> Message:
    body = json.dumps({"__type": _TYPE + kind, "message": message, **more}).encode()
    return b"HTTP/1.1 " + status, {"content-type": "application/x-amz-json-1.0"}, body
