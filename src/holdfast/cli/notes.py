"""What a job is at, in a few words, with ids as this terminal has room for them."""

from __future__ import annotations

from datetime import datetime

from holdfast import notes
from holdfast.cli import output
from holdfast.job import Job
from holdfast.notes import took, why_cancelled


def note(job: Job, now: datetime, *, percent: bool = True) -> str:
    """For a column of its own, beside the status."""
    return notes.note(job, now, percent=percent, named=output.named)


def short_line(job: Job, now: datetime) -> str:
    """For someone who follows one job, beside its bar."""
    return notes.short_line(job, now, named=output.named)


def progress_line(job: Job, now: datetime) -> str:
    """For someone who follows one job line by line."""
    return notes.progress_line(job, now, named=output.named)


__all__ = ["note", "progress_line", "short_line", "took", "why_cancelled"]
