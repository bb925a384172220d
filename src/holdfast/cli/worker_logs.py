"""What a worker process writes to stderr: a line per event, for people or for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.cli.text import safe_lines
from holdfast.worker import capture

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error", "critical")

_worker_id: str | None = None


def configure(level: str, style: str) -> None:
    """Lines below the level are not printed; a job still keeps what its handler logs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Text())
    handler.setLevel(level.upper())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(min(logging.INFO, logging.getLevelNamesMapping()[level.upper()]))


def name_worker(worker_id: str) -> None:
    global _worker_id
    _worker_id = worker_id


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
        if _worker_id is not None:
            line["worker_id"] = _worker_id
        if record.exc_info:
            line["exception"] = _clean(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()


def _clean(text: str) -> str:
    """A lone surrogate in a message must not cost the line."""
    return text.encode("utf-8", "backslashreplace").decode()
