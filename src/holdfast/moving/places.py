"""Where the files of a job are: named in its record, and in another place on the other side. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.errors import MoveFailed
from holdfast.files import StoredFile
from holdfast.store import dumps
from holdfast.store.dumps import JobDump
from holdfast.store.types import JobRecord

_file = msgspec.json.Decoder(StoredFile)
_files = msgspec.json.Decoder(list[StoredFile])
_A_URI = b"://"  # in every record that names a file


def may_name_files(item: bytes) -> bool:
    return _A_URI in item


def files_of(record: JobRecord) -> list[StoredFile]:
    """Its artifacts, and its result where that is a file; of a job that was answered by another, the other's."""
    found = _files.decode(record.artifacts) if record.artifacts else []
    return [*found, _file.decode(record.result_artifact)] if record.result_artifact else found


def place_of(uri: str) -> tuple[str, int, str]:
    """The job, attempt and name that a file was written under, wherever that is."""
    match unquote(urlsplit(uri).path).split("/")[-3:]:
        case [job_id, attempt, name] if attempt.isdigit():
            return job_id, int(attempt), name
        case _:
            raise MoveFailed(f"{uri} is no place of a file of a job: nothing was opened; look at the job that names it")


def relocated(dump: JobDump, moved: Mapping[str, str], log_location: str | None) -> JobDump:
    """The job with its files where they are now: `moved` has the new URI of each."""

    def there(file: StoredFile) -> StoredFile:
        return msgspec.structs.replace(file, uri=moved.get(file.uri, file.uri))

    record = dump.record
    changes: dict[str, str | None] = {"log_location": log_location}
    if record.artifacts:
        changes["artifacts"] = _text([there(each) for each in _files.decode(record.artifacts)])
    if record.result_artifact:
        changes["result_artifact"] = _text(there(_file.decode(record.result_artifact)))
    return msgspec.structs.replace(dump, record=msgspec.structs.replace(record, **changes))


def placeless(item: bytes) -> bytes:
    """A job's item as it is on both sides: files by what is in them, not by where they are."""
    if not may_name_files(item):
        return item
    dump = dumps.unpacked(dumps.JOBS, item, JobDump)
    moved = {file.uri: "" for file in files_of(dump.record)}
    return dumps.packed(relocated(dump, moved, "" if dump.record.log_location else None))


def _text(value: StoredFile | list[StoredFile]) -> str:
    return msgspec.json.encode(value).decode()
