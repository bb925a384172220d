"""How much memory a process uses, as far as the system tells."""

from __future__ import annotations

from pathlib import Path

from backstay import posix
from backstay.limits import GIB, MIB


def resident_bytes(pid: int | None = None) -> int:
    """Return how much memory this process uses, or another one, or 0 if the system does not tell."""
    try:
        return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * posix.PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def shown(size: int) -> str:
    """Return a size as a message says it."""
    return f"{size / GIB:.3g} GiB" if size >= GIB else f"{size / MIB:.3g} MiB"


def is_known() -> bool:
    """Return whether the system tells how much memory a process uses."""
    return resident_bytes() > 0
