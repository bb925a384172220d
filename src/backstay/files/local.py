"""The files port, and files of jobs in a local folder.

In the folder: <root>/<job_id>/job.log and <root>/<job_id>/<attempt>/<name>. Each attempt has a folder of its own, so
that a run that lost its claim cannot touch what another recorded. Content may be bytes, text, a path, an open file or
an iterable of pieces; only one piece is in memory at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from backstay import posix
from backstay.errors import ClaimLost, ConfigurationError, InvalidOption, StoreError
from backstay.limits import ARTIFACT_BYTES_MAX, MIB

Bytes = bytes | bytearray | memoryview
Content = Bytes | Iterable[Bytes]  # content that the files port accepts
Source = str | os.PathLike[str] | BinaryIO | Content  # content that a handler may pass …
AsyncSource = Source | AsyncIterable[Bytes]  # … and an `async def` handler

PIECE_BYTES = MIB  # read at a time from a file


def content_of(name: str, source: Source) -> Content:
    """Return the content in pieces. A str is content, not a file name: a path must be a Path."""
    match source:
        case str():
            return source.encode()
        case bytes() | bytearray() | memoryview():
            return source
        case os.PathLike():
            return _file(Path(source))
    if hasattr(source, "read"):
        return _pieces(name, iter(lambda: source.read(PIECE_BYTES) or None, None))
    if isinstance(source, Iterable):
        return _pieces(name, source)
    raise InvalidOption(
        f"artifact {name!r}: give bytes, a string, a Path, a file opened for reading bytes, or an iterable of"
        f" bytes, not {type(source).__name__}"
    )


async def kept_in_thread(keep: Callable[[str, Content], str], name: str, source: AsyncSource) -> str:
    """Call a blocking function with a file in a thread; async pieces are produced on the current event loop."""
    stopped = threading.Event()
    if isinstance(source, AsyncIterable):
        content: Content = _pieces(name, _made_on(asyncio.get_running_loop(), aiter(source)))
    else:
        content = content_of(name, source)
    try:
        return await asyncio.to_thread(keep, name, watched(content, stopped.is_set))
    except asyncio.CancelledError:
        stopped.set()  # the thread must not continue for a cancelled caller
        raise


def watched(content: Content, stopped: Callable[[], bool]) -> Content:
    """Yield pieces as long as they are wanted: an upload may take longer than the claim lasts."""
    if isinstance(content, Bytes):
        return content
    return until(content, stopped)


def until(content: Content, stopped: Callable[[], bool]) -> Iterator[Bytes]:
    """Yield the pieces, and check once more after the last one, so that a file of a lost claim is not stored."""
    for piece in (content,) if isinstance(content, Bytes) else content:
        if stopped():
            break
        yield piece
    if stopped():
        raise ClaimLost("this run was stopped or ended while writing a file: the file was discarded")


def _file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def _pieces(name: str, pieces: Iterable[Any]) -> Iterator[Bytes]:
    for piece in pieces:
        if not isinstance(piece, Bytes):
            raise InvalidOption(
                f'artifact {name!r}: its pieces are {type(piece).__name__}, not bytes (open files "rb")'
            )
        yield piece


def _made_on(loop: asyncio.AbstractEventLoop, source: AsyncIterator[Bytes]) -> Iterator[Bytes]:
    async def one() -> Bytes | None:
        return await anext(source, None)

    while (piece := asyncio.run_coroutine_threadsafe(one(), loop).result()) is not None:
        yield piece


def in_pieces(content: Content, size: int) -> Iterator[bytes]:
    """Yield pieces of exactly this size; the last is always shorter, and may be empty."""
    if isinstance(content, Bytes):
        whole = memoryview(content).cast("B")
        for start in range(0, len(whole) + 1, size):
            yield bytes(whole[start : start + size])
        return
    kept = bytearray()
    for piece in content:
        view = memoryview(piece).cast("B")
        while view:
            taken = view[: size - len(kept)]
            kept += taken
            view = view[len(taken) :]
            if len(kept) == size:
                yield bytes(kept)
                kept.clear()
    yield bytes(kept)


class Tally:
    """Computes the hash and size of the pieces that pass through."""

    def __init__(self, name: str, size_max: int, instead: str = "") -> None:
        self.size = 0
        self._sum = hashlib.sha256()
        self._name = name
        self._size_max = size_max
        self._instead = instead  # where to put a larger file

    def add(self, piece: Bytes) -> None:
        self.size += memoryview(piece).nbytes
        if self.size > self._size_max:
            raise StoreError(
                f"{self._name} has more than the {self._size_max:,} bytes that can be stored here{self._instead}"
            )
        self._sum.update(piece)

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()


def checked(uri: str, size: int, sha256: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a file and check its hash: StoreError replaces the last piece if the content is not what was
    stored."""
    tally = Tally(uri, size)
    for piece in pieces:
        try:
            tally.add(piece)
        except StoreError:
            break
        if tally.size == size:
            break
        yield piece
    else:
        piece = b""
    if tally.size != size or tally.sha256 != sha256:
        raise StoreError(f"{uri} is not what was stored: its hash differs")
    if piece:
        yield piece


log = logging.getLogger("backstay")


class StoredFile(msgspec.Struct, frozen=True):
    uri: str
    sha256: str
    size: int
    name: str = ""


LOG_FILE = "job.log"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def check_name(name: str) -> str:
    """Check that this is a plain file name, which can neither leave the job's folder nor be hidden in it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(f"artifact name {name!r:.80}: use 1 to 128 of A-Z a-z 0-9 . _ - and no leading dot")
    return name


class Files(Protocol):
    """The port for files. Every method blocks, and may be called from any thread, including that of the event loop."""

    size_max: int  # maximum size of a file in bytes
    instead: str = ""  # where to put a larger file

    def uri(self, job_id: str, name: str) -> str:
        """Return the location of a file of the job, whether it exists or not."""
        ...

    def write(self, job_id: str, attempt: int, name: str, content: Content) -> StoredFile:
        """Write a file as a whole or not at all: a reader never sees half a file. Only one piece is in memory at a
        time."""
        ...

    def append(self, job_id: str, name: str, content: bytes, size_max: int) -> None:
        """Append to a file up to its limit; the rest is dropped."""
        ...

    def stream(self, file: StoredFile) -> Iterator[bytes]:
        """Yield a file in pieces; StoreError replaces the last one if the content is not what was stored."""
        ...

    def read(self, file: StoredFile) -> bytes:
        """Read a whole file and check it against its stored hash."""
        return b"".join(self.stream(file))

    def part(self, file: StoredFile, start: int, size: int) -> bytes:
        """Read part of a file, without a check: the hash is that of the whole file."""
        ...

    def read_part(self, job_id: str, name: str, start: int, size_max: int) -> bytes | None:
        """Read a piece of a growing file, such as a log: empty at its end, None if there is no such file."""
        ...

    def remove(self, job_ids: Sequence[str]) -> list[str]:
        """Remove all files of these jobs; return the jobs that have none left. For the others, the reason is logged."""
        ...

    def look(self) -> str:
        """Return the location of the files; raise StoreError if files cannot be stored there."""
        ...

    def close(self) -> None:
        """Release connections and threads; the files stay."""
        ...


def parts(files: Files, file: StoredFile, start: int, stop: int) -> Iterator[bytes]:
    """Yield a range of a file in pieces; StoreError if the file no longer has it."""
    while start < stop:
        piece = files.part(file, start, min(PIECE_BYTES, stop - start))
        if not piece:
            raise StoreError(f"{file.uri} is not what was stored: it is too short")
        yield piece
        start += len(piece)


def read_result(files: Files, artifact: str | None) -> str | None:
    """Read a large result from its file; None if the result is in the record."""
    return None if artifact is None else files.read(msgspec.json.decode(artifact, type=StoredFile)).decode()


class LocalFiles(Files):
    """Files in a folder: the one next to the database, or the one given."""

    size_max = ARTIFACT_BYTES_MAX

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()

    @classmethod
    def at(cls, uri: str, *, several_hosts: bool = False) -> LocalFiles:
        """Return the files of a store. If workers can be on several hosts, the user must name a folder that all of them
        share."""
        parts = urlsplit(uri)
        if parts.scheme != "file" or parts.netloc or not parts.path or parts.query not in ("", "shared=true"):
            raise ConfigurationError(f"artifacts={uri!r:.100}: write file:///path/to/folder or s3://bucket/prefix")
        if several_hosts and not parts.query:
            raise ConfigurationError(
                f"artifacts={uri!r}: workers on other hosts have their own folders; write {uri}?shared=true"
                " if all of them mount this one, or leave it out to keep files in the database"
            )
        return cls(unquote(parts.path))

    def path(self, job_id: str, name: str) -> Path:
        return self.root / job_id / name

    def uri(self, job_id: str, name: str) -> str:
        return self.path(job_id, name).as_uri()

    def write(self, job_id: str, attempt: int, name: str, content: Content) -> StoredFile:
        path = self._folder(job_id, str(attempt)) / name
        draft = path.with_name(f".{name}.{os.getpid()}.{threading.get_ident()}.draft")  # two runs may write it at once
        tally = Tally(name, self.size_max)
        descriptor = os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | posix.BINARY, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in in_pieces(content, PIECE_BYTES):
                    tally.add(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return StoredFile(path.as_uri(), tally.sha256, tally.size, name)

    def append(self, job_id: str, name: str, content: bytes, size_max: int) -> None:
        descriptor = os.open(self._folder(job_id) / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND | posix.BINARY, 0o600)
        try:
            if os.fstat(descriptor).st_size < size_max:
                os.write(descriptor, content)
        finally:
            os.close(descriptor)

    def stream(self, file: StoredFile) -> Iterator[bytes]:
        return checked(file.uri, file.size, file.sha256, self._pieces(file.uri))

    def _pieces(self, uri: str) -> Iterator[bytes]:
        try:
            with _place(uri).open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except OSError as error:
            raise _unreadable(uri, error) from None

    def part(self, file: StoredFile, start: int, size: int) -> bytes:
        try:
            with _place(file.uri).open("rb") as stored:
                stored.seek(start)
                return stored.read(size)
        except OSError as error:
            raise _unreadable(file.uri, error) from None

    def read_part(self, job_id: str, name: str, start: int, size_max: int) -> bytes | None:
        try:
            with self.path(job_id, name).open("rb") as file:
                file.seek(start)
                return file.read(size_max)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.uri(job_id, name)} cannot be read: {error.strerror}") from None

    def remove(self, job_ids: Sequence[str]) -> list[str]:
        return [job_id for job_id in job_ids if self._removed(job_id)]

    def _removed(self, job_id: str) -> bool:
        folder = self.root / job_id
        try:
            if folder.is_dir():
                shutil.rmtree(folder)
        except OSError as error:
            log.warning("could not remove the files of job %s: %s", job_id, error)
            return False
        return True

    def look(self) -> str:
        there = next(each for each in (self.root, *self.root.parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise StoreError(f"{self.root} is not writable: give this user write permission, or choose another folder")
        return f"in {self.root}"

    def close(self) -> None: ...

    def _folder(self, *parts: str) -> Path:
        folder = self.root.joinpath(*parts)
        if not folder.is_dir():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for depth in range(1, len(parts) + 1):
                self.root.joinpath(*parts[:depth]).mkdir(mode=0o700, exist_ok=True)
        return folder


def _place(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def _unreadable(uri: str, error: OSError) -> StoreError:
    return StoreError(f"{uri} cannot be read ({error.strerror}): was the folder next to the database deleted?")
