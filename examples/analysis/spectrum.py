"""Computes spectra over time."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from analysis.sound import RATE, Samples

Floats = NDArray[np.float64]
_FRAMES_AT_ONCE = 512  # limits the memory for a long song


def magnitudes(mono: Samples, window: int, hop: int) -> NDArray[np.float32]:
    """Return one row per `hop` samples, one column per frequency."""
    padded = np.pad(mono, window // 2)
    frames = sliding_window_view(padded, window)[::hop]
    shape = np.hanning(window).astype(np.float32)
    parts = [
        np.abs(np.fft.rfft(frames[at : at + _FRAMES_AT_ONCE] * shape, axis=1)).astype(np.float32)
        for at in range(0, len(frames), _FRAMES_AT_ONCE)
    ]
    return np.concatenate(parts)


def bands(magnitude: NDArray[np.float32], count: int = 40, lowest: float = 40.0, highest: float = 8_000.0) -> Floats:
    """Return the same in a few bands of equal perceived width, on a logarithmic scale."""
    bins = magnitude.shape[1]
    edges = np.geomspace(lowest, highest, count + 1) / (RATE / 2) * (bins - 1)
    starts = np.unique(np.round(edges).astype(int))
    energy = np.add.reduceat(magnitude.astype(np.float64) ** 2, starts[:-1], axis=1)
    return np.asarray(np.log1p(energy))
