"""Token buckets: how many requests there may be, for each of many. Pure: the time is told."""

from __future__ import annotations

import math
from collections import OrderedDict


class Buckets:
    """One bucket per name. Each begins full and gets `per_second` back, up to `burst`."""

    def __init__(self, per_second: float, burst: float, names_max: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._names_max = names_max  # those longest unused are forgotten, which makes them full
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has_one(self, name: str, now: float) -> bool:
        return self._at(name, now) >= 1

    def take(self, name: str, now: float) -> bool:
        """Take one, where there is one."""
        left = self._at(name, now)
        took = left >= 1
        self._left[name] = (left - took, now)
        self._left.move_to_end(name)
        if len(self._left) > self._names_max:
            self._left.popitem(last=False)
        return took

    def wait_seconds(self, name: str, now: float) -> int:
        """Until there is one again, in whole seconds."""
        missing = 1 - self._at(name, now)
        return max(1, math.ceil(missing / self._per_second))

    def _at(self, name: str, now: float) -> float:
        left, at = self._left.get(name, (self._burst, now))
        return min(self._burst, left + max(0.0, now - at) * self._per_second)
