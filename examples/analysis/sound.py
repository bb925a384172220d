"""Reads and writes WAV files as arrays."""

from __future__ import annotations

import math
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import wavfile

RATE = 22_050  # the sample rate for tempo, key and sections; nothing relevant to them is above 11 kHz
SECONDS_MIN = 2.0
SECONDS_MAX = 20 * 60.0
RATE_MIN, RATE_MAX = (
    4_000,
    384_000,
)  # sample rates of a file: below, there is nothing to measure; above, it is not a real recording

Samples = NDArray[np.float32]

# What scipy raises for invalid files: a division by zero for zero channels, an unbound variable for missing chunks, and
# a memory error for a file that claims to have exabytes.
_UNREADABLE = (ValueError, EOFError, struct.error, IndexError, ArithmeticError, UnboundLocalError, MemoryError)


class BadAudio(ValueError):
    """This file can never be analysed: retries do not help."""


@dataclass(frozen=True, slots=True)
class Sound:
    samples: Samples  # one row per frame, one column per channel, from -1 to 1
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    @property
    def channels(self) -> int:
        return int(self.samples.shape[1])

    def mono(self) -> Samples:
        """Return all channels mixed to one, at RATE."""
        mixed: Samples = self.samples.mean(axis=1)
        if self.rate == RATE:
            return mixed
        from scipy.signal import resample_poly  # here: it takes most of a second to load

        common = math.gcd(self.rate, RATE)
        return np.asarray(resample_poly(mixed, RATE // common, self.rate // common), dtype=np.float32)


def read(path: Path) -> Sound:
    """Read a WAV file of integers or floats; raise BadAudio if it is not one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks that are not needed
            rate, data = wavfile.read(path)
    except _UNREADABLE as error:
        raise BadAudio(f"this is no WAV file that can be read: {error}") from None
    if not RATE_MIN <= rate <= RATE_MAX:
        raise BadAudio(f"{rate} samples a second: between {RATE_MIN} and {RATE_MAX} are taken")
    sound = Sound(_scaled(np.atleast_2d(data.T).T), int(rate))
    if not SECONDS_MIN <= sound.seconds <= SECONDS_MAX:
        raise BadAudio(
            f"{sound.seconds:.1f} s of sound: between {SECONDS_MIN:g} s and {SECONDS_MAX / 60:g} min are taken"
        )
    if not np.isfinite(sound.samples).all():
        raise BadAudio("there are samples that are no numbers")
    return sound


def _scaled(data: NDArray[Any]) -> Samples:
    if data.dtype == np.uint8:
        return np.asarray((data.astype(np.float32) - 128) / 128, dtype=np.float32)
    if np.issubdtype(data.dtype, np.integer):
        full = -float(np.iinfo(data.dtype).min)  # 24 bits are the upper part of 32
        return np.asarray(data / full, dtype=np.float32)
    return np.asarray(data, dtype=np.float32)


def write(path: Path, mono: Samples, rate: int = RATE) -> None:
    """Write 16-bit samples, which every program reads."""
    wavfile.write(path, rate, np.round(np.clip(mono, -1, 1) * 32_767).astype(np.int16))
