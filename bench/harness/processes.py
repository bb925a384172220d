"""Worker processes: start one as a user would, read its memory and CPU time, stop it and only it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1]
ROOT = BENCH.parent
STOP_SECONDS = 10.0
LOG_LINES = 2  # lines of the worker's log, shown when a measurement fails
KIBIBYTE, MEGABYTE = 1024, 1_000_000


class WorkerDied(Exception):
    """The worker process ended while it was being measured."""


@contextmanager
def worker_process(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=BENCH,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    except Exception as error:
        error.add_note("\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:]))
        raise
    finally:
        _stop(process)


def check_alive(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise WorkerDied(f"worker ended with code {process.returncode}: {process.args!r}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the session that this benchmark started, nothing else
    process.wait()


def tree(root: int) -> list[int]:
    """Return the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended in the meantime
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, frontier = [], [root]
    while frontier:
        pid = frontier.pop()
        found.append(pid)
        frontier += children.get(pid, [])
    return found


def resident_megabytes(root: int) -> float:
    """Return the RSS of the whole process tree."""
    kibibytes = 0
    for pid in tree(root):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                kibibytes += int(line.split()[1])
    return kibibytes * KIBIBYTE / MEGABYTE


def cpu_percent(root: int, seconds: float) -> float:
    """Return the share of one core that the process tree uses over the next seconds."""
    pids = tree(root)
    before, start = sum(map(cpu_seconds, pids)), time.monotonic()
    time.sleep(seconds)
    used, elapsed = sum(map(cpu_seconds, pids)) - before, time.monotonic() - start
    return 100 * used / elapsed


def cpu_of_server(root: int) -> float:
    """Return the CPU time of a server so far: of its processes, and of those that have ended."""
    used = 0.0
    for pid in tree(root):
        with suppress(OSError):  # it has just ended
            used += cpu_seconds(pid)
    reaped = (Path("/proc") / str(root) / "stat").read_text().rpartition(")")[2].split()[13:15]
    return used + sum(map(int, reaped)) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    # Linux's clock id of another process's CPU time: nanoseconds, where /proc/<pid>/stat has ticks of 10 ms.
    return time.clock_gettime((~pid << 3) | 2)
