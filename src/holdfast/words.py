"""Words that agree with their number."""

from __future__ import annotations


def count(number: int, what: str) -> str:
    """1 job, 2 jobs, 1,204 jobs."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
