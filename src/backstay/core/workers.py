"""Worker state derived from its stored row: alive or silent, busy, last day's figures, JSON document.

The command line, the dashboard, HTTP and the metrics all use this module. A worker's row has sums since its start, and
once an hour a copy of them: the difference to the copy of a day ago is what happened since, without looking at any job.

`own` and `is_dead` tell a process from a later one with the same pid, so that the claims of a dead process are rescued
at once.
"""

from __future__ import annotations

import functools
import os
import socket
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Protocol, get_args

import msgspec
from msgspec import Meta

from backstay import limits
from backstay.clock import MICROS, Instant, Moment, to_datetime
from backstay.core.checks import span
from backstay.core.records import WorkerRow

SILENT_AFTER_LEASES = 1  # by then other workers may claim its jobs, so it counts as gone
RENEWALS_PER_LEASE = 3  # two heartbeats may be late or lost before the claims expire
FORGOTTEN_AFTER_LEASES = 10  # its row is listed as silent until then, so that operators notice

State = Literal["working", "idle", "stopping", "stuck", "blocked", "silent"]
STATES: tuple[State, ...] = get_args(State)


def state_of(row: WorkerRow, now: Instant) -> State:
    """Return the most important state: nothing else is known about a silent worker, and one that is blocked or has a
    stuck thread needs attention."""
    if is_silent(row, now):
        return "silent"
    if row.blocked is not None:
        return "blocked"
    if row.stuck:
        return "stuck"
    return "stopping" if row.stopping else "working" if row.running else "idle"


def renewal_seconds(lease_seconds: float) -> float:
    """Return how often a worker extends its leases, which is its heartbeat."""
    return lease_seconds / RENEWALS_PER_LEASE


class Heard(Protocol):
    """What tells whether a worker is silent: a row has it."""

    @property
    def heartbeat_at(self) -> Instant: ...

    @property
    def lease_micros(self) -> int: ...


def is_silent(row: Heard, now: Instant) -> bool:
    """Return whether a worker's last heartbeat is older than its own lease. All parts of Backstay use this rule."""
    return now - row.heartbeat_at > SILENT_AFTER_LEASES * _lease_micros(row)


def takes_jobs(row: WorkerRow, now: Instant) -> bool:
    """Return whether a worker claims jobs: it is alive, not stopping, and its event loop runs."""
    return not row.stopping and row.blocked is None and not is_silent(row, now)


def blocked_for(row: WorkerRow, now: Instant) -> str:
    """Return how long a worker's event loop has been blocked, by which handler and where, for people to read."""
    blocked = row.blocked
    if blocked is None:
        return ""
    said = f"blocked for {span(max(0, now - blocked.since) / MICROS)}"
    if blocked.job_type is not None:
        said += f" by {blocked.job_type} job {blocked.job_id}"
    return said if blocked.where is None else f"{said}, at {blocked.where}"


def is_forgotten(row: WorkerRow, now: Instant) -> bool:
    """Return whether the row of a silent worker may be deleted. Its claims are not affected: each ends with its own
    lease."""
    return now - row.heartbeat_at > FORGOTTEN_AFTER_LEASES * _lease_micros(row)


def former_since(now: Instant) -> Instant:
    """Return the instant after which a worker must have left to be listed still."""
    return now - round(limits.FORMER_WORKER_SECONDS * MICROS)


def _lease_micros(row: Heard) -> int:
    """Return the worker's own lease, whatever the lease of the reader; the default if its row has none."""
    return row.lease_micros or round(limits.LEASE_SECONDS * MICROS)


# Internal fields: process identity, and the sums behind averages.
_INTERNAL = ("process_key", "marks", "unread", "busy_micros", "lease_micros", "key_id", "origin", "declares")
_Attempts = Annotated[
    int | None,
    Meta(description="Attempts since it started. Null if the worker also serves queues that the key does not see."),
]
_Left = Annotated[Moment | None, Meta(description="When it left, died or was lost; null for one that is registered.")]
_Lease = Annotated[float | None, Meta(description="How long a claim of this worker is held without a heartbeat.")]


class Blocked(msgspec.Struct, frozen=True):
    """A worker's event loop that does not run. Without a job it is not known which handler blocks it, if one does."""

    since: Moment
    job_type: str | None
    job_id: str | None
    where: Annotated[str | None, Meta(description="The line of code that it is at.")]


_TYPES = {
    "started_at": Moment,
    "heartbeat_at": Moment,
    "ended": _Attempts,
    "failed": _Attempts,
    "blocked": Blocked | None,
}
_SHOWN = {
    each.name: _TYPES.get(each.name, each.type)
    for each in msgspec.structs.fields(WorkerRow)
    if each.name not in _INTERNAL
}
Worker = msgspec.defstruct(
    "Worker",
    [
        *_SHOWN.items(),
        ("heartbeat_age_seconds", float),
        ("lease_seconds", _Lease),
        ("average_time_ms", float | None),
        ("left_at", _Left),
    ],
)


def document(row: WorkerRow, now: datetime, left_at: Instant | None = None) -> msgspec.Struct:
    found = {name: getattr(row, name) for name in _SHOWN}
    found["started_at"] = to_datetime(row.started_at)
    found["heartbeat_at"] = to_datetime(row.heartbeat_at)
    if (blocked := row.blocked) is not None:
        found["blocked"] = Blocked(to_datetime(blocked.since), blocked.job_type, blocked.job_id, blocked.where)
    return Worker(
        **found,
        heartbeat_age_seconds=(now - to_datetime(row.heartbeat_at)).total_seconds(),
        lease_seconds=row.lease_micros / MICROS or None,
        average_time_ms=row.busy_micros / row.ended / 1000 if row.ended else None,
        left_at=None if left_at is None else to_datetime(left_at),
    )


def host_name() -> str:
    """Return the name of this host, with which the ids of its workers begin."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in socket.gethostname())
    return name[:60] or "host"


def ids_on(host: str) -> tuple[str, str]:
    """Return the bounds, both exclusive, of the ids of workers on a host."""
    return f"{host}:", f"{host};"


HOUR = 3600 * MICROS
DAY = 24 * HOUR


class Pace(msgspec.Struct, frozen=True):
    """Attempts of a worker since an instant: a day ago, or its start."""

    since: Instant
    ended: int
    failed: int
    busy_micros: int

    @property
    def average_ms(self) -> float | None:
        return self.busy_micros / self.ended / 1000 if self.ended > 0 else None


def marked(row: WorkerRow) -> WorkerRow:
    """Return the worker with a new mark if the last is an hour old; outdated marks are dropped."""
    now = row.heartbeat_at
    kept = [mark for mark in row.marks if mark[0] > now - DAY - 2 * HOUR]
    if kept and now - kept[-1][0] < HOUR:
        return row
    kept.append((now, row.ended, row.failed, row.busy_micros))
    return msgspec.structs.replace(row, marks=tuple(kept))


def last_day(row: WorkerRow, now: Instant) -> Pace:
    """Return what it did in the last day, to the hour."""
    begin = (row.started_at, 0, 0, 0)
    if row.started_at <= now - DAY and row.marks:
        begin = next((mark for mark in reversed(row.marks) if mark[0] <= now - DAY), row.marks[0])
    since, ended, failed, busy = begin
    return Pace(since, max(0, row.ended - ended), max(0, row.failed - failed), max(0, row.busy_micros - busy))


def own() -> str:
    """Return boot id, pid namespace, pid and start time, joined by colons; parts that the system does not tell are
    empty."""
    try:
        started = _started(os.getpid())
    except OSError:
        started = None
    return f"{_machine()}:{os.getpid()}:{started or ''}"


def is_dead(key: str) -> bool:
    """Return True only if it is certain: a process of this machine and pid namespace that no longer exists."""
    machine, _, rest = key.rpartition(":")[0].rpartition(":")
    pid, started = rest, key.rpartition(":")[2]
    if not machine.strip(":") or machine != _machine() or not pid.isdigit() or not started:
        return False
    try:
        return _started(int(pid)) != started
    except OSError:  # for example, no file descriptor is left
        return False


def _machine() -> str:
    return _machine_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _machine_of(pid: int) -> str:
    """Return where a process runs, which never changes: this one, or the one that it forked."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return f"{boot}:{namespace.replace(':', '')}"


def _started(pid: int) -> str | None:
    """Return the start time of a process that still runs; a zombie has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]
