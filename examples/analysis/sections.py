"""Finds the parts of a song: where its sound changes for long, and which parts sound alike.

Every beat is described by its timbre, its notes and its loudness. In the matrix of similarities between beats, a
boundary looks like the middle of a chessboard (Foote, 2000).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.fft import dct
from scipy.ndimage import maximum_filter1d

from analysis import harmony, rhythm
from analysis.sound import RATE, Samples
from analysis.spectrum import Floats, bands, magnitudes

_TIMBRES = 8
_NOTES = 0.3  # the weight of notes relative to timbre: chords change within a part, too
_REACH = 12  # beats to either side of a boundary that are compared
_SHORTEST = 8  # beats
_FINE = 4  # beats by which a boundary may be shifted to the best position
_ALIKE = 0.5  # parts nearer than this are the same kind; 0: the same, 2: opposites
_HOP = 1_024


@dataclass(frozen=True, slots=True)
class Part:
    start: float
    end: float
    label: str  # A for the first kind of part, B for the next, …


def parts(mono: Samples, beats: Floats, notes: Floats) -> list[Part]:
    length = len(mono) / RATE
    if len(beats) < 2 * _SHORTEST:
        return [Part(0.0, length, "A")]
    edges = np.concatenate([beats, [length]])
    described = describe(mono, edges, notes)
    cuts = sorted({0, *boundaries(described), len(beats)})
    means = np.array([described[a:b].mean(axis=0) for a, b in pairwise(cuts)])
    times = [0.0, *(float(beats[cut]) for cut in cuts[1:-1]), length]
    return merged([Part(a, b, label) for (a, b), label in zip(pairwise(times), labels(means), strict=True)])


def describe(mono: Samples, edges: Floats, notes: Floats) -> Floats:
    """Return one row of features per beat."""
    loud = bands(magnitudes(mono, rhythm.WINDOW * 2, _HOP), 30)
    shape = dct(loud, axis=1, norm="ortho")
    timbre = per_beat(shape[:, 1 : _TIMBRES + 1], edges, RATE / _HOP)
    volume = per_beat(shape[:, :1], edges, RATE / _HOP)
    played = per_beat(notes, edges, RATE / harmony.HOP)
    scaled = [_standard(each) / np.sqrt(each.shape[1]) for each in (timbre, volume, played)]
    return np.concatenate([scaled[0], scaled[1], _NOTES * scaled[2]], axis=1)


def per_beat(rows: Floats, edges: Floats, per_second: float) -> Floats:
    at = np.clip(np.round(edges * per_second).astype(int), 0, len(rows))
    return np.array([rows[a : max(b, a + 1)].mean(axis=0) if a < len(rows) else rows[-1] for a, b in pairwise(at)])


def boundaries(described: Floats) -> list[int]:
    """Return the beats at which a part begins, except the first part."""
    smooth = np.array([described[max(0, i - 1) : i + 2].mean(axis=0) for i in range(len(described))])
    size = np.linalg.norm(smooth, axis=1, keepdims=True)
    unit = smooth / np.maximum(size, 1e-9)
    alike = np.pad(unit @ unit.T, _REACH, mode="edge")
    side = np.concatenate([-np.ones(_REACH), np.ones(_REACH)])
    fade = np.exp(-0.5 * ((np.arange(2 * _REACH) - _REACH + 0.5) / (_REACH / 2)) ** 2)
    board = np.outer(side * fade, side * fade)
    board /= np.abs(board).sum()
    novelty = np.array([(alike[i : i + 2 * _REACH, i : i + 2 * _REACH] * board).sum() for i in range(len(described))])
    near = maximum_filter1d(novelty, 2 * _SHORTEST - 1)
    found = np.flatnonzero((novelty == near) & (novelty >= max(0.1, novelty.mean() + 0.5 * novelty.std())))
    return [divided(described, int(at)) for at in found if _SHORTEST <= at <= len(described) - _SHORTEST]


def divided(described: Floats, about: int) -> int:
    """Return the beat near a boundary that separates the two sides best."""
    low, high = max(0, about - _REACH), min(len(described), about + _REACH)

    def spread(cut: int) -> float:
        return sum(float(((rows - rows.mean(axis=0)) ** 2).sum()) for rows in (described[low:cut], described[cut:high]))

    return min(range(max(low + 1, about - _FINE), min(high - 1, about + _FINE) + 1), key=spread)


def labels(means: Floats) -> list[str]:
    """Return a letter for each kind of part, in order of first appearance."""
    if len(means) == 1:
        return ["A"]
    kinds = fcluster(linkage(means, "average", metric="cosine"), _ALIKE, "distance")
    order = list(dict.fromkeys(kinds.tolist()))
    return [chr(ord("A") + min(order.index(kind), 25)) for kind in kinds.tolist()]


def merged(found: list[Part]) -> list[Part]:
    """Merge adjacent parts of the same kind."""
    kept: list[Part] = []
    for part in found:
        if kept and kept[-1].label == part.label:
            part = Part(kept.pop().start, part.end, part.label)
        kept.append(part)
    return kept


def _standard(rows: Floats) -> Floats:
    spread = rows.std(axis=0)
    return np.asarray((rows - rows.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0))
