"""Onsets, beats and tempo.

At an onset, energy rises in several bands at once: the sum of the rises is the onset strength. Its period is the tempo;
beats are the path through the song that hits strong onsets and keeps this period.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter1d, maximum_filter1d, uniform_filter1d

from analysis.sound import RATE, Samples
from analysis.spectrum import Floats, bands, magnitudes

WINDOW, HOP = 1_024, 256
FRAMES_PER_SECOND = RATE / HOP
TEMPO_MIN, TEMPO_MAX, TEMPO_USUAL = 50.0, 210.0, 115.0
_OCTAVES = 0.8  # how far from the usual tempo, in octaves, a period may be before its weight drops
_TIGHTNESS = 200.0  # the cost of an uneven beat, relative to the strength of an onset
_RISE = 0.010  # seconds: a rise is visible this long before the middle of its window


@dataclass(frozen=True, slots=True)
class Rhythm:
    tempo: float  # beats per minute; 0 where nothing repeats
    confidence: float  # 0 to 1
    beats: Floats  # seconds
    onsets: Floats  # seconds
    strengths: Floats  # of each onset, 0 to 1


def rhythm(mono: Samples) -> Rhythm:
    strength = onset_strength(mono)
    at = onset_frames(strength)
    onsets = seconds(at)
    strengths = strength[at] / max(float(strength.max()), 1e-9)
    period, confidence = beat_period(strength)
    if period == 0:
        return Rhythm(0.0, 0.0, np.zeros(0), onsets, strengths)
    beats = seconds(beat_frames(strength, period))
    return Rhythm(steady_tempo(beats, period), confidence, beats, onsets, strengths)


def seconds(frames: Floats | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    return np.maximum(np.asarray(frames, dtype=np.float64) / FRAMES_PER_SECOND + _RISE, 0.0)


def onset_strength(mono: Samples) -> Floats:
    loud = bands(magnitudes(mono, WINDOW, HOP))
    rise = np.maximum(loud[2:] - loud[:-2], 0).mean(axis=1)
    rise = np.concatenate([np.zeros(1), rise, np.zeros(1)])
    rise -= uniform_filter1d(rise, int(FRAMES_PER_SECOND))
    rise = np.maximum(rise, 0)
    scale = rise.std()
    return np.asarray(rise / scale if scale > 0 else rise)


def onset_frames(strength: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the peaks: the largest within 50 ms on either side, and clearly above their surroundings."""
    around = uniform_filter1d(strength, int(0.4 * FRAMES_PER_SECOND))
    near = maximum_filter1d(strength, 2 * int(0.05 * FRAMES_PER_SECOND) + 1)
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = np.flatnonzero((strength == near) & (strength > around + 0.5))
    return found


def beat_period(strength: Floats) -> tuple[float, float]:
    """Return the period in frames and its confidence: the lag at which the song is most similar to itself, with a
    preference for common tempos."""
    smooth = gaussian_filter1d(strength, 1.5)
    size = 2 * len(smooth)
    power = np.abs(np.fft.rfft(smooth - smooth.mean(), size)) ** 2
    alike = np.fft.irfft(power, size)[: len(smooth)]
    if alike[0] <= 0:
        return 0.0, 0.0
    alike = alike / alike[0]
    lags = np.arange(60 * FRAMES_PER_SECOND / TEMPO_MAX, 60 * FRAMES_PER_SECOND / TEMPO_MIN, 0.25)

    def at(lag: Floats) -> Floats:
        return np.asarray(np.interp(lag, np.arange(len(alike)), alike, right=0.0))

    score = at(lags) + 0.5 * at(2 * lags) + 0.5 * at(4 * lags)  # prefer a beat that forms bars
    away = np.log2(60 * FRAMES_PER_SECOND / lags / TEMPO_USUAL)
    score = np.maximum(score, 0) * np.exp(-0.5 * (away / _OCTAVES) ** 2)
    best = int(np.argmax(score))
    return (float(lags[best]), float(np.clip(at(lags[best : best + 1])[0], 0, 1))) if score[best] > 0 else (0.0, 0.0)


def beat_frames(strength: Floats, period: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the best path: each beat at a strong onset, about one period after the previous beat."""
    smooth = gaussian_filter1d(strength, period / 32)
    total = smooth.copy()
    before = np.full(len(smooth), -1, dtype=np.int64)
    back = np.arange(-round(2 * period), -round(period / 2) + 1)
    cost = -_TIGHTNESS * np.log(-back / period) ** 2
    for frame in range(-back[-1], len(smooth)):
        reach = back[frame + back >= 0]
        scores = total[frame + reach] + cost[-len(reach) :]
        best = int(np.argmax(scores))
        if scores[best] > 0:
            total[frame] += scores[best]
            before[frame] = frame + reach[best]
    last = max(0, len(total) - round(period))
    frame = last + int(np.argmax(total[last:]))
    beats = []
    while frame >= 0:
        beats.append(frame)
        frame = int(before[frame])
    return np.array(beats[::-1], dtype=np.int64)


def steady_tempo(beats: Floats, period: float) -> float:
    """Return beats per minute from a line fitted through the beats: more precise than one frame."""
    if len(beats) < 4:
        return 60 * FRAMES_PER_SECOND / period
    step = float(np.median(np.diff(beats)))
    count = np.concatenate([[0], np.cumsum(np.maximum(np.round(np.diff(beats) / step), 1))])
    slope = float(np.polyfit(count, beats, 1)[0])
    return 60 / slope
