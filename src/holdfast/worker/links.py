"""The child side of the pipe: how a context in a child process reaches the worker."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any, cast

import msgspec

from holdfast import codec, errors
from holdfast.contents import PIECE_BYTES, AsyncSource, Bytes, Content, Source, content_of, kept_in_thread
from holdfast.effects import packed, unpacked
from holdfast.errors import StoreError
from holdfast.handlers import Handler
from holdfast.lifecycle import Effect
from holdfast.offspring import Ended, Submitted
from holdfast.store.tables import ResultTable, RowOrigin, RowPage, RowQuery, StoredRow, Value
from holdfast.store.types import ClaimedJob, JobRecord, Page
from holdfast.submission import SubmitOptions
from holdfast.trees import Awaits
from holdfast.worker.spool import spooled


class Pipe:
    """The way to the parent, shared by the job's thread and the thread that listens."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._answers: list[Any] = []
        self._answered = threading.Condition()
        self._requests: list[ClaimedJob | list[ClaimedJob] | None] = []
        self._stopped = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                kind, value = codec.decode(self._pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)  # the parent is gone; so is the claim
            with self._answered:
                match kind:
                    case "job":
                        self._stopped = False
                        self._requests.append(msgspec.convert(value, ClaimedJob))
                    case "batch":
                        self._stopped = False
                        self._requests.append(msgspec.convert(value, list[ClaimedJob]))
                    case "answer":
                        self._answers.append(value)
                    case "stop":
                        self._stopped = True
                    case _:
                        self._requests.append(None)
                self._answered.notify_all()

    def next_request(self) -> ClaimedJob | list[ClaimedJob] | None:
        with self._answered:
            self._answered.wait_for(lambda: self._requests)
            return self._requests.pop(0)

    def send(self, *message: Any) -> None:
        with self._lock:
            self._pipe.send_bytes(codec.encode(message))

    def ask(self, *question: Any) -> Any:
        with self._asking:  # one question at a time, so that answers find their askers
            self.send(*question)
            with self._answered:
                self._answered.wait_for(lambda: self._answers)
                answer = self._answers.pop(0)
        if "error" in answer:
            raise _error(answer["type"], answer["error"])
        return answer["value"]

    def stopped(self) -> bool:
        return self._stopped

    def say_log(self, created: float, level: str, text: str, item: int | None = None) -> None:
        self.send("log", created, level, text, item)


class Link:
    """The channel of one job: its messages begin with its number."""

    def __init__(self, pipe: Pipe, job: ClaimedJob, number: int, handler: Handler) -> None:
        self.job = job
        self.join_of = handler.join_of
        self._pipe = pipe
        self._number = number

    def _ask(self, *question: Any) -> Any:
        return self._pipe.ask(self._number, *question)

    def progress(self, fraction: float, stage: str | None) -> None:
        self._pipe.send(self._number, "progress", float(fraction), stage)

    def metric(self, name: str, value: float) -> None:
        self._pipe.send(self._number, "metric", name, value)

    def cancelled(self) -> bool:
        return self._pipe.stopped()

    def effects(self, statements: list[Effect]) -> None:
        packed_up = [(statement, [packed(value) for value in values]) for statement, values in statements]
        self._pipe.send(self._number, "effects", packed_up)

    def refuse_rows(self, reason: str) -> None:
        self._pipe.send(self._number, "refuse_rows", reason)

    def artifact(self, name: str, source: Source) -> str:
        return self.keep(name, content_of(name, source))

    def keep(self, name: str, content: Content) -> str:
        if isinstance(content, Bytes) and memoryview(content).nbytes <= PIECE_BYTES:
            return str(self._ask("artifact", name, base64.b64encode(content).decode()))
        with spooled(content) as path:
            return str(self._ask("artifact_file", name, path))

    def step(self, name: str) -> str | None:
        return None if (answer := self._ask("step", name)) is None else str(answer)

    def record_step(self, name: str, answer: str) -> bool:
        return bool(self._ask("record_step", name, answer))

    # Children

    def loaded_children(self) -> list[JobRecord]:
        return msgspec.convert(self._ask("loaded_children"), list[JobRecord])

    def large_result(self, record: JobRecord) -> str | None:
        return cast("str | None", self._ask("large_result", record.job_id))

    def submit(
        self, job_type: str | Handler, payload: Any, key: str | None, at_once: bool, options: SubmitOptions
    ) -> Submitted:
        name, text = (
            (job_type.name, job_type.encode(payload))
            if isinstance(job_type, Handler)
            else (job_type, codec.to_json(payload))
        )
        return msgspec.convert(self._ask("submit", name, text, key, at_once, packed_options(options)), Submitted)

    def children(self, after: str | None, named: int = 0) -> Page:
        return msgspec.convert(self._ask("children", after, named), Page)

    def ended(self, awaits: Awaits) -> Ended | None:
        return msgspec.convert(self._ask("ended", str(awaits)), Ended | None)

    def upstream(self) -> list[JobRecord]:
        return msgspec.convert(self._ask("upstream"), list[JobRecord])

    # Result tables

    def put_rows(self, table: ResultTable, rows: Sequence[tuple[Value, ...]]) -> None:
        self._ask("put_rows", table, [[packed(value) for value in row] for row in rows])

    def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        plain = msgspec.structs.replace(ask, key=None, after=None)
        return _page(self._ask("rows", table, plain, packed(ask.key), packed(ask.after)))

    def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return _page(self._ask("rows_by_subject", table, subject, after, limit))

    def latest(self, subject: str, job_type: str) -> str | None:
        return cast("str | None", self._ask("latest", subject, job_type))


class AsyncLink:
    """For `async def` handlers in a process: what waits does so in a thread."""

    def __init__(self, link: Link) -> None:
        self.job = link.job
        self.progress = link.progress
        self.metric = link.metric
        self.cancelled = link.cancelled
        self.effects = link.effects
        self.refuse_rows = link.refuse_rows
        self.join_of = link.join_of
        self.loaded_children = link.loaded_children
        self.large_result = link.large_result
        self._link = link

    async def step(self, name: str) -> str | None:
        return await asyncio.to_thread(self._link.step, name)

    async def record_step(self, name: str, answer: str) -> bool:
        return await asyncio.to_thread(self._link.record_step, name, answer)

    async def artifact(self, name: str, source: AsyncSource) -> str:
        return await kept_in_thread(self._link.keep, name, source)

    async def submit(
        self, job_type: str | Handler, payload: Any, key: str | None, at_once: bool, options: SubmitOptions
    ) -> Submitted:
        return await asyncio.to_thread(self._link.submit, job_type, payload, key, at_once, options)

    async def children(self, after: str | None, named: int = 0) -> Page:
        return await asyncio.to_thread(self._link.children, after, named)

    async def ended(self, awaits: Awaits) -> Ended | None:
        return await asyncio.to_thread(self._link.ended, awaits)

    async def upstream(self) -> list[JobRecord]:
        return await asyncio.to_thread(self._link.upstream)

    async def put_rows(self, table: ResultTable, rows: Sequence[tuple[Value, ...]]) -> None:
        await asyncio.to_thread(self._link.put_rows, table, rows)

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await asyncio.to_thread(self._link.rows, table, ask)

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await asyncio.to_thread(self._link.rows_by_subject, table, subject, after, limit)

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await asyncio.to_thread(self._link.latest, subject, job_type)


def packed_options(options: SubmitOptions) -> dict[str, Any]:
    """Options of a child as they cross a pipe: jobs as their ids, times as what they are."""
    plain: dict[str, Any] = {}
    for name, value in options.items():
        if name == "depends_on":
            refs = [value] if isinstance(value, str) or hasattr(value, "job_id") else list(cast("Iterable[Any]", value))
            value = [ref if isinstance(ref, str) else ref.job_id for ref in refs]
        elif name == "tags" and not isinstance(value, str):
            value = list(cast("Iterable[Any]", value))
        plain[name] = packed(value)
    return plain


def _page(answer: Any) -> RowPage:
    """Rows with what is no JSON in them as it was."""
    return RowPage(
        tuple(_stored(row) for row in answer["items"]),
        answer["attempt"],
        unpacked(answer["next"]),  # type: ignore[arg-type]
    )


def _stored(row: Any) -> StoredRow:
    values = tuple(map(unpacked, row["values"]))
    return StoredRow(row["job_id"], row["created_at"], RowOrigin(**row["origin"]), values)  # type: ignore[arg-type]


def _error(kind: str, message: str) -> Exception:
    """As the parent raised it, as far as that is one of ours."""
    known = getattr(errors, kind, StoreError)
    try:
        return cast(Exception, known(message))
    except TypeError:
        return StoreError(message)
