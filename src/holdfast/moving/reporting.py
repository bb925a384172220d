"""What a move says about itself, on the way and at its end."""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """Where a move is. `total` is None where nobody has counted."""

    step: str  # waiting, jobs, steps, …, verifying
    done: int = 0
    total: int | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    target: str
    copied: dict[str, int]  # of each kind, as it is on both sides now
    files: int = 0  # with those that an earlier run, which was interrupted, has carried
    file_bytes: int = 0
    missing: tuple[str, ...] = ()  # files that their jobs name and that cannot be read, up to a few …
    missing_count: int = 0  # … of so many
    shortened: int = 0  # items of which the target keeps less: long errors, reasons, logs
    seconds: float = 0.0  # of this run
