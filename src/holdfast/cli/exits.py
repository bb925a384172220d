"""Exit codes: the one table, for scripts, for the help and for the tests."""

from __future__ import annotations

from enum import IntEnum

from holdfast.errors import (
    ArtifactNotFound,
    ConfigurationError,
    HoldfastError,
    InvalidSubmission,
    JobCancelled,
    JobNotFound,
    KeyNotFound,
    QueueFull,
    ResultTimeout,
    ScheduleNotFound,
)
from holdfast.lifecycle import Status


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    CANCELLED = 3
    TIMEOUT = 4
    NOT_FOUND = 5
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "done; an awaited job completed; a worker stopped in good order",
    Exit.FAILED: "the job failed, or Holdfast could not do it; stderr says why",
    Exit.USAGE: "an option, a setting, the app or the payload cannot be accepted",
    Exit.CANCELLED: "the awaited job was cancelled",
    Exit.TIMEOUT: "the awaited job has not ended within --timeout; it goes on",
    Exit.NOT_FOUND: "there is no such job, schedule, key or file",
    Exit.INTERRUPTED: "interrupted with Ctrl-C; jobs go on",
}


class Interrupted(Exception):
    """By Ctrl-C, where a command has something to say about that."""


def of_error(error: HoldfastError) -> Exit:
    match error:
        case JobCancelled():
            return Exit.CANCELLED
        case ResultTimeout():
            return Exit.TIMEOUT
        case JobNotFound() | ScheduleNotFound() | KeyNotFound() | ArtifactNotFound():
            return Exit.NOT_FOUND
        case QueueFull():  # nothing is wrong with what was asked; later it works
            return Exit.FAILED
        case ConfigurationError() | InvalidSubmission():
            return Exit.USAGE
        case _:
            return Exit.FAILED


def of_status(status: Status) -> Exit:
    """How a job that has ended is reported."""
    match status:
        case Status.COMPLETED:
            return Exit.OK
        case Status.CANCELLED:
            return Exit.CANCELLED
        case _:
            return Exit.FAILED


def table() -> str:
    """For the end of `holdfast --help`; the \\b keeps its lines as they are."""
    lines = (f"  {code.value:<4} {meaning}" for code, meaning in MEANINGS.items())
    return "\b\nExit codes:\n" + "\n".join(lines)
