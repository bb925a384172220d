"""Handlers leave a mark in a memory-mapped file; the measuring process reads it without asking the queue.

The file is an array of 64-bit numbers: for each worker process how many handlers started and when the first one did,
and then one CLOCK_MONOTONIC stamp per job, which is comparable across processes. A mark costs well under a microsecond.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from pathlib import Path

PROCESSES = 8  # processes that may leave marks at once
COUNT, FIRST, STAMPS = 0, PROCESSES, 2 * PROCESSES  # cells: started handlers, first starts, then a stamp per job
CELL_BYTES = 8
FILE_VARIABLE = "BENCH_MARKS"


class Marks:
    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._path = path
        self._process: int | None = None  # the index of our counter; assigned with the first mark
        self._capacity = len(self._cells) - STAMPS
        self._lock = threading.Lock()  # a peer's handlers run in threads

    @classmethod
    def create(cls, path: Path, jobs: int) -> Marks:
        path.write_bytes(bytes(CELL_BYTES * (STAMPS + jobs)))
        return cls(path)

    @classmethod
    def from_environment(cls) -> Marks:
        return cls(Path(os.environ[FILE_VARIABLE]))

    def mark(self, number: int) -> None:
        """Leave a mark; call this on the first line of a handler. Numbers beyond the file (warm-up) are only
        counted."""
        now = time.monotonic_ns()
        cells = self._cells
        with self._lock:
            if self._process is None:
                self._process = self._join(now)
            if 0 <= number < self._capacity and not cells[STAMPS + number]:
                cells[STAMPS + number] = now
            cells[COUNT + self._process] += 1

    def _join(self, now: int) -> int:
        with self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            process = next(number for number in range(PROCESSES) if not self._cells[FIRST + number])
            self._cells[FIRST + process] = now
            return process

    def clear(self) -> None:
        for cell in range(len(self._cells)):
            self._cells[cell] = 0
        self._process = None

    @property
    def count(self) -> int:
        return sum(self._cells[COUNT : COUNT + PROCESSES])

    @property
    def first_ns(self) -> int:
        """Return when the first handler started; 0 if none has."""
        return min((first for first in self._cells[FIRST : FIRST + PROCESSES] if first), default=0)

    def stamps(self) -> list[int]:
        """Return one stamp per job, 0 for a job whose handler never started."""
        return self._cells[STAMPS:].tolist()
