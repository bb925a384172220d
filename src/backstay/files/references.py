"""`ArtifactRef`, a reference to a file of a job that travels in payloads and results, and who may read by it."""

from __future__ import annotations

import msgspec
import pydantic

from backstay.core.records import AnyJob, JobRecord
from backstay.errors import ArtifactNotFound, InvalidOption
from backstay.files.local import StoredFile
from backstay.limits import ARTIFACT_READ_BYTES_MAX


class ArtifactRef(pydantic.BaseModel, frozen=True, extra="forbid"):
    """A file that a job has stored with `ctx.artifact`, as it was then: declare it in payloads and results, and read it
    with `await ctx.read_artifact(ref)`. If the job has stored another file under the name since, it reads nothing."""

    job_id: str
    name: str
    size: int
    sha256: str

    @classmethod
    def of(cls, job_id: str, file: StoredFile) -> ArtifactRef:
        return cls(job_id=job_id, name=file.name, size=file.size, sha256=file.sha256)

    def found_in(self, record: JobRecord | None) -> StoredFile:
        """Return the file that this refers to, among those of the job's record."""
        files = [] if record is None or record.artifacts is None else stored_files(record.artifacts)
        file = next((each for each in files if each.name == self.name), None)
        if file is None:
            raise ArtifactNotFound(f"job {self.job_id} has no file {self.name!r}, or it was removed with the job")
        return self.checked(file)

    def checked(self, file: StoredFile) -> StoredFile:
        """Return the file if it is the one that was referred to, and can be read at once."""
        if (file.sha256, file.size) != (self.sha256, self.size):
            raise ArtifactNotFound(
                f"{self.name!r} of job {self.job_id} is another file than when the reference was made: the job has"
                " stored it again since"
            )
        if file.size > ARTIFACT_READ_BYTES_MAX:
            raise InvalidOption(
                f"{self.name!r} has {file.size:,} bytes, and {ARTIFACT_READ_BYTES_MAX:,} can be read at once: read it"
                " in pieces with app.open_artifact"
            )
        return file


def stored_files(text: str) -> list[StoredFile]:
    return msgspec.json.decode(text, type=list[StoredFile])


def may_read(reader: AnyJob, reader_root: str | None, upstream: tuple[str, ...], other: JobRecord) -> bool:
    """Return whether a job may read the files of another: of its tree, of those that it depends on, and of its
    queue."""
    return (
        other.queue == reader.queue
        or (other.root_job_id or other.job_id) == (reader_root or reader.job_id)
        or other.job_id in upstream
    )
