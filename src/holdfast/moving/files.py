"""Files of jobs, carried from where one store keeps them to where the other does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import MoveFailed, StoreBusy, StoreError, StoreUnavailable
from holdfast.files import LOG_FILE, Files, StoredFile
from holdfast.limits import LOG_FILE_BYTES_MAX
from holdfast.moving import places
from holdfast.store import dumps
from holdfast.store.dumps import JobDump
from holdfast.store.moves import MoveState

LOG_PIECE_BYTES = 1024 * 1024
MISSING_SHOWN = 10


class _Unreadable(Exception):
    """A file that its job names cannot be read where it should be."""


class Carrier:
    """Blocks: its methods run in a thread."""

    def __init__(self, source: Files, target: Files) -> None:
        self._source = source
        self._target = target
        self.files = 0
        self.file_bytes = 0
        self.missing: list[str] = []
        self.missing_count = 0

    def go_on_from(self, state: MoveState) -> None:
        """Count on from where an earlier run came to."""
        self.files, self.file_bytes = state.files, state.file_bytes
        self.missing, self.missing_count = list(state.missing), state.missing_count

    def counted(self, state: MoveState) -> MoveState:
        return msgspec.structs.replace(
            state,
            files=self.files,
            file_bytes=self.file_bytes,
            missing=tuple(self.missing),
            missing_count=self.missing_count,
        )

    @property
    def may_be_too_small(self) -> bool:
        return self._target.size_max < self._source.size_max

    def refuse_too_large(self, item: bytes) -> None:
        """Before anything is frozen: found on the way, a queue would stand still for it."""
        if not places.may_name_files(item):
            return
        dump = dumps.unpacked(dumps.JOBS, item, JobDump)
        for file in places.files_of(dump.record):
            if file.size > self._target.size_max:
                raise MoveFailed(
                    f"{file.name} of job {dump.record.job_id} has {file.size:,} bytes, and the new place keeps files of"
                    f" up to {self._target.size_max:,}: give --to-artifacts s3://…; nothing was changed"
                )

    def relocated(self, items: Sequence[bytes]) -> list[bytes]:
        """The jobs, naming their files where these will be."""
        return [self._relocated(item) if places.may_name_files(item) else item for item in items]

    def _relocated(self, item: bytes) -> bytes:
        dump = dumps.unpacked(dumps.JOBS, item, JobDump)
        record = dump.record
        moved = {file.uri: self._uri_there(file) for file in places.files_of(record)}
        log_location = record.log_location and self._target.uri(record.job_id, LOG_FILE)
        return dumps.packed(places.relocated(dump, moved, log_location))

    def _uri_there(self, file: StoredFile) -> str:
        job_id, attempt, name = places.place_of(file.uri)
        return self._target.uri(job_id, f"{attempt}/{name}")

    def carry(self, items: Sequence[bytes]) -> None:
        """Copy the files that these jobs name; the jobs are there already, because files belong to one. A file that is
        written again is the same file."""
        copied: set[str] = set()  # several jobs may have one result
        for item in items:
            if not places.may_name_files(item):
                continue
            record = dumps.unpacked(dumps.JOBS, item, JobDump).record
            for file in places.files_of(record):
                if file.uri not in copied:
                    copied.add(file.uri)
                    self._copy(file)
            if record.log_location is not None:
                self._copy_log(record.job_id)

    def _copy(self, file: StoredFile) -> None:
        job_id, attempt, name = places.place_of(file.uri)
        try:
            written = self._target.write(job_id, attempt, name, self._read(file))
        except _Unreadable:  # it was lost before: that must not keep the others from moving
            self._miss(file.uri)
            return
        self.files += 1
        self.file_bytes += written.size

    def _read(self, file: StoredFile) -> Iterator[bytes]:
        try:
            yield from self._source.stream(file)
        except (StoreUnavailable, StoreBusy):
            raise
        except StoreError as error:
            raise _Unreadable from error

    def _copy_log(self, job_id: str) -> None:
        """It is written by adding to it. What an earlier try has added is its beginning."""
        start = self._length_there(job_id)
        while piece := self._source.read_part(job_id, LOG_FILE, start, LOG_PIECE_BYTES):
            self._target.append(job_id, LOG_FILE, piece, LOG_FILE_BYTES_MAX)
            start += len(piece)
            self.file_bytes += len(piece)
        self.files += 1

    def _length_there(self, job_id: str) -> int:
        size = 0
        while piece := self._target.read_part(job_id, LOG_FILE, size, LOG_PIECE_BYTES):
            size += len(piece)
        return size

    def _miss(self, uri: str) -> None:
        self.missing_count += 1
        if len(self.missing) < MISSING_SHOWN:
            self.missing.append(uri)
