"""The key: which of the 24 scales the song's notes fit best."""

from __future__ import annotations

import numpy as np

from analysis.sound import RATE, Samples
from analysis.spectrum import Floats, magnitudes

WINDOW, HOP = 8_192, 2_048
NAMES = ("C", "C#", "D", "Eb", "E", "F", "F#", "G", "Ab", "A", "Bb", "B")
# How well each of the twelve notes fits a key, as rated by listeners (Krumhansl and Kessler, 1982).
_MAJOR = np.array([6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88])
_MINOR = np.array([6.33, 2.68, 3.52, 5.38, 2.60, 3.53, 2.54, 4.75, 3.98, 2.69, 3.34, 3.17])
_LOWEST, _HIGHEST = 60.0, 1_500.0  # below, bins are wider than notes; above, overtones prevail


def chroma(mono: Samples) -> Floats:
    """Return one row per moment, one column per note from C to B: its strength in all octaves."""
    return np.concatenate([_notes(part.astype(np.float64)) for part in magnitudes(mono, WINDOW, HOP)])


def _notes(magnitude: Floats) -> Floats:
    frequencies = np.fft.rfftfreq(WINDOW, 1 / RATE)
    # Only peaks are notes; the slopes of a peak would count for its neighbours.
    inner = magnitude[:, 1:-1]
    peaks = np.zeros_like(magnitude)
    peaks[:, 1:-1] = np.where((inner > magnitude[:, :-2]) & (inner >= magnitude[:, 2:]), inner, 0)
    heard = (frequencies >= _LOWEST) & (frequencies <= _HIGHEST)
    notes = np.round(12 * np.log2(frequencies[heard] / 440.0) + 69).astype(int) % 12
    rows = np.zeros((len(magnitude), 12))
    np.add.at(rows.T, notes, np.sqrt(peaks[:, heard]).T)
    return rows


def key(rows: Floats) -> tuple[str, float]:
    """Return the name of the key, and its lead over the next one, 0 to 1; "unknown" for silence."""
    total = rows.sum(axis=0)
    if total.max() <= 0 or np.ptp(total) < 1e-9:
        return "unknown", 0.0
    scores = [
        (float(np.corrcoef(np.roll(profile, tonic), total)[0, 1]), f"{NAMES[tonic]} {mode}")
        for profile, mode in ((_MAJOR, "major"), (_MINOR, "minor"))
        for tonic in range(12)
    ]
    (best, name), (second, _) = sorted(scores, reverse=True)[:2]
    return name, float(np.clip((best - second) / max(best, 1e-9), 0, 1)) if best > 0 else 0.0
