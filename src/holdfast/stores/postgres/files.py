"""Files of jobs in the database itself: any worker writes them and any reader finds them, on whatever host.

The port blocks, and may be asked from the app's own event loop (`job.result`); the driver lives on an event loop. So
there is one of its own here, in a thread with two connections, started at the first use.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import hashlib
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import ForkedStore, NotOpen, StoreError, StoreUnavailable
from holdfast.files import StoredFile
from holdfast.limits import LEASE_SECONDS
from holdfast.stores.postgres import filing
from holdfast.stores.postgres.address import parse
from holdfast.stores.postgres.session import Session
from holdfast.stores.postgres.tx import Tx

T = TypeVar("T")
CONNECTIONS = 2  # a large file must not hold up the logs
WRITE_SECONDS = LEASE_SECONDS  # how long a write waits for a server that is away: then the claim is lost, too
RECONNECT_SECONDS = 0.5


class DatabaseFiles:
    def __init__(self, url: str) -> None:
        self._address = msgspec.structs.replace(parse(url), pool=CONNECTIONS)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._closed = False
        self._unsure: dict[
            tuple[str, str], tuple[bytes, str]
        ] = {}  # appends of which the answer was lost, with their ids

    def uri(self, job_id: str, name: str) -> str:
        return f"holdfast:///{job_id}/{name}"

    def write(self, job_id: str, attempt: int, name: str, content: bytes) -> StoredFile:
        verb = functools.partial(filing.write, job_id=job_id, attempt=attempt, name=name, content=content)
        self._ask(verb, transaction=True, patience=WRITE_SECONDS)
        return StoredFile(
            self.uri(job_id, f"{attempt}/{name}"), hashlib.sha256(content).hexdigest(), len(content), name
        )

    def append(self, job_id: str, name: str, content: bytes, size_max: int) -> None:
        # The same again after an outage is the same append: its first try may have been applied.
        before = self._unsure.pop((job_id, name), None)
        append_id = before[1] if before is not None and before[0] == content else str(uuid.uuid4())
        try:
            self._ask(lambda tx: filing.append(tx, job_id, name, content, size_max, append_id))
        except StoreUnavailable:
            self._unsure[job_id, name] = content, append_id
            raise

    def read(self, file: StoredFile) -> bytes:
        job_id, attempt, name = _place(file.uri)
        content = self._ask(lambda tx: filing.read(tx, job_id, attempt, name, 0, None))
        if content is None:
            raise StoreError(f"{file.uri} is gone: the job that it belonged to was removed")
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise StoreError(f"{file.uri} is not what was stored: its hash differs")
        return content

    def read_part(self, job_id: str, name: str, start: int, size_max: int) -> bytes | None:
        return self._ask(lambda tx: filing.read(tx, job_id, filing.OF_THE_JOB, name, start, size_max))

    def remove(self, job_ids: Sequence[str]) -> list[str]:
        self._ask(lambda tx: filing.remove(tx, job_ids))
        return list(job_ids)

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            server, self._server, self._closed = self._server, None, True
        if server is not None:
            server.stop()

    def _ask(self, verb: Callable[[Tx], Awaitable[T]], *, transaction: bool = False, patience: float = 0.0) -> T:
        if os.getpid() != self._pid:
            raise ForkedStore("this app was opened before fork(): open it anew in the child process")
        with self._lock:
            if self._closed:
                raise NotOpen("the app is not open any more: read files inside `async with app:`")
            if self._server is None:
                self._server = _Server(Session(self._address))
            answer = self._server.run(verb, transaction, patience)
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise NotOpen("the app was closed before its files were read or written") from None


class _Server:
    """An event loop in a thread; what is still under way when it is stopped is cancelled."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="holdfast-files", daemon=True)
        self._thread.start()
        self._loop = self._started.result()

    async def _serve(self) -> None:
        self._opening = asyncio.Lock()
        self._opened = False
        self._stopping = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        await self._stopping.wait()
        await self._session.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def run(
        self, verb: Callable[[Tx], Awaitable[T]], transaction: bool, patience: float
    ) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(self._run(verb, transaction, patience), self._loop)

    async def _run(self, verb: Callable[[Tx], Awaitable[T]], transaction: bool, patience: float) -> T:
        deadline = self._loop.time() + patience
        while True:
            try:
                await self._open()
                return (await self._session.run(lambda tx, _: verb(tx), transaction=transaction, name="file"))[0]
            except StoreUnavailable:
                if self._loop.time() > deadline:
                    raise
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _open(self) -> None:
        async with self._opening:
            if not self._opened:
                await self._session.open()
                self._opened = True


def _place(uri: str) -> tuple[str, int, str]:
    parts = urlsplit(uri)
    match parts.path.split("/"):
        case ["", job_id, attempt, name] if parts.scheme == "holdfast" and attempt.isdigit():
            return job_id, int(attempt), name
        case _:
            raise StoreError(f"{uri} is not in the database: open the app with the artifacts= that it was written with")
