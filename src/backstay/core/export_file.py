"""The file of an exported job: a zip archive, with a manifest that names each part with size and hash.

    manifest.json                        format, version, what is in it and what was left out
    jobs/<job_id>/record.json            the record, as stores keep it
    jobs/<job_id>/steps.json             recorded steps
    jobs/<job_id>/output.json            what its handler has streamed
    jobs/<job_id>/result.json            a result that is too large for the record
    jobs/<job_id>/job.log                its log
    jobs/<job_id>/files/<n>              its n-th file; the name is in the record

A file that comes from elsewhere is not trusted: nothing is unpacked to a path, only names that the manifest lists are
read, no further than the size that it gives, and all sizes together are bounded before anything is read.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from backstay.errors import ExportFailed
from backstay.limits import EXPORT_BYTES_MAX, EXPORT_ENTRIES_MAX, MIB

T = TypeVar("T")
NAME, VERSION = "backstay-job", 1
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 16 * MIB
PIECE_BYTES = MIB


class Entry(msgspec.Struct, frozen=True):
    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: str = NAME
    version: int = VERSION
    release: str  # of Backstay
    exported_at: str
    job_id: str  # the exported job; the others are its relatives
    jobs: tuple[str, ...]
    masked: bool = False  # values of sensitive fields are dots
    decrypted: bool = False  # values of encrypted fields are plain
    left_out: tuple[str, ...] = ()  # in words
    entries: tuple[Entry, ...] = ()


def place(job_id: str, name: str) -> str:
    return f"jobs/{job_id}/{name}"


class Writer:
    """Writes a file that is there as a whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
        self._entries: list[Entry] = []
        self.size = 0  # of all parts, unpacked
        self.written = 0  # of the finished file

    def __enter__(self) -> Self:
        try:
            descriptor = os.open(self._draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)  # it may have secrets
        except OSError as error:
            raise ExportFailed(f"{self._path} cannot be written: {error.strerror}") from None
        self._file = os.fdopen(descriptor, "wb")
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED)
        return self

    @property
    def room(self) -> int:
        """How many bytes fit."""
        return EXPORT_BYTES_MAX - self.size

    def add(self, path: str, pieces: Iterable[bytes]) -> None:
        tally, size = hashlib.sha256(), 0
        with self._zip.open(path, "w", force_zip64=True) as entry:
            for piece in pieces:
                entry.write(piece)
                tally.update(piece)
                size += len(piece)
        self.size += size
        if self.size > EXPORT_BYTES_MAX or len(self._entries) >= EXPORT_ENTRIES_MAX:
            raise ExportFailed(
                f"the job and its tree have more than the {EXPORT_BYTES_MAX:,} bytes or {EXPORT_ENTRIES_MAX:,} parts"
                " that one file holds: export it without files, or a smaller part of the tree"
            )
        self._entries.append(Entry(path, size, tally.hexdigest()))

    def add_document(self, path: str, document: object) -> None:
        self.add(path, [msgspec.json.encode(document)])

    def finish(self, manifest: Manifest) -> None:
        whole = msgspec.structs.replace(manifest, entries=tuple(self._entries))
        self._zip.writestr(MANIFEST, msgspec.json.encode(whole))
        self._zip.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self.written = self._file.tell()
        self._file.close()
        os.replace(self._draft, self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._file.close()
            self._draft.unlink(missing_ok=True)


class Reader:
    """Reads an exported job. Every part is checked against the manifest."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        try:
            self._zip = zipfile.ZipFile(self._path)
        except (OSError, zipfile.BadZipFile) as error:
            raise self._bad(getattr(error, "strerror", None) or "it is not a zip archive") from None
        try:
            self.manifest = self._manifest()
            self._entries = {entry.path: entry for entry in self.manifest.entries}
            self._check()
        except BaseException:
            self._zip.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def _bad(self, why: str) -> ExportFailed:
        return ExportFailed(f"{self._path} is not an exported job: {why}")

    def _manifest(self) -> Manifest:
        raw = b"".join(self._pieces(MANIFEST, MANIFEST_BYTES_MAX))
        if len(raw) > MANIFEST_BYTES_MAX:
            raise self._bad("its manifest is too large")
        try:
            head = msgspec.json.decode(raw, type=_Head)
        except msgspec.MsgspecError:
            raise self._bad("its manifest cannot be read") from None
        if head.format != NAME:
            raise self._bad(f"its format is {head.format!r:.40}")
        if head.version > VERSION:
            raise ExportFailed(
                f"{self._path} has version {head.version} of the format, and this release reads up to {VERSION}:"
                " replay it with the release that wrote it, or a newer one"
            )
        try:
            return msgspec.json.decode(raw, type=Manifest)
        except msgspec.MsgspecError as error:
            raise self._bad(f"its manifest cannot be read: {error}") from None

    def _check(self) -> None:
        """Refuse what no export writes, before anything else is read."""
        names = self._zip.namelist()
        if len(names) > EXPORT_ENTRIES_MAX + 1 or sum(entry.size for entry in self.manifest.entries) > EXPORT_BYTES_MAX:
            raise self._bad("it is larger than any export")
        if any(entry.size < 0 for entry in self.manifest.entries):
            raise self._bad("its manifest has a size below 0")
        if sorted(names) != sorted([MANIFEST, *(entry.path for entry in self.manifest.entries)]):
            raise self._bad("what is in it is not what its manifest lists")

    def has(self, path: str) -> bool:
        return path in self._entries

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield a part in pieces. ExportFailed replaces the last one if it is not what was exported."""
        entry = self._entries.get(path)
        if entry is None:
            raise self._bad(f"it has no {path}")
        tally, size, last = hashlib.sha256(), 0, b""
        for piece in self._pieces(path, entry.size):
            if last:
                yield last
            tally.update(piece)
            size += len(piece)
            last = piece
        if size != entry.size or tally.hexdigest() != entry.sha256:
            raise self._bad(f"{path} is not what was exported: its hash or size differs")
        if last:
            yield last

    def read(self, path: str) -> bytes:
        return b"".join(self.stream(path))

    def document(self, path: str, kind: type[T]) -> T:
        raw = self.read(path)
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.MsgspecError as error:
            raise self._bad(f"{path} cannot be read: {error}") from None

    def _pieces(self, path: str, most: int) -> Iterator[bytes]:
        """Yield a part, and at most one byte more than it may have: it may be a bomb."""
        left = most + 1
        try:
            with self._zip.open(path) as entry:
                while left > 0 and (piece := entry.read(min(PIECE_BYTES, left))):
                    left -= len(piece)
                    yield piece
        except KeyError:
            raise self._bad(f"it has no {path}") from None
        except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise self._bad(f"{path} cannot be read: {error}") from None
        except Exception as error:  # of the decompressor
            raise self._bad(f"{path} cannot be read: {type(error).__name__}") from None


class _Head(msgspec.Struct, frozen=True):
    format: str
    version: int
