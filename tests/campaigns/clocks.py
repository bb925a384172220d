"""Clocks of processes under test, in one mapped file: fast, skewed, jumping or frozen, controlled by the harness."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from backstay.clock import MICROS, Instant

_EPOCH, _OFFSET, _SLOTS = 0, 1, 2  # cells: the start of the clocks, their common shift, then two per slot
_CELL_BYTES = 8


class Clocks:
    """The common state of all clocks, and the skew of each slot. Writing a cell is atomic: readers need no lock."""

    def __init__(self, path: Path, start: Instant, rate: int) -> None:
        self._start = start
        self.rate = rate
        with path.open("r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    @classmethod
    def create(cls, path: Path, slots: int, start: Instant, rate: int) -> Clocks:
        path.write_bytes(bytes(_CELL_BYTES * (_SLOTS + 2 * slots)))
        clocks = cls(path, start, rate)
        clocks._cells[_EPOCH] = time.monotonic_ns()
        return clocks

    def common(self) -> Instant:
        """Return the time of a clock without skew."""
        return self._start + self._passed() * self.rate // 1000 + self._cells[_OFFSET]

    def monotonic(self) -> float:
        """Return a monotonic time that runs as fast as the wall clocks."""
        return self._passed() * self.rate / 1e9

    def _passed(self) -> int:
        return time.monotonic_ns() - self._cells[_EPOCH]

    def now(self, slot: int) -> Instant:
        skew, frozen_at = self._cells[_SLOTS + 2 * slot], self._cells[_SLOTS + 2 * slot + 1]
        return frozen_at or self.common() + skew

    def skew(self, slot: int) -> int:
        return self._cells[_SLOTS + 2 * slot]

    # Control by the harness

    def move_all(self, seconds: float) -> None:
        self._cells[_OFFSET] += round(seconds * MICROS)

    def set_skew(self, slot: int, seconds: float) -> None:
        self._cells[_SLOTS + 2 * slot] = round(seconds * MICROS)
        self._cells[_SLOTS + 2 * slot + 1] = 0

    def freeze(self, slot: int) -> None:
        self._cells[_SLOTS + 2 * slot + 1] = self.now(slot)


class SlotClock:
    """One process's clock."""

    def __init__(self, clocks: Clocks, slot: int) -> None:
        self._clocks = clocks
        self._slot = slot

    def now(self) -> Instant:
        return self._clocks.now(self._slot)

    def monotonic(self) -> float:
        return self._clocks.monotonic()
