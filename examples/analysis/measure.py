"""Measures a whole song: what an `analyze` job computes, without the queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from analysis import harmony, loudness, rhythm, sections
from analysis.models import AnalysisResult, Section
from analysis.sound import Sound, rate_of, read
from analysis.spectrum import Floats

_CURVE = 500  # points
Say = Callable[[float, str], object]  # progress, and the current step


def measure(path: Path, say: Say) -> tuple[Sound, AnalysisResult]:
    say(0.05, "reading")
    meter = loudness.Meter(rate_of(path))
    sound = read(path, meter)
    mono = sound.mono
    say(0.2, "loudness")
    powers = meter.powers
    say(0.35, "tempo")
    heard = rhythm.rhythm(mono)
    say(0.6, "key")
    notes = harmony.chroma(mono)
    key, key_confidence = harmony.key(notes)
    say(0.8, "sections")
    parts = sections.parts(mono, heard.beats, notes)
    return sound, AnalysisResult(
        duration_seconds=round(sound.seconds, 3),
        sample_rate=sound.rate,
        channels=sound.channels,
        tempo_bpm=round(heard.tempo, 2),
        tempo_confidence=round(heard.confidence, 3),
        key=key,
        key_confidence=round(key_confidence, 3),
        loudness_lufs=_rounded(loudness.gated(powers)),
        peak_dbfs=_rounded(meter.peak),
        loudness_curve=[round(float(value), 1) for value in loudness.curve(powers, _CURVE)],
        beats=_times(heard.beats),
        onsets=_times(heard.onsets),
        onset_strengths=_times(heard.strengths),
        sections=[
            Section(
                label=part.label,
                start=round(part.start, 3),
                end=round(part.end, 3),
                loudness_lufs=_rounded(loudness.gated(loudness.between(powers, part.start, part.end))),
            )
            for part in parts
        ],
    )


def _times(values: Floats) -> list[float]:
    return [float(value) for value in np.round(values, 3)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
