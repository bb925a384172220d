"""A world outside the queue for the crash test to look at, and the names of its disturbances."""

from pathlib import Path
from typing import Any

import pytest

from backstay.testing import CrashReport, crash_test

BEFORE = "killed before the handler began"
AFTER = "killed after the handler returned"
TWICE = "delivered twice: killed after the handler returned, before that was recorded"
STALLED_AFTER = "stalled past its lease after the handler returned, while another worker ran the job; then it continued"


def killed(nth: int, of: int) -> str:
    return f"killed at progress call {nth} of {of}"


def stalled(nth: int, of: int) -> str:
    return f"stalled past its lease at progress call {nth} of {of}, while another worker ran the job; then it continued"


class Outside:
    """A file outside the queue: lines that were written, charges that were made."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "outside.txt"

    def append(self, line: object) -> None:
        with self.file.open("a") as file:
            file.write(f"{line}\n")

    def read(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []

    def reset(self) -> None:
        self.file.unlink(missing_ok=True)

    def crash(self, handler: Any, payload: Any = 1, **options: Any) -> CrashReport:
        return crash_test(handler, payload, **{"effect": self.read, "reset": self.reset} | options)

    def complaint(self, handler: Any, payload: Any = 1) -> tuple[set[str], str]:
        """The disturbances that made a difference, and the whole message."""
        with pytest.raises(AssertionError) as failure:
            self.crash(handler, payload)
        text = str(failure.value)
        blamed = text.partition("These disturbances made no difference")[0].splitlines()
        return {line for line in blamed if line.startswith(("killed", "delivered", "stalled"))}, text
