"""Computes spectra over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from analysis.sound import RATE, Samples

Floats = NDArray[np.float64]
_FRAMES_AT_ONCE = 512  # limits the memory for a long song


def magnitudes(mono: Samples, window: int, hop: int) -> Iterator[NDArray[np.float32]]:
    """Yield parts with one row per `hop` samples, one column per frequency. All of a long song would not fit into
    memory: its caller takes from each part what it needs."""
    shape = np.hanning(window).astype(np.float32)
    count = len(mono) // hop + 1  # the first is around the first sample
    for at in range(0, count, _FRAMES_AT_ONCE):
        last = min(at + _FRAMES_AT_ONCE, count) - 1
        start, end = at * hop - window // 2, last * hop + window - window // 2
        part = mono[max(0, start) : end]
        part = np.pad(part, (max(0, -start), max(0, end - len(mono))))
        frames = sliding_window_view(part, window)[::hop]
        yield np.abs(np.fft.rfft(frames * shape, axis=1)).astype(np.float32)


def bands(parts: Iterable[NDArray[np.float32]], count: int = 40) -> Floats:
    """Return spectra in a few bands of equal perceived width, on a logarithmic scale."""
    return np.concatenate([_bands(part, count) for part in parts])


def _bands(magnitude: NDArray[np.float32], count: int, lowest: float = 40.0, highest: float = 8_000.0) -> Floats:
    bins = magnitude.shape[1]
    edges = np.geomspace(lowest, highest, count + 1) / (RATE / 2) * (bins - 1)
    starts = np.unique(np.round(edges).astype(int))
    energy = np.add.reduceat(magnitude.astype(np.float64) ** 2, starts[:-1], axis=1)
    return np.asarray(np.log1p(energy))
