"""The machine of a run: versions, processor, and the disk that the commits went to."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import apsw

DISTRIBUTIONS = (
    "backstay",
    "apsw",
    "pydantic",
    "msgspec",
    "huey",
    "persist-queue",
    "asyncpg",
    "pgqueuer",
    "procrastinate",
)
SYNC_TRIES = 100
PAGE = b"\0" * 4096
IN_MEMORY = ("tmpfs", "ramfs")


def describe(folder: Path) -> dict[str, Any]:
    device, file_system = _mount_of(folder)
    return {
        "python": platform.python_version(),
        "sqlite": {"apsw": apsw.sqlite_lib_version(), "stdlib (peers)": sqlite3.sqlite_version},
        "packages": {name: _version(name) for name in DISTRIBUTIONS},
        "kernel": platform.release(),
        "cpu": {"model": _cpu_model(), "count": os.cpu_count(), "load_average": os.getloadavg()},
        "disk": {
            "folder": str(folder),
            "device": device,
            "file_system": file_system,
            "fdatasync_ms": round(_sync_milliseconds(folder), 3),
        },
    }


def is_in_memory(folder: Path) -> bool:
    return _mount_of(folder)[1] in IN_MEMORY


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _mount_of(folder: Path) -> tuple[str, str]:
    """Return device and file system of the longest mount point above the folder."""
    best = ("", "", "")
    for line in Path("/proc/mounts").read_text().splitlines():
        device, point, file_system = line.split()[:3]
        if folder.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, device, file_system)
    return best[1], best[2]


def _sync_milliseconds(folder: Path) -> float:
    """Measure one durable write of a page: the lower bound of every commit."""
    path = folder / "sync-probe"
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNC_TRIES):
            start = time.perf_counter()
            file.write(PAGE)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    path.unlink()
    return median(times) * 1000
