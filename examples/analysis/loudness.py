"""Loudness as broadcasters measure it: ITU-R BS.1770-4, in LUFS."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from analysis.sound import Samples
from analysis.spectrum import Floats

_BLOCK, _STEP = 0.4, 0.1  # seconds
_SILENCE = -70.0  # LUFS: blocks below this do not count
_BELOW = 10.0  # LU: nor do blocks this far below the mean of the others


class Meter:
    """Hears a song block by block; afterwards it has its powers and its peak."""

    def __init__(self, rate: int) -> None:
        self._length, self._step = round(_BLOCK * rate), round(_STEP * rate)
        self._filters = [_shelf(rate), _high_pass(rate)]
        self._states: list[Floats] = []
        self._heard, self._total, self._largest = 0, 0.0, 0.0
        # The energy up to the beginning and up to the end of every span of 0.4 s.
        self._begun: list[Floats] = [np.zeros(1)]
        self._ended: list[Floats] = []

    def __call__(self, block: Samples) -> None:
        from scipy.signal import lfilter  # imported here: it takes most of a second to load

        self._largest = max(self._largest, float(np.abs(block).max()))
        weighted: Floats = block.astype(np.float64)
        if not self._states:
            self._states = [np.zeros((2, block.shape[1])) for _ in self._filters]
        for place, (b, a) in enumerate(self._filters):
            weighted, self._states[place] = lfilter(b, a, weighted, axis=0, zi=self._states[place])
        total = self._total + np.cumsum((weighted**2).sum(axis=1))
        first, self._heard, self._total = self._heard, self._heard + len(block), float(total[-1])
        self._begun.append(total[self._multiples(first, 0) - first - 1])
        self._ended.append(total[self._multiples(first, self._length) - first - 1])

    def _multiples(self, first: int, offset: int) -> NDArray[np.int64]:
        """Return the positions within the last block at which a span begins, or ends."""
        number = max(0 if offset else 1, (first - offset) // self._step + 1)
        return np.arange(number * self._step + offset, self._heard + 1, self._step)

    @property
    def powers(self) -> Floats:
        """The power of every block of 0.4 s, in steps of 0.1 s, weighted like human hearing."""
        ended = np.concatenate(self._ended) if self._ended else np.zeros(0)
        return np.asarray((ended - np.concatenate(self._begun)[: len(ended)]) / self._length)

    @property
    def peak(self) -> float | None:
        """The largest sample, in dBFS; None for silence."""
        return 20 * math.log10(self._largest) if self._largest > 0 else None


def gated(powers: Floats) -> float | None:
    heard = powers[powers > _power(_SILENCE)]
    if not len(heard):
        return None
    return _lufs(float(heard[heard > heard.mean() / 10 ** (_BELOW / 10)].mean()))


def between(powers: Floats, start: float, end: float) -> Floats:
    """Return the blocks that begin within a time span."""
    return powers[round(start / _STEP) : max(round(end / _STEP), round(start / _STEP) + 1)]


def curve(powers: Floats, most: int) -> Floats:
    """Return LUFS at moments spread evenly over the song."""
    loud = -0.691 + 10 * np.log10(np.maximum(powers, _power(_SILENCE)))
    return np.array([part.mean() for part in np.array_split(loud, min(most, len(loud)))])


def _lufs(power: float) -> float:
    return -0.691 + 10 * math.log10(power)


def _power(lufs: float) -> float:
    return float(10 ** ((lufs + 0.691) / 10))


# The two filters of the standard, for any sample rate: the standard has them for 48 kHz, derived from these analogue
# ones.


def _shelf(rate: int) -> tuple[Floats, Floats]:
    """Return the filter for the effect of the head: 4 dB more above 2 kHz."""
    k, q, high = math.tan(math.pi * 1681.974450955533 / rate), 0.7071752369554196, 10 ** (3.999843853973347 / 20)
    band = high**0.4996667741545416
    b = np.array([high + band * k / q + k * k, 2 * (k * k - high), high - band * k / q + k * k])
    a = np.array([1 + k / q + k * k, 2 * (k * k - 1), 1 - k / q + k * k])
    return b / a[0], a / a[0]


def _high_pass(rate: int) -> tuple[Floats, Floats]:
    """Return the high-pass filter: below 40 Hz, people hear little."""
    k, q = math.tan(math.pi * 38.13547087602444 / rate), 0.5003270373238773
    a = np.array([1 + k / q + k * k, 2 * (k * k - 1), 1 - k / q + k * k])
    return np.array([1.0, -2.0, 1.0]), a / a[0]
