"""Celery's queues on a Redis broker, and its results in a Redis backend.

    backstay import celery redis://host:6379/0

A message has no time of its own, so all get the same `created_at`, in the order of their queue: the day on which the
command runs, or that of `?at=`. A message that a worker has taken is in the hash `unacked` until the worker
acknowledges it, which is when it starts unless the task has `acks_late`. Such messages are imported too: by then the
workers have been stopped.

A result has the task's name and arguments only if the application sets `result_extended`. Without, it is of the type
`celery.unnamed`.
"""

from __future__ import annotations

import zlib
from base64 import b64decode
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from backstay import codec
from backstay.clock import Instant
from backstay.core.states import Status
from backstay.errors import ConfigurationError, InvalidPayload
from backstay.imports.pickles import read_pickle
from backstay.imports.redis_reader import Command, RedisReader
from backstay.imports.source import (
    Row,
    Unmappable,
    Unmapped,
    Work,
    document,
    known,
    moment,
    named,
    read,
    required,
    text,
    whole,
)
from backstay.limits import IMPORT_PAGE, RESULT_BYTES_MAX

_ENDED = {"SUCCESS": Status.COMPLETED, "FAILURE": Status.FAILED, "REVOKED": Status.CANCELLED}
_META = "celery-task-meta-"
_BINDING = "_kombu.binding."
_BETWEEN = "\x06\x16"  # the parts of a binding, and a queue and its priority
_PRIORITIES = range(10)  # 0 is the first to be taken
_OWN = (".pidbox", "celeryev")  # queues between workers
UNNAMED = "celery.unnamed"
NO_ID = "?"  # of a message that cannot be read
_FOREIGN = "it is not a message of Celery's protocol 2"
TAKEN = "a worker had taken it and not acknowledged it"
_NEXT = {"callbacks": "a link", "errbacks": "a link_error", "chain": "a chain", "chord": "a chord"}
_TYPED = {"__type__", "__value__"}  # how kombu writes a time, a UUID or a Decimal in JSON


class Celery:
    has_dependencies = False

    def __init__(self, address: str) -> None:
        self._redis = RedisReader(address, "a broker of Celery", prefix="", queues="", results="", at="")
        self.location = self._redis.location
        options = self._redis.options
        self._prefix = options["prefix"]
        self._unacked = f"{self._prefix}unacked"
        self._named = [each for each in options["queues"].split(",") if each]
        self._backend = self._redis
        if options["results"]:
            self._backend = RedisReader(options["results"], "a result backend of Celery")
        self._base: Instant = 0
        self._has_unnamed = False

    async def open(self) -> None:
        await self._redis.open()
        if self._backend is not self._redis:
            await self._backend.open()
        now, _ = await self._redis.ask("TIME")
        day = self._redis.options["at"] or datetime.fromtimestamp(int(now), UTC).date().isoformat()
        try:
            self._base = moment(day, "at") or 0
        except Unmappable as error:
            raise ConfigurationError(str(error)) from None
        if not (await self._lists() or await self._redis.ask("HLEN", self._unacked) or await self._any_result()):
            raise ConfigurationError(
                f"{self.location} has no messages or results of Celery: name the queues in the address, ?queues=a,b"
            )

    async def close(self) -> None:
        await self._redis.close()
        if self._backend is not self._redis:
            await self._backend.close()

    async def count(self) -> int:
        lengths: list[Command] = [("LLEN", each) for each, _ in await self._lists()]
        waiting = sum(await self._redis.ask_all(lengths)) if lengths else 0
        results = 0
        async for keys in self._backend.keys(_META):
            results += len(keys)
        return int(waiting) + int(await self._redis.ask("HLEN", self._unacked)) + results

    async def pages(self) -> AsyncIterator[list[Row]]:
        """Read what waits, then what workers have taken, then what has ended. A task that was delivered again waits."""
        seen: set[str] = set()
        place = 0
        for name, queue in await self._lists():
            # The oldest is at the end of the list. New ones come in at its beginning, and would move the others along.
            end = int(await self._redis.ask("LLEN", name))
            for last in range(0, end, IMPORT_PAGE):
                found = await self._redis.ask("LRANGE", name, -last - IMPORT_PAGE, -last - 1)
                rows = []
                for raw in reversed(found):
                    place += 1
                    rows.append(self._message(raw, queue, place))
                yield _unseen(rows, seen)
        async for taken in self._taken():
            yield _unseen([self._message(raw, None, 0, TAKEN) for raw in taken], seen)
        async for keys in self._backend.keys(_META):
            commands: list[Command] = [("GET", key) for key in keys]
            answers = await self._backend.ask_all(commands) if commands else []
            ended = zip(keys, answers, strict=True)
            yield _unseen([self._result(key.removeprefix(_META), raw) for key, raw in ended if raw is not None], seen)

    def notes(self) -> list[str]:
        found = ["a message has no time: created_at is the day of the import, or ?at=DAY in the address"]
        if self._has_unnamed:
            found.append(f"results without the name of their task are imported as {UNNAMED}: --rename {UNNAMED}=TYPE")
        return found

    async def _lists(self) -> list[tuple[str, str]]:
        """Return the keys of all queues that have messages, the first in priority first, each with its queue."""
        queues = set(self._named)
        if not self._named:
            async for keys in self._redis.keys(f"{self._prefix}{_BINDING}"):
                for key in keys:
                    for binding in await self._redis.ask("SMEMBERS", key):
                        queues.add(binding.decode("utf-8", "replace").split(_BETWEEN)[-1])
            queues.add("celery")
        wanted = sorted(queue for queue in queues if not queue.endswith(_OWN[0]) and not queue.startswith(_OWN[1]))
        keys_of = [
            (f"{self._prefix}{queue}{f'{_BETWEEN}{priority}' if priority else ''}", queue)
            for priority in _PRIORITIES
            for queue in wanted
        ]
        commands: list[Command] = [("LLEN", key) for key, _ in keys_of]
        lengths = await self._redis.ask_all(commands)
        return [pair for pair, length in zip(keys_of, lengths, strict=True) if length]

    async def _taken(self) -> AsyncIterator[list[bytes]]:
        cursor = "0"
        while True:
            after, found = await self._redis.ask("HSCAN", self._unacked, cursor, "COUNT", IMPORT_PAGE)
            yield found[1::2]
            cursor = after.decode()
            if cursor == "0":
                return

    async def _any_result(self) -> bool:
        async for keys in self._backend.keys(_META):
            if keys:
                return True
        return False

    def _message(self, raw: bytes, queue: str | None, place: int, note: str = "") -> Row:
        try:
            message = codec.from_json(raw, "message")
            if queue is None:
                message, _, queue = message
        except (InvalidPayload, ValueError, TypeError):
            return Unmapped(source_id=NO_ID, state="waiting", reason=_FOREIGN)
        origin: str = queue
        return read(_id_of(message), "waiting", lambda: self._work(message, origin, self._base + place, note))

    def _work(self, message: dict[str, Any], queue: str, created_at: Instant, note: str) -> Work:
        if _id_of(message) == NO_ID or "task" not in message["headers"]:
            raise Unmappable(_FOREIGN)
        headers, properties = message["headers"], message["properties"]
        args, kwargs, embedded = _body(message)
        if follows := [said for name, said in _NEXT.items() if (embedded or {}).get(name)]:
            raise Unmappable(f"it has {follows[0]}, which only Celery continues: let it finish there")
        if headers.get("expires"):
            raise Unmappable("it expires, which jobs here do not: let Celery run it, or remove it there")
        due_at = moment(headers.get("eta"), "eta")
        retries = whole(headers.get("retries"), "retries")
        limits = [each for each in headers.get("timelimit") or () if each]
        return Work(
            source_id=named(headers["id"], "id"),
            state="waiting" if due_at is None else "waiting for its eta",
            job_type=named(headers["task"], "task"),
            payload=_plain(kwargs),
            args=tuple(_plain(args)),
            status=Status.RETRYING if retries else Status.SCHEDULED if due_at else Status.PENDING,
            queue=queue,
            priority=50 - 5 * min(9, whole(properties.get("priority"), "priority")),
            created_at=created_at,
            due_at=due_at,
            attempt=retries,
            failures=retries,
            timeout_seconds=float(limits[0]) if limits else None,
            tags=(f"group:{headers['group']}",) if headers.get("group") else (),
            note=note,
        )

    def _result(self, task_id: str, raw: bytes) -> Row:
        try:
            said = (
                read_pickle(raw, "its result", exceptions=True) if raw[:1] == b"\x80" else document(raw, "its result")
            )
        except Unmappable as error:
            return Unmapped(source_id=task_id, state="", reason=str(error))
        state = said.get("status") if isinstance(said, dict) else None
        return read(task_id, state, lambda: self._ended(task_id, state, said))

    def _ended(self, task_id: str, state: Any, said: Any) -> Work:
        if state is None:
            raise Unmappable("its result is not one of Celery")
        if state not in _ENDED:
            raise Unmappable("it has not ended, and is in no queue: a worker runs it. Import again when it has ended")
        status = known(_ENDED, state)
        name = text(said.get("name"))
        self._has_unnamed |= name is None
        args, kwargs = said.get("args"), said.get("kwargs")
        ended_at = required(moment(said.get("date_done"), "date_done"), "date_done")
        attempt = 0 if status is Status.CANCELLED else 1 + whole(said.get("retries"), "retries")
        return Work(
            source_id=task_id,
            state=state,
            job_type=name or UNNAMED,
            payload=_plain(kwargs) if isinstance(kwargs, dict) else {},
            args=tuple(_plain(args)) if isinstance(args, list) else (),
            status=status,
            queue=text(said.get("queue")),
            created_at=ended_at,
            ended_at=ended_at,
            attempt=attempt,
            failures=attempt - 1 if status is Status.COMPLETED else attempt,
            result=_plain(said.get("result")) if status is Status.COMPLETED else None,
            error=_error(said) if status is not Status.COMPLETED else None,
            worker_id=text(said.get("worker")),
            tags=(f"group:{said['group_id']}",) if said.get("group_id") else (),
        )


def _unseen(rows: list[Row], seen: set[str]) -> list[Row]:
    """Return the rows of tasks that have not come up before."""
    fresh = []
    for row in rows:
        if row.source_id not in seen or row.source_id == NO_ID:
            seen.add(row.source_id)
            fresh.append(row)
    return fresh


def _id_of(message: Any) -> str:
    try:
        return str(message["headers"]["id"])
    except (TypeError, KeyError):
        return NO_ID


def _body(message: dict[str, Any]) -> tuple[list[Any], dict[str, Any], dict[str, Any] | None]:
    raw = message["body"].encode()
    if message["properties"].get("body_encoding") == "base64":
        raw = b64decode(raw)
    match message["headers"].get("compression"):
        case None:
            pass
        case "application/x-gzip":
            inflating = zlib.decompressobj()
            raw = inflating.decompress(raw, RESULT_BYTES_MAX)
        case other:
            raise Unmappable(f"it is compressed as {other}")
    match message["content-type"]:
        case "application/json":
            args, kwargs, embedded = document(raw, "its arguments")
        case "application/x-python-serialize":
            args, kwargs, embedded = read_pickle(raw, "its call")
        case other:
            raise Unmappable(f"its serializer, {other}, is neither json nor pickle: let Celery run it")
    return args, kwargs, embedded


def _plain(value: Any) -> Any:
    """Return what JSON says, with times, UUIDs and Decimals as their text."""
    match value:
        case {"__type__": _, "__value__": said} if value.keys() == _TYPED:
            return str(UUID(said["hex"])) if isinstance(said, dict) and "hex" in said else _plain(said)
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value


def _error(said: dict[str, Any]) -> str | None:
    if said.get("traceback"):
        return str(said["traceback"])
    failure = said.get("result")
    if not isinstance(failure, dict):
        return text(failure)
    message = failure.get("exc_message")
    parts = message if isinstance(message, list) else [message]
    return f"{failure.get('exc_type', 'Error')}: {' '.join(str(each) for each in parts)}"
