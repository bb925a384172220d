"""The export of a job to one file: its record, steps, output, files and log, and the records of its tree.

The file is for another machine, where `replay` runs the job again without the queue. Sensitive fields are masked and
encrypted ones stay encrypted, unless the caller asks otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec

from backstay import codec, encryption, settings
from backstay.clock import Clock, to_datetime
from backstay.core import sensitive
from backstay.core.export_file import Manifest, Writer, place
from backstay.core.output import START, StoredPart
from backstay.core.port import Store
from backstay.core.records import JobRecord
from backstay.core.waits import Step
from backstay.errors import BackstayError, ExportFailed
from backstay.files.local import LOG_FILE, Files, StoredFile
from backstay.job import Job
from backstay.limits import EXPORT_LOG_BYTES_MAX, MIB, OUTPUT_PARTS_READ_MAX, STEPS_MAX
from backstay.ops.edit import record_of
from backstay.ops.tree import load

Marks = Callable[[str], Sequence[str]]  # of the sensitive fields of a type's payload


class JobExport(msgspec.Struct, frozen=True):
    """What was exported: the file, its size, the jobs in it, and what was left out, in words."""

    path: str
    size: int
    jobs: tuple[str, ...]
    masked: bool
    left_out: tuple[str, ...]


class Choice(msgspec.Struct, frozen=True):
    """What the caller wants in the file."""

    sensitive: bool = False
    decrypt: bool = False
    files: bool = True


async def export_job(
    store: Store, clock: Clock, files: Files | None, marks: Marks, job_id: str, path: Path, choice: Choice
) -> JobExport:
    record = await record_of(store, job_id)
    if record.archived_at is not None:
        raise ExportFailed(
            f"job {job_id} is archived: its payload, result and steps are gone, so there is nothing to replay"
        )
    tree = await load(store, record, Job)
    related = {each.job.job_id: each.job.row for each in tree}
    upstream = [each for each in record.dependencies if each not in related]
    related |= {each.job_id: each for each in await store.get(upstream) if each is not None}
    left_out = [] if tree.complete else [f"jobs of the tree beyond the first {len(related):,}"]
    gathering = _Gathering(store, files, marks, choice, left_out)
    with Writer(path) as writer:
        for each in related.values():
            await gathering.add(writer, each, is_main=each.job_id == record.job_id)
        manifest = Manifest(
            release=settings.release(),
            exported_at=to_datetime(clock.now()).astimezone(UTC).isoformat(),
            job_id=record.job_id,
            jobs=tuple(related),
            masked=gathering.masked,
            decrypted=choice.decrypt,
            left_out=tuple(left_out),
        )
        writer.finish(manifest)
    return JobExport(str(path), writer.written, tuple(related), gathering.masked, tuple(left_out))


class _Gathering:
    def __init__(self, store: Store, files: Files | None, marks: Marks, choice: Choice, left_out: list[str]) -> None:
        self._store = store
        self._files = files
        self._marks = marks
        self._choice = choice
        self._left_out = left_out
        self.masked = False

    async def add(self, writer: Writer, record: JobRecord, *, is_main: bool) -> None:
        job_id = record.job_id
        writer.add_document(place(job_id, "record.json"), self._shown(record))
        if record.result_artifact is not None:
            result = msgspec.json.decode(record.result_artifact, type=StoredFile)
            await self._add_file(writer, place(job_id, "result.json"), result, f"the result of job {job_id}")
        if is_main:
            steps: list[Step] = await self._store.steps(job_id, STEPS_MAX)
            writer.add_document(place(job_id, "steps.json"), steps)
            writer.add_document(place(job_id, "output.json"), await self._output(job_id))
            await self._add_log(writer, job_id)
        for number, file in enumerate(files_of(record)):
            what = f"{file.name} of job {job_id}"
            if self._choice.files:
                await self._add_file(writer, place(job_id, f"files/{number}"), file, what)
            else:
                self._left_out.append(what)

    def _shown(self, record: JobRecord) -> JobRecord:
        payload, result = record.payload, record.result
        if self._choice.decrypt:
            payload = encryption.plain(payload, record.job_type, encryption.PAYLOAD)
            result = None if result is None else encryption.plain(result, record.job_type, encryption.RESULT)
        if not self._choice.sensitive:
            value = codec.decode(payload)
            shown = sensitive.replaced(tuple(self._marks(record.job_type)), value, _masked)
            if shown != value:
                self.masked = True
                payload = codec.encode(shown).decode()
        return msgspec.structs.replace(record, payload=payload, result=result)

    async def _output(self, job_id: str) -> list[StoredPart]:
        found: list[StoredPart] = []
        after = START
        while parts := await self._store.output(job_id, after, OUTPUT_PARTS_READ_MAX):
            found += parts
            after = parts[-1].end
        return found

    async def _add_log(self, writer: Writer, job_id: str) -> None:
        if self._files is None:
            return
        text = b""
        while len(text) < EXPORT_LOG_BYTES_MAX:
            piece = await asyncio.to_thread(self._files.read_part, job_id, LOG_FILE, len(text), MIB)
            if not piece:
                break
            text += piece
        else:
            self._left_out.append(f"the log of job {job_id} beyond {EXPORT_LOG_BYTES_MAX:,} bytes")
        if text:
            writer.add(place(job_id, LOG_FILE), [text])

    async def _add_file(self, writer: Writer, path: str, file: StoredFile, what: str) -> None:
        if self._files is None:
            self._left_out.append(f"{what}, whose location cannot be read from here")
        elif file.size > writer.room:
            self._left_out.append(f"{what}, with {file.size:,} bytes")
        else:
            try:
                await asyncio.to_thread(writer.add, path, self._pieces(file))
            except ExportFailed:
                raise
            except BackstayError as error:
                raise ExportFailed(f"{what} cannot be read: {error}; export the job without files") from None

    def _pieces(self, file: StoredFile) -> Iterator[bytes]:
        assert self._files is not None  # noqa: S101 - the caller has looked
        yield from self._files.stream(file)


def _masked(_: object, value: Any) -> Any:
    """Mask a sensitive value. An encrypted one is unreadable as it is."""
    return value if value is None or encryption.is_sealed(value) else sensitive.MASK


def files_of(record: JobRecord) -> list[StoredFile]:
    """Return the files that a record lists; the n-th is `files/<n>` of its export."""
    return msgspec.json.decode(record.artifacts, type=list[StoredFile]) if record.artifacts else []
