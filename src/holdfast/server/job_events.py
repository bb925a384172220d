"""What a stream tells of a job, as server-sent events. Pure: a record and what was told, to what is new.

The id of an event is how far the stream has come, so that a client which names it (`Last-Event-ID`) goes on from there
at any server: the version of the last transition, the last line of the log, and whether the end was told.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast import codec
from holdfast.job import HistoryEntry, Job
from holdfast.statuses import TERMINAL

_TOLD = re.compile(r"(\d{1,18})\.(\d{0,20})\.(\d{1,6})\.([01])", re.ASCII)
_NO_DIGIT = re.compile(r"\D", re.ASCII)


Line = dict[str, str]


class Told(msgspec.Struct, frozen=True):
    """How far the stream of a job has come."""

    version: int = 0
    logged_at: str = ""  # the digits of the last line's time …
    logged: int = 0  # … and how many lines of that time
    lines: tuple[Line, ...] | None = None  # as the record had them; None: only the two above are known
    progress: tuple[float, str] | None = None
    has_ended: bool = False

    @classmethod
    def of(cls, event_id: str | None) -> Told:
        """What a client has heard; of one that says nothing, or nonsense, nothing."""
        found = _TOLD.fullmatch(event_id or "")
        if found is None:
            return cls()
        return cls(int(found[1]), found[2], int(found[3]), has_ended=found[4] == "1")

    @property
    def event_id(self) -> str:
        return f"{self.version}.{self.logged_at}.{self.logged}.{int(self.has_ended)}"


def of_job(job: Job, told: Told) -> tuple[bytes, Told]:
    """The events that are new, and how far the stream has come with them."""
    parts: list[bytes] = []
    for entry in _steps(job, told):
        told = msgspec.structs.replace(told, version=entry["version"])
        parts.append(event("state", {"job_id": job.job_id, **entry}, told.event_id))
    entries = tuple(job.logs["entries"])
    for line in _new_lines(entries, told):
        told = _with_line(told, line)
        parts.append(event("log", {"job_id": job.job_id, **line}, told.event_id))
    told = msgspec.structs.replace(told, lines=entries)
    progress = (job.progress, job.stage)
    if told.progress != progress:
        told = msgspec.structs.replace(told, progress=progress)
        said = {"job_id": job.job_id, "progress": job.progress, "stage": job.stage}
        parts.append(event("progress", said, told.event_id))
    if job.status in TERMINAL:
        told = msgspec.structs.replace(told, has_ended=True)
        parts.append(event("end", _end(job), told.event_id))
    return b"".join(parts), told


def _steps(job: Job, told: Told) -> list[dict[str, Any]]:
    """Transitions since the last that was told; to someone new, only where the job stands."""
    history = [_step(entry) for entry in job.history if entry.version > told.version]
    if not history and job.version > told.version:  # the archive keeps no history
        at = job.completed_at or job.updated_at
        now = {"version": job.version, "at": at, "event": None, "status": job.status, "attempt": job.attempt}
        return [{**now, "reason": None}]
    return history if told.version else history[-1:]


def _step(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "version": entry.version,
        "at": entry.at,
        "event": entry.event,
        "status": entry.target,
        "attempt": entry.attempt,
        "reason": entry.reason,
    }


def _new_lines(entries: tuple[Line, ...], told: Told) -> tuple[Line, ...]:
    """The record keeps the last lines: those are new that come after the ones which were told."""
    if told.lines is None:
        return _lines_after(entries, told)
    for known in range(min(len(told.lines), len(entries)), -1, -1):
        if told.lines[len(told.lines) - known :] == entries[:known]:
            break
    return entries[known:]


def _lines_after(entries: tuple[Line, ...], told: Told) -> tuple[Line, ...]:
    """To someone who comes again: what is younger than the last line, and what has its time and was not among those."""
    same = [line for line in entries if _digits(line) == told.logged_at]
    return (*same[told.logged :], *(line for line in entries if _digits(line) > told.logged_at))


def _with_line(told: Told, line: Line) -> Told:
    at = _digits(line)
    return msgspec.structs.replace(told, logged_at=at, logged=told.logged + 1 if at == told.logged_at else 1)


def _digits(line: Line) -> str:
    return _NO_DIGIT.sub("", line["timestamp"])


def _end(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "status": job.status,
        "attempt": job.attempt,
        "completed_at": job.completed_at,
        "last_error": job.last_error,
    }


def event(name: str, said: dict[str, Any], event_id: str) -> bytes:
    return b"event: %s\nid: %s\ndata: %s\n\n" % (name.encode(), event_id.encode(), codec.encode(said))
