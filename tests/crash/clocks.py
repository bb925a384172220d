"""Clocks of processes under test, in one mapped file: fast, skewed, jumping or frozen as the harness says."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from holdfast.clock import MICROS, Instant

_EPOCH, _OFFSET, _SLOTS = 0, 1, 2  # cells: when the clocks began, how far all were moved, then two for each slot
_CELL_BYTES = 8


class Clocks:
    """What all clocks have in common, and the skew of each slot. A cell is written whole: readers need no lock."""

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
        """What a clock without skew says."""
        return self._start + self._passed() * self.rate // 1000 + self._cells[_OFFSET]

    def monotonic(self) -> float:
        """As fast as the wall clocks are, so that they do not seem to run away from it."""
        return self._passed() * self.rate / 1e9

    def _passed(self) -> int:
        return time.monotonic_ns() - self._cells[_EPOCH]

    def now(self, slot: int) -> Instant:
        skew, frozen_at = self._cells[_SLOTS + 2 * slot], self._cells[_SLOTS + 2 * slot + 1]
        return frozen_at or self.common() + skew

    def skew(self, slot: int) -> int:
        return self._cells[_SLOTS + 2 * slot]

    # What the harness does to them

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
