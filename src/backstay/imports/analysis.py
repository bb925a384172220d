"""The `jobs.db` of an audio analysis service: one table `jobs`, in an SQLite file.

    backstay import analysis /cache/jobs.db

Its jobs are `analyze` and `lrc`, queued, processing, completed or failed. It has no start times, attempts or
priorities. Its ids (job_ and twelve characters) are not UUIDs: each job gets an id derived from its own, which it keeps
as a tag, so that `backstay list --tag job_…` finds it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw

from backstay.core.states import Status
from backstay.errors import ConfigurationError
from backstay.imports.source import (
    RUNNING,
    Row,
    Unmappable,
    Work,
    document,
    fraction,
    known,
    moment,
    named,
    read,
    required,
    text,
)
from backstay.limits import IMPORT_PAGE

_TEXTS = (
    "id", "type", "status", "stage", "error_message", "request_json", "result_json", "created_at", "updated_at",
    "content_hash",
)  # fmt: skip
_COLUMNS = (*_TEXTS, "progress")
# In the order in which they came in: a page begins after the last row, and rows that come in between are seen or not,
# but none twice. Texts are read as bytes: SQLite stores what it was given, which need not be UTF-8.
_PAGE = f"""
SELECT rowid, {", ".join(f"CAST({name} AS BLOB)" for name in _TEXTS)}, progress
FROM jobs WHERE rowid > ?1 ORDER BY rowid LIMIT ?2
"""  # noqa: S608
_COUNT = "SELECT count(*) FROM jobs"
_KNOWN_COLUMNS = "SELECT name FROM pragma_table_info('jobs')"
_STATES = {
    "queued": Status.PENDING,
    "processing": Status.PROCESSING,
    "completed": Status.COMPLETED,
    "failed": Status.FAILED,
}


class AnalysisJobs:
    has_dependencies = False

    def __init__(self, address: str) -> None:
        self._path = Path(address.removeprefix("sqlite:///") or address).absolute()
        self._connection: apsw.Connection | None = None

    @property
    def location(self) -> str:
        return str(self._path)

    async def open(self) -> None:
        if not self._path.is_file():
            raise ConfigurationError(f"no file {self._path}: give the path of the service's jobs.db")
        try:
            self._connection = apsw.Connection(
                f"{self._path.as_uri()}?{self._how()}", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            )
            self._connection.set_busy_timeout(10_000)
            columns = {name for (name,) in self._rows(_KNOWN_COLUMNS)}
        except apsw.Error as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error}") from None
        if missing := [name for name in _COLUMNS if name not in columns]:
            raise ConfigurationError(
                f"{self._path} is not a jobs.db of the analysis service: it has no table jobs with a column"
                f" {missing[0]}"
            )

    def _how(self) -> str:
        """Return how to open the file. Even a reader would create files next to one in WAL mode, unless it is sure that
        there is no writer, which would have its own there."""
        with self._path.open("rb") as file:
            is_wal = file.read(20)[18:] == b"\x02\x02"
        return "immutable=1" if is_wal and not Path(f"{self._path}-wal").exists() else "mode=ro"

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def count(self) -> int:
        [(count,)] = self._rows(_COUNT)
        return int(count)

    async def pages(self) -> AsyncIterator[list[Row]]:
        after = -(2**63)
        while page := self._rows(_PAGE, (after, IMPORT_PAGE)):
            yield [_row(dict(zip(_COLUMNS, values, strict=True))) for _, *values in page]
            after = page[-1][0]

    def notes(self) -> list[str]:
        return []

    def _rows(self, statement: str, bindings: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self._connection is None:
            raise ConfigurationError(f"{self._path} is not open")
        try:
            return self._connection.execute(statement, bindings).fetchall()
        except apsw.BusyError:
            raise ConfigurationError(f"{self._path} is locked: stop the service that writes it") from None
        except apsw.Error as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error}") from None


def _row(row: dict[str, Any]) -> Row:
    job_id, state = (bytes(row[name] or b"").decode("utf-8", "replace") for name in ("id", "status"))
    return read(job_id, state, lambda: _work(job_id, state, {name: _decoded(row[name], name) for name in _COLUMNS}))


def _decoded(value: Any, name: str) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise Unmappable(f"{name} is not UTF-8") from None


def _work(job_id: str, state: str, row: dict[str, Any]) -> Work:
    status = known(_STATES, state)
    has_run = status is not Status.PENDING
    created_at = required(moment(row["created_at"], "created_at"), "created_at")
    updated_at = moment(row["updated_at"], "updated_at")
    return Work(
        source_id=named(job_id, "id"),
        state=state,
        job_type=named(row["type"], "type"),
        payload=document(row["request_json"], "request_json"),
        status=status,
        created_at=created_at,
        ended_at=None if status is Status.PENDING else updated_at,
        attempt=int(has_run),
        failures=int(status in (Status.PROCESSING, Status.FAILED)),
        subject=text(row["content_hash"]),
        content_hash=text(row["content_hash"]),
        result=document(row["result_json"], "result_json"),
        error=text(row["error_message"]),
        progress=fraction(row["progress"], "progress"),
        step=row["stage"] or "",
        note=RUNNING if status is Status.PROCESSING else "",
    )
