"""Handlers leave a mark in a memory-mapped file; the measuring process reads it without asking the queue.

The file is an array of 64-bit numbers: how many handlers started, when the first one did, and then one
CLOCK_MONOTONIC stamp per job, which is comparable across processes. A mark costs well under a microsecond.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

COUNT, FIRST, STAMPS = 0, 1, 2  # cells: started handlers, first start, then a stamp per job
CELL_BYTES = 8
FILE_VARIABLE = "BENCH_MARKS"


class Marks:
    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
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
        """Called on the first line of a handler. Numbers beyond the file (warm-up) are only counted."""
        now = time.monotonic_ns()
        cells = self._cells
        with self._lock:
            if not cells[FIRST]:
                cells[FIRST] = now
            if 0 <= number < self._capacity and not cells[STAMPS + number]:
                cells[STAMPS + number] = now
            cells[COUNT] += 1

    def clear(self) -> None:
        for cell in range(len(self._cells)):
            self._cells[cell] = 0

    @property
    def count(self) -> int:
        return self._cells[COUNT]

    @property
    def first_ns(self) -> int:
        return self._cells[FIRST]

    def stamps(self) -> list[int]:
        """One stamp per job, 0 for a job whose handler never started."""
        return self._cells[STAMPS:].tolist()
