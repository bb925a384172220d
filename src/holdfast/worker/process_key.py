"""Telling a process from a later one with the same pid, so that the claims of a dead one are rescued at once."""

from __future__ import annotations

import os
from pathlib import Path


def own() -> str:
    """boot : pid namespace : pid : start time; empty parts where the system does not tell."""
    try:
        started = _started(os.getpid())
    except OSError:
        started = None
    return f"{_machine()}:{os.getpid()}:{started or ''}"


def is_dead(key: str) -> bool:
    """True only when it is certain: a process of this machine and namespace that is no longer there."""
    machine, _, rest = key.rpartition(":")[0].rpartition(":")
    pid, started = rest, key.rpartition(":")[2]
    if not machine.strip(":") or machine != _machine() or not pid.isdigit() or not started:
        return False
    try:
        return _started(int(pid)) != started
    except OSError:  # no descriptor left to look with, say
        return False


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return f"{boot}:{namespace.replace(':', '')}"


def _started(pid: int) -> str | None:
    """The start time of a process that still runs; a zombie has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]
