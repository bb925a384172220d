"""What a worker process writes to stderr: a line per event, for people or for machines."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast import settings
from holdfast.app import Holdfast
from holdfast.cli import logged
from holdfast.cli.text import count, safe_lines, span
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.store.types import WorkerRow
from holdfast.worker import capture

log = logging.getLogger("holdfast.worker")
MINUTE_SECONDS = 60.0

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error", "critical")

_worker_id: str | None = None


def level(given: str | None) -> str:
    return _one_of("log_level", given, LEVELS, "info")


def style(given: str | None) -> str:
    return _one_of("log_format", given, FORMATS, "text")


def configure(level: str, style: str) -> None:
    """Lines below the level are not printed; a job still keeps what its handler logs."""
    logged.leave_to_others()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Text())
    handler.setLevel(level.upper())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(min(logging.INFO, logging.getLevelNamesMapping()[level.upper()]))


def name_worker(worker_id: str) -> None:
    global _worker_id
    _worker_id = worker_id


async def sum_up_minutes(app: Holdfast, worker_id: str) -> None:
    """A line a minute in which something ended: at thousands of jobs a second, a line for each is for --log-level
    debug. The figures are those of the last heartbeat."""
    before: WorkerRow | None = None
    while True:
        try:
            now = next((row for row in await app.workers() if row.worker_id == worker_id), None)
        except HoldfastError as error:  # a busy store is no reason to stop telling
            log.debug("the figures of the last minute could not be read: %s", error)
            now = None
        if now is not None:
            if line := minute(before, now):
                log.info("%s", line)
            before = now
        await asyncio.sleep(MINUTE_SECONDS)


def minute(before: WorkerRow | None, now: WorkerRow) -> str | None:
    """What a worker did between two heartbeats, in a line; None where nothing ended."""
    ended = now.ended - (0 if before is None else before.ended)
    if not ended:
        return None
    failed = now.failed - (0 if before is None else before.failed)
    busy = now.busy_micros - (0 if before is None else before.busy_micros)
    minutes = 1 if before is None else round((now.heartbeat_at - before.heartbeat_at) / 60e6)  # no news in an outage
    since = "minute" if minutes <= 1 else f"{minutes} minutes"
    return (
        f"in the last {since} {count(ended, 'attempt')} ended, {failed:,} of them failed; on average each took"
        f" {span(busy / ended / 1e6)}; {count(len(now.running), 'job')} running now"
    )


def _one_of(name: str, given: str | None, allowed: tuple[str, ...], default: str) -> str:
    value = settings.setting(name, given, str, default).lower()
    if value not in allowed:
        raise ConfigurationError(f"--{name.replace('_', '-')} {value}: use {', '.join(allowed)}")
    return value


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        job = getattr(capture.current.get(), "job", None)
        own = record.name == "holdfast.worker"  # says itself which job it means
        inside = "" if job is None or own else f" [{job.job_type} {job.job_id} attempt {job.attempt}]"
        line = f"{_at(record)} {record.levelname:<7} {record.name}{inside}: {record.getMessage()}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return safe_lines(line)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": _at(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _clean(record.getMessage()),
        }
        if (job := getattr(capture.current.get(), "job", None)) is not None:
            line |= {"job_id": job.job_id, "job_type": job.job_type, "attempt": job.attempt}
        line |= getattr(record, "fields", {})  # of a request that was answered
        if _worker_id is not None:
            line["worker_id"] = _worker_id
        if record.exc_info:
            line["exception"] = _clean(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()


def _clean(text: str) -> str:
    """A lone surrogate in a message must not cost the line."""
    return text.encode("utf-8", "backslashreplace").decode()
