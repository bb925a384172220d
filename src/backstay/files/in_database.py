"""Files of jobs in the store itself, so that any worker writes them and any reader finds them, on every host.

The files port blocks, and may be called from the app's own event loop (`job.result`), while database drivers need an
event loop. So this module has its own, in a thread that starts at first use.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from backstay.errors import ForkedStore, NotOpen, StoreBusy, StoreError, StoreUnavailable
from backstay.files.local import Content, Files, StoredFile, Tally, checked, in_pieces
from backstay.limits import LEASE_SECONDS

T = TypeVar("T")
OF_THE_JOB = 0  # for files that belong to no attempt
WRITE_SECONDS = LEASE_SECONDS  # how long a write waits for an unavailable store: by then the claim is lost, too
AGAIN_SECONDS = 0.5


class Draft(msgspec.Struct, frozen=True):
    """A file that is being written. Two runs may write the same file at once: each has its own draft."""

    job_id: str
    attempt: int
    name: str
    made: str


class Filing(Protocol):
    """The methods that an engine implements; created, used and closed on one event loop. Every call is safe to
    repeat."""

    async def add(self, draft: Draft, start: int, piece: bytes) -> None:
        """Add a piece. No reader sees it before the last one is stored."""
        ...

    async def finish(self, draft: Draft, start: int, piece: bytes) -> None:
        """Add the last piece and publish the file."""
        ...

    async def drop(self, draft: Draft) -> None:
        """Remove a draft."""
        ...

    async def append(self, job_id: str, name: str, content: bytes, size_max: int, append_id: str) -> None:
        """Append once per id, even if the call is repeated."""
        ...

    async def read(self, job_id: str, attempt: int, name: str, start: int, size_max: int) -> bytes | None:
        """Read from an offset; None if there is no such file."""
        ...

    async def remove(self, job_ids: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


class RemoteFiles(Files):
    def __init__(self, make: Callable[[], Filing], *, piece_bytes: int, size_max: int, instead: str) -> None:
        self._make = make
        self._piece_bytes = piece_bytes
        self.size_max = size_max
        self.instead = instead
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._closed = False
        self._unsure: dict[tuple[str, str], tuple[bytes, str]] = {}  # appends whose response was lost, with their ids

    def uri(self, job_id: str, name: str) -> str:
        return f"backstay:///{job_id}/{name}"

    def write(self, job_id: str, attempt: int, name: str, content: Content) -> StoredFile:
        draft = Draft(job_id, attempt, name, uuid.uuid4().hex)
        tally = Tally(name, self.size_max, self.instead)
        try:
            for piece in in_pieces(content, self._piece_bytes):
                start = tally.size
                tally.add(piece)
                self._add(draft, start, piece)
        except BaseException:
            if tally.size >= self._piece_bytes:
                with contextlib.suppress(StoreError, NotOpen):  # what is left is removed with the job
                    self._ask(lambda filing: filing.drop(draft))
            raise
        return StoredFile(self.uri(job_id, f"{attempt}/{name}"), tally.sha256, tally.size, name)

    def _add(self, draft: Draft, start: int, piece: bytes) -> None:
        if len(piece) < self._piece_bytes:
            self._ask(lambda filing: filing.finish(draft, start, piece), patience=WRITE_SECONDS)
        else:
            self._ask(lambda filing: filing.add(draft, start, piece), patience=WRITE_SECONDS)

    def append(self, job_id: str, name: str, content: bytes, size_max: int) -> None:
        # The same content after an outage is the same append: its first try may have been applied.
        before = self._unsure.pop((job_id, name), None)
        append_id = before[1] if before is not None and before[0] == content else str(uuid.uuid4())
        try:
            self._ask(lambda filing: filing.append(job_id, name, content, size_max, append_id))
        except StoreUnavailable:
            self._unsure[job_id, name] = content, append_id
            raise

    def stream(self, file: StoredFile) -> Iterator[bytes]:
        return checked(file.uri, file.size, file.sha256, self._pieces(file))

    def _pieces(self, file: StoredFile) -> Iterator[bytes]:
        job_id, attempt, name = _place(file.uri)
        for start in range(0, max(1, file.size), self._piece_bytes):
            piece = self._part(job_id, attempt, name, start, self._piece_bytes)
            if piece is None:
                raise _gone(file)
            yield piece

    def part(self, file: StoredFile, start: int, size: int) -> bytes:
        job_id, attempt, name = _place(file.uri)
        found = b""
        while len(found) < size:
            piece = self._part(job_id, attempt, name, start + len(found), min(size - len(found), self._piece_bytes))
            if piece is None:
                raise _gone(file)
            if not piece:
                break
            found += piece
        return found

    def read_part(self, job_id: str, name: str, start: int, size_max: int) -> bytes | None:
        return self._part(job_id, OF_THE_JOB, name, start, size_max)

    def _part(self, job_id: str, attempt: int, name: str, start: int, size_max: int) -> bytes | None:
        return self._ask(lambda filing: filing.read(job_id, attempt, name, start, size_max), after_closing=True)

    def remove(self, job_ids: Sequence[str]) -> list[str]:
        self._ask(lambda filing: filing.remove(job_ids))
        return list(job_ids)

    def look(self) -> str:
        return "in the store itself"

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            server, self._server, self._closed = self._server, None, True
        if server is not None:
            server.stop()

    def _ask(self, verb: Callable[[Filing], Awaitable[T]], *, patience: float = 0.0, after_closing: bool = False) -> T:
        if os.getpid() != self._pid:
            raise ForkedStore("this app was opened before fork(): open it again in the child process")
        with self._lock:
            if self._closed and not after_closing:
                raise NotOpen("the app is no longer open: write files inside `async with app:`")
            # The result of a job can still be read after the app was closed, as with files in a folder.
            passing = self._closed
            server = self._server or _Server(self._make)
            self._server = None if passing else server
            answer = server.run(verb, patience)
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise NotOpen("the app was closed before its files were read or written") from None
        finally:
            if passing:
                server.stop()


class _Server:
    """An event loop in a thread; stopping it cancels what is under way."""

    def __init__(self, make: Callable[[], Filing]) -> None:
        self._make = make
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="backstay-files", daemon=True)
        self._thread.start()
        self._loop = self._started.result()

    async def _serve(self) -> None:
        self._filing = self._make()
        self._stopping = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        await self._stopping.wait()
        await self._filing.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def run(self, verb: Callable[[Filing], Awaitable[T]], patience: float) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(self._run(verb, patience), self._loop)

    async def _run(self, verb: Callable[[Filing], Awaitable[T]], patience: float) -> T:
        deadline = self._loop.time() + patience
        while True:
            try:
                return await verb(self._filing)
            except (StoreUnavailable, StoreBusy):
                if self._loop.time() > deadline:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)


def _gone(file: StoredFile) -> StoreError:
    return StoreError(f"{file.uri} is gone: its job was removed")


def _place(uri: str) -> tuple[str, int, str]:
    parts = urlsplit(uri)
    match parts.path.split("/"):
        case ["", job_id, attempt, name] if parts.scheme == "backstay" and attempt.isdigit():
            return job_id, int(attempt), name
        case _:
            raise StoreError(f"{uri} is not in this store: open the app with the artifacts= it was written with")
