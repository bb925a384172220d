"""`Backoff`: how long a failed job waits before its next attempt. Pure: the random number is an argument."""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec

from backstay.clock import MICROS, seconds
from backstay.errors import InvalidOption
from backstay.limits import DELAY_SECONDS_MAX


class ExponentialBackoff(msgspec.Struct, frozen=True, tag_field="kind", tag="exponential"):
    """A `Backoff` as it is stored with its job type. Another kind is another struct, with a tag of its own."""

    base: float
    factor: float
    max: float
    jitter: float


StoredBackoff = ExponentialBackoff


class Backoff:
    """delay = min(max, base * factor ** (failures - 1)), plus or minus `jitter` of it. Numbers are seconds."""

    __slots__ = ("base", "factor", "jitter", "max")

    base: float
    factor: float
    max: float
    jitter: float

    def __init__(
        self,
        base: float | timedelta = 60,
        factor: float = 2,
        max: float | timedelta = 3600,
        jitter: float = 0.1,
    ) -> None:
        self.base, self.factor, self.max, self.jitter = (
            seconds(base),
            float(factor),
            seconds(max),
            float(jitter),
        )
        checks = {
            "base": self.base >= 0,
            "factor": self.factor >= 1,
            "max": self.max >= 0,
            "jitter": 0 <= self.jitter <= 1,
        }
        for name, holds in checks.items():
            if not holds or not math.isfinite(getattr(self, name)):
                raise InvalidOption(
                    f"Backoff {name}={getattr(self, name)}: base and max are seconds >= 0, factor >= 1, jitter 0 to 1"
                )

    @classmethod
    def of(cls, stored: StoredBackoff | None) -> Backoff:
        """Return the backoff that was stored; the default if none was."""
        return cls() if stored is None else cls(stored.base, stored.factor, stored.max, stored.jitter)

    def stored(self) -> StoredBackoff:
        return ExponentialBackoff(self.base, self.factor, self.max, self.jitter)

    def delay_micros(self, failures: int, draw: float) -> int:
        """Return the delay; `draw` is uniform in [0, 1). The cap holds after jitter too."""
        try:
            delay = self.base * self.factor ** (failures - 1)
        except OverflowError:
            delay = self.max
        delay = min(self.max, delay)
        delay = min(self.max, delay * (1 + self.jitter * (2 * draw - 1)))
        return round(min(delay, DELAY_SECONDS_MAX) * MICROS)

    def __repr__(self) -> str:
        return f"Backoff(base={self.base:g}, factor={self.factor:g}, max={self.max:g}, jitter={self.jitter:g})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backoff) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))
