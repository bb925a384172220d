"""Files of jobs in the tables themselves, where no bucket was named: any worker writes them, any reader finds them.

The port blocks, and may be asked from the app's own event loop; requests live on an event loop. So there is one of its
own here, in a thread, started at the first use.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import ForkedStore, NotOpen, StoreBusy, StoreError, StoreUnavailable
from holdfast.files import StoredFile
from holdfast.limits import LEASE_SECONDS
from holdfast.stores.dynamodb import filing
from holdfast.stores.dynamodb.address import Address
from holdfast.stores.dynamodb.table import Tables
from holdfast.stores.dynamodb.wire import Wire

T = TypeVar("T")
CONNECTIONS = 8
WRITE_SECONDS = LEASE_SECONDS  # how long a write waits for a service that is away: then the claim is lost, too
AGAIN_SECONDS = 0.5


class TableFiles:
    def __init__(self, address: Address) -> None:
        self._address = msgspec.structs.replace(address, pool=CONNECTIONS)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._closed = False

    def uri(self, job_id: str, name: str) -> str:
        return f"holdfast:///{job_id}/{name}"

    def write(self, job_id: str, attempt: int, name: str, content: bytes) -> StoredFile:
        self._ask(lambda tables: filing.write(tables, job_id, attempt, name, content), patience=WRITE_SECONDS)
        uri = self.uri(job_id, f"{attempt}/{name}")
        return StoredFile(uri, hashlib.sha256(content).hexdigest(), len(content), name)

    def append(self, job_id: str, name: str, content: bytes, size_max: int) -> None:
        self._ask(lambda tables: filing.append(tables, job_id, name, content, size_max))

    def read(self, file: StoredFile) -> bytes:
        job_id, attempt, name = _place(file.uri)
        content = self._ask(lambda tables: filing.read(tables, job_id, attempt, name, 0, None))
        if content is None:
            raise StoreError(f"{file.uri} is gone: the job that it belonged to was removed")
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise StoreError(f"{file.uri} is not what was stored: its hash differs")
        return content

    def read_part(self, job_id: str, name: str, start: int, size_max: int) -> bytes | None:
        return self._ask(lambda tables: filing.read(tables, job_id, filing.OF_THE_JOB, name, start, size_max))

    def remove(self, job_ids: Sequence[str]) -> list[str]:
        self._ask(lambda tables: filing.remove(tables, job_ids))
        return list(job_ids)

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            server, self._server, self._closed = self._server, None, True
        if server is not None:
            server.stop()

    def _ask(self, verb: Callable[[Tables], Awaitable[T]], *, patience: float = 0.0) -> T:
        if os.getpid() != self._pid:
            raise ForkedStore("this app was opened before fork(): open it anew in the child process")
        with self._lock:
            if self._closed:
                raise NotOpen("the app is not open any more: read files inside `async with app:`")
            if self._server is None:
                self._server = _Server(self._address)
            answer = self._server.run(verb, patience)
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise NotOpen("the app was closed before its files were read or written") from None


class _Server:
    """An event loop in a thread; what is still under way when it is stopped is cancelled."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="holdfast-files", daemon=True)
        self._thread.start()
        self._loop = self._started.result()

    async def _serve(self) -> None:
        where = self._address
        self._tables = Tables(Wire(where), where.tables, shards=where.shards, shown=where.shown)
        self._stopping = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        await self._stopping.wait()
        await self._tables.wire.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def run(self, verb: Callable[[Tables], Awaitable[T]], patience: float) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(self._run(verb, patience), self._loop)

    async def _run(self, verb: Callable[[Tables], Awaitable[T]], patience: float) -> T:
        deadline = self._loop.time() + patience
        while True:
            try:
                return await verb(self._tables)
            except (StoreUnavailable, StoreBusy):
                if self._loop.time() > deadline:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)


def _place(uri: str) -> tuple[str, int, str]:
    parts = urlsplit(uri)
    match parts.path.split("/"):
        case ["", job_id, attempt, name] if parts.scheme == "holdfast" and attempt.isdigit():
            return job_id, int(attempt), name
        case _:
            raise StoreError(f"{uri} is not in the tables: open the app with the artifacts= that it was written with")
