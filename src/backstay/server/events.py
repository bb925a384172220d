"""Server-sent events of a job, a tree or an output: what is new since the last event. Pure.

The id of an event is how far the stream has come, so that a client that names it (`Last-Event-ID`) resumes there at any
server. For a job it is the version of the last transition, the last log line, and whether the end was sent. For a tree
it is the time of the latest change that was sent; clocks of writers differ a little, so a resumed stream may repeat
events, which is harmless, because an event has the state of a job and not a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from backstay import codec
from backstay.clock import Instant
from backstay.core.output import START
from backstay.core.states import TERMINAL
from backstay.job import HistoryEntry, Job
from backstay.ops.output import OutputEntry
from backstay.ops.tree import Tree
from backstay.server.auth import Principal
from backstay.server.visibility import without_ids

_JOB_CURSOR = re.compile(r"(\d{1,18})\.(\d{0,20})\.(\d{1,6})\.([01])", re.ASCII)
_NO_DIGIT = re.compile(r"\D", re.ASCII)


Line = dict[str, str]


class Told(msgspec.Struct, frozen=True):
    """What has been sent of the stream of a job."""

    version: int = 0
    logged_at: str = ""  # the digits of the last line's time …
    logged: int = 0  # … and how many lines of that time
    lines: tuple[Line, ...] | None = None  # as the record had them; None: only the two above are known
    progress: tuple[float, str] | None = None
    has_ended: bool = False

    @classmethod
    def of(cls, event_id: str | None) -> Told:
        """Return what a client has received; nothing if it names no event or an unknown one."""
        found = _JOB_CURSOR.fullmatch(event_id or "")
        if found is None:
            return cls()
        return cls(int(found[1]), found[2], int(found[3]), has_ended=found[4] == "1")

    @property
    def event_id(self) -> str:
        return f"{self.version}.{self.logged_at}.{self.logged}.{int(self.has_ended)}"


def of_job(job: Job, told: Told) -> tuple[bytes, Told]:
    """Return the new events, and what has been sent with them."""
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
    """Return transitions since the last one that was sent; for a new client, only the current state."""
    history = [_step(entry) for entry in job.history if entry.version > told.version]
    if not history and job.version > told.version:  # the archive keeps no history
        at = job.completed_at or job.updated_at
        now = {"version": job.version, "at": at, "event": None, "status": job.status, "attempt": job.attempt}
        return [{**now, "reason": None, "forget_steps": False, "details": None}]
    return history if told.version else history[-1:]


def _step(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "version": entry.version,
        "at": entry.at,
        "event": entry.event,
        "status": entry.target,
        "attempt": entry.attempt,
        "reason": entry.reason,
        "forget_steps": entry.forget_steps,
        "details": entry.details,
    }


def _new_lines(entries: tuple[Line, ...], told: Told) -> tuple[Line, ...]:
    """Return the log lines after those that were sent. The record keeps only the last lines."""
    if told.lines is None:
        return _lines_after(entries, told)
    for known in range(min(len(told.lines), len(entries)), -1, -1):
        if told.lines[len(told.lines) - known :] == entries[:known]:
            break
    return entries[known:]


def _lines_after(entries: tuple[Line, ...], told: Told) -> tuple[Line, ...]:
    """Return, for a client that reconnects, the log lines after the last one that was sent, and those of the same
    time."""
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


_TREE_CURSOR = re.compile(r"(\d{1,18})\.([01])", re.ASCII)
OVERLAP_MICROS = 10_000_000
_Seen = tuple[int, float, str]  # of a job: version, progress, stage


class TreeTold(msgspec.Struct, frozen=True):
    """What has been sent of the stream of a tree."""

    at: Instant = 0
    seen: dict[str, _Seen] | None = None  # None: only the time is known
    counts: tuple[int, int, float] | None = None
    has_ended: bool = False

    @classmethod
    def of(cls, event_id: str | None) -> TreeTold:
        found = _TREE_CURSOR.fullmatch(event_id or "")
        return cls() if found is None else cls(int(found[1]), has_ended=found[2] == "1")

    @property
    def event_id(self) -> str:
        return f"{self.at}.{int(self.has_ended)}"


def of_tree(tree: Tree, who: Principal, told: TreeTold, hidden: frozenset[str] = frozenset()) -> tuple[bytes, TreeTold]:
    """Return the new events, and what has been sent with them. Jobs that the key does not see are left out, and so are
    hidden ids in the others."""
    jobs = [without_ids(each.job, hidden) for each in tree if who.sees(each.job.queue)]
    changed = [job for job in jobs if _is_news(job, told)]
    seen = {job.job_id: (job.version, job.progress, job.stage) for job in jobs}
    latest = max((job.row.updated_at for job in jobs), default=0)
    told = msgspec.structs.replace(told, at=max(told.at, latest), seen=seen)
    parts = [event("state", _state(job), told.event_id) for job in changed]
    ended = sum(job.status in TERMINAL for job in jobs)
    counts = (len(jobs), ended, tree.job.progress)
    if counts != told.counts:
        told = msgspec.structs.replace(told, counts=counts)
        said = {"job_id": tree.job.job_id, "jobs": len(jobs), "ended": ended, "progress": tree.job.progress}
        parts.append(event("progress", said, told.event_id))
    if ended == len(jobs):
        told = msgspec.structs.replace(told, has_ended=True)
        parts.append(event("end", {"job_id": tree.job.job_id, "status": tree.job.status}, told.event_id))
    return b"".join(parts), told


def _is_news(job: Job, told: TreeTold) -> bool:
    if told.seen is None:
        return job.row.updated_at >= told.at - OVERLAP_MICROS
    return told.seen.get(job.job_id) != (job.version, job.progress, job.stage)


def _state(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "parent_job_id": job.parent_job_id,
        "job_type": job.job_type,
        "job_stage": job.job_stage,
        "status": job.status,
        "attempt": job.attempt,
        "version": job.version,
        "progress": job.progress,
        "stage": job.stage,
        "last_error": job.last_error,
        "updated_at": job.updated_at,
    }


_OUTPUT_CURSOR = re.compile(r"(\d{1,9}\.\d{1,9}\.\d{1,9})(\.end)?", re.ASCII)
_NOTHING = START.cursor


class OutputTold(msgspec.Struct, frozen=True):
    """What has been sent of the output of a job."""

    cursor: str | None = None
    has_ended: bool = False

    @classmethod
    def of(cls, event_id: str | None, after: str | None) -> OutputTold:
        """Return where a client continues: behind its last event, or else where it has asked for."""
        found = _OUTPUT_CURSOR.fullmatch(event_id or "")
        if found is None:
            return cls(after)
        return cls(None if found[1] == _NOTHING else found[1], found[2] is not None)


def of_output(entries: Iterable[OutputEntry], job_id: str, told: OutputTold) -> tuple[bytes, OutputTold]:
    """Return the events of new entries, and what has been sent with them."""
    parts: list[bytes] = []
    for entry in entries:
        if entry.restarted:
            # Its id is that of what it follows: a client that got no further hears it again.
            parts.append(event("restarted", {"job_id": job_id, "attempt": entry.attempt}, told.cursor or _NOTHING))
        told = OutputTold(entry.cursor)
        parts.append(event("output", {"job_id": job_id, **msgspec.structs.asdict(entry)}, entry.cursor))
    return b"".join(parts), told


def end_of_output(job: Job, told: OutputTold) -> bytes:
    return event("end", _end(job), f"{told.cursor or _NOTHING}.end")
