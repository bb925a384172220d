"""Reads songs (WAV, FLAC, OGG, MP3) block by block: twenty minutes in stereo would not fit into memory as one array."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE = 22_050  # the sample rate for tempo, key and sections; nothing relevant to them is above 11 kHz
SECONDS_MIN = 2.0
SECONDS_MAX = 20 * 60.0
RATE_MIN, RATE_MAX = (
    4_000,
    384_000,
)  # sample rates of a file: below, there is nothing to measure; above, it is not a real recording
CHANNELS_MAX = 16
FORMATS = {"WAV": "WAV", "WAVEX": "WAV", "RF64": "WAV", "FLAC": "FLAC", "OGG": "OGG", "MP3": "MP3"}
_BLOCK_SECONDS = 5.0
_TAPS = 10  # of the filter of resample_poly, to either side, in samples of the lower rate

Samples = NDArray[np.float32]
Ear = Callable[[Samples], object]  # is given each block: one row per frame, one column per channel


class BadAudio(ValueError):
    """This file can never be analysed: retries do not help."""


@dataclass(frozen=True, slots=True)
class Sound:
    """A song as it is analysed: all channels mixed to one, at RATE."""

    mono: Samples
    rate: int  # of the file, as are the next two
    channels: int
    frames: int

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


def rate_of(path: Path) -> int:
    """Return the sample rate of a file that can be analysed; raise BadAudio for any other."""
    with _opened(path) as file:
        return int(file.samplerate)


def read(path: Path, *ears: Ear) -> Sound:
    """Read a song in one pass, during which every ear hears each block."""
    with _opened(path) as file:
        rate, channels, frames = int(file.samplerate), int(file.channels), 0
        resampler = Resampler(rate)
        parts = []
        for block in _blocks(file):
            frames += len(block)
            if frames > SECONDS_MAX * rate:
                raise _wrong_length(frames / rate)
            if not np.isfinite(block).all():
                raise BadAudio("there are samples that are no numbers")
            for ear in ears:
                ear(block)
            parts.append(resampler.add(block.mean(axis=1)))
        parts.append(resampler.rest())
    if frames < SECONDS_MIN * rate:
        raise _wrong_length(frames / rate)
    return Sound(np.concatenate(parts), rate, channels, frames)


def _opened(path: Path):  # type: ignore[no-untyped-def]  # the library has no types
    import soundfile  # here: the routes do not need it

    try:
        file = soundfile.SoundFile(path)
    except (soundfile.SoundFileError, TypeError, ValueError) as error:
        raise _unreadable(error) from None
    if file.format not in FORMATS:
        raise BadAudio(f"this is {file.format}: {', '.join(dict.fromkeys(FORMATS.values()))} are taken")
    if not RATE_MIN <= file.samplerate <= RATE_MAX:
        raise BadAudio(f"{file.samplerate} samples a second: between {RATE_MIN} and {RATE_MAX} are taken")
    if file.channels > CHANNELS_MAX:
        raise BadAudio(f"{file.channels} channels: up to {CHANNELS_MAX} are taken")
    return file


def _blocks(file) -> Iterator[Samples]:  # type: ignore[no-untyped-def]
    """Yield the song until its end, whatever its header claims: it can be a stream of unknown length, or cut off."""
    import soundfile

    size = round(_BLOCK_SECONDS * file.samplerate)
    while True:
        try:
            block = file.read(size, dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, MemoryError) as error:
            raise _unreadable(error) from None
        if not len(block):
            return
        yield block


def _unreadable(error: Exception) -> BadAudio:
    kinds = ", ".join(dict.fromkeys(FORMATS.values()))
    why = getattr(error, "error_string", error)  # without the path
    return BadAudio(f"this is no sound file that can be read ({kinds}): {why}")


def _wrong_length(seconds: float) -> BadAudio:
    return BadAudio(f"{seconds:.1f} s of sound: between {SECONDS_MIN:g} s and {SECONDS_MAX / 60:g} min are taken")


class Resampler:
    """Resamples to RATE block by block: each with some samples of its neighbours, so that there are no seams."""

    def __init__(self, rate: int) -> None:
        common = math.gcd(rate, RATE)
        self._up, self._down = RATE // common, rate // common
        # In samples of the file, a multiple of `down`: then the samples of all blocks fall on the same grid.
        reach = _TAPS * max(self._up, self._down) / self._up + 1
        self._margin = self._down * math.ceil(reach / self._down)
        self._held: Samples = np.zeros(self._margin, dtype=np.float32)  # what comes before the song is silence

    def add(self, mono: Samples) -> Samples:
        if self._up == self._down:
            return mono
        self._held = np.concatenate([self._held, mono])
        ready = (len(self._held) - 2 * self._margin) // self._down * self._down
        if ready <= 0:
            return np.zeros(0, dtype=np.float32)
        return self._take(ready)

    def rest(self) -> Samples:
        """Return what is left: as many samples as a song of this length has at RATE."""
        if self._up == self._down:
            return np.zeros(0, dtype=np.float32)
        left = len(self._held) - self._margin
        self._held = np.concatenate([self._held, np.zeros(2 * self._margin + self._down, dtype=np.float32)])
        return self._take(-(-left // self._down) * self._down)[: -(-left * self._up // self._down)]

    def _take(self, ready: int) -> Samples:
        from scipy.signal import resample_poly  # here: it takes most of a second to load

        window = self._held[: ready + 2 * self._margin]
        self._held = self._held[ready:].copy()
        edge = self._margin * self._up // self._down
        made = np.asarray(resample_poly(window, self._up, self._down), dtype=np.float32)
        return made[edge : edge + ready * self._up // self._down]


def write(path: Path, mono: Samples, rate: int = RATE) -> None:
    """Write 16-bit samples, which every program reads."""
    from scipy.io import wavfile

    wavfile.write(path, rate, np.round(np.clip(mono, -1, 1) * 32_767).astype(np.int16))
