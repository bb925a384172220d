"""Whether the kernel has ended processes of this control group for want of memory."""

from __future__ import annotations

from pathlib import Path

_CGROUP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def oom_kills() -> int | None:
    """How many, so far; None where that is not known."""
    try:
        own = _CGROUP.read_text().splitlines()[-1].rpartition(":")[2].lstrip("/")
        for folder in (_MOUNT / own, _MOUNT):
            events = folder / "memory.events"
            if events.exists():
                counts = dict(line.split() for line in events.read_text().splitlines())
                return int(counts["oom_kill"])
    except (OSError, ValueError, KeyError, IndexError):
        pass
    return None
