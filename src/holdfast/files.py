"""Files that belong to jobs: full logs, large results, artifacts. The port, and a folder behind it.

In the folder: <root>/<job_id>/job.log and <root>/<job_id>/<attempt>/<name>. What an attempt writes has a place of its
own, so that a run which lost its claim cannot touch what another recorded.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.contents import PIECE_BYTES, Content, Tally, checked, in_pieces
from holdfast.errors import ConfigurationError, InvalidOption, StoreError
from holdfast.limits import ARTIFACT_BYTES_MAX

log = logging.getLogger("holdfast")


class StoredFile(msgspec.Struct, frozen=True):
    uri: str
    sha256: str
    size: int
    name: str = ""


LOG_FILE = "job.log"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def check_name(name: str) -> str:
    """A plain file name: nothing that could leave the job's folder, or hide in it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(f"artifact name {name!r:.80}: use 1 to 128 of A-Z a-z 0-9 . _ - and no leading dot")
    return name


class Files(Protocol):
    """Where files are kept. Every method blocks, and is called from any thread, that of the event loop included."""

    size_max: int  # bytes of the largest file that is kept
    instead: str = ""  # where a larger one belongs

    def uri(self, job_id: str, name: str) -> str:
        """Where a file of the job is, or would be."""
        ...

    def write(self, job_id: str, attempt: int, name: str, content: Content) -> StoredFile:
        """Whole or not at all: a reader never sees half a file. Never more than a piece of it is in memory."""
        ...

    def append(self, job_id: str, name: str, content: bytes, size_max: int) -> None:
        """Add to a file until it has reached its limit; what comes after is dropped."""
        ...

    def stream(self, file: StoredFile) -> Iterator[bytes]:
        """In pieces; StoreError instead of the last one where they are not what was stored."""
        ...

    def read(self, file: StoredFile) -> bytes:
        """Whole, checked against the hash that was stored with it."""
        return b"".join(self.stream(file))

    def part(self, file: StoredFile, start: int, size: int) -> bytes:
        """So many bytes from one on, which are not checked: the hash is that of the whole."""
        ...

    def read_part(self, job_id: str, name: str, start: int, size_max: int) -> bytes | None:
        """A piece of a file that grows, a log: empty at its end, None where there is no such file."""
        ...

    def remove(self, job_ids: Sequence[str]) -> list[str]:
        """Everything that belongs to these jobs; those of which nothing is left. The log says why others are not."""
        ...

    def look(self) -> str:
        """Where the files are; StoreError where they cannot be kept there."""
        ...

    def close(self) -> None:
        """Give back what reading and writing needs; the files stay."""
        ...


def parts(files: Files, file: StoredFile, start: int, stop: int) -> Iterator[bytes]:
    """Some bytes of a file, in pieces; StoreError where it has not got them any more."""
    while start < stop:
        piece = files.part(file, start, min(PIECE_BYTES, stop - start))
        if not piece:
            raise StoreError(f"{file.uri} is not what was stored: it is shorter")
        yield piece
        start += len(piece)


def read_result(files: Files, artifact: str | None) -> str | None:
    """A large result, from its file; None where the result is in the record."""
    return None if artifact is None else files.read(msgspec.json.decode(artifact, type=StoredFile)).decode()


class LocalFiles(Files):
    """A folder: beside the database, or the one that was named."""

    size_max = ARTIFACT_BYTES_MAX

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()

    @classmethod
    def at(cls, uri: str, *, several_hosts: bool = False) -> LocalFiles:
        """Where workers can be on several hosts, only a folder of which the user says that all of them have it."""
        parts = urlsplit(uri)
        if parts.scheme != "file" or parts.netloc or not parts.path or parts.query not in ("", "shared=true"):
            raise ConfigurationError(f"artifacts={uri!r:.100}: write file:///path/to/folder or s3://bucket/prefix")
        if several_hosts and not parts.query:
            raise ConfigurationError(
                f"artifacts={uri!r}: workers on other hosts have folders of their own; write {uri}?shared=true"
                " if all of them mount this one, or leave it out to keep files in the database"
            )
        return cls(unquote(parts.path))

    def path(self, job_id: str, name: str) -> Path:
        return self.root / job_id / name

    def uri(self, job_id: str, name: str) -> str:
        return self.path(job_id, name).as_uri()

    def write(self, job_id: str, attempt: int, name: str, content: Content) -> StoredFile:
        path = self._folder(job_id, str(attempt)) / name
        draft = path.with_name(f".{name}.{os.getpid()}.{threading.get_ident()}.draft")  # two may write it at once
        tally = Tally(name, self.size_max)
        descriptor = os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
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
        descriptor = os.open(self._folder(job_id) / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
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
            log.warning("the files of job %s could not be removed: %s", job_id, error)
            return False
        return True

    def look(self) -> str:
        there = next(each for each in (self.root, *self.root.parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise StoreError(f"{self.root} cannot be written to: give this user the right to, or name another folder")
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
    return StoreError(f"{uri} cannot be read ({error.strerror}): was the folder beside the database kept?")
