"""Loudness as broadcasters measure it: ITU-R BS.1770-4, in LUFS."""

from __future__ import annotations

import math

import numpy as np

from analysis.sound import Sound
from analysis.spectrum import Floats

_BLOCK, _STEP = 0.4, 0.1  # seconds
_SILENCE = -70.0  # LUFS: blocks below this do not count
_BELOW = 10.0  # LU: nor do blocks this far below the mean of the others


def loudness(sound: Sound) -> float | None:
    """Return the loudness integrated over the whole song; None for silence."""
    return gated(block_powers(sound))


def peak(sound: Sound) -> float | None:
    """Return the largest sample, in dBFS; None for silence."""
    largest = float(np.abs(sound.samples).max())
    return 20 * math.log10(largest) if largest > 0 else None


def block_powers(sound: Sound) -> Floats:
    """Return the power of every block of 0.4 s, in steps of 0.1 s, weighted like human hearing."""
    from scipy.signal import lfilter  # imported here: it takes most of a second to load

    weighted = sound.samples.astype(np.float64)
    for b, a in (_shelf(sound.rate), _high_pass(sound.rate)):
        weighted = np.asarray(lfilter(b, a, weighted, axis=0))
    total = np.concatenate([[0.0], np.cumsum((weighted**2).sum(axis=1))])
    length, step = round(_BLOCK * sound.rate), round(_STEP * sound.rate)
    starts = np.arange(0, len(weighted) - length + 1, step)
    return np.asarray((total[starts + length] - total[starts]) / length)


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
