"""Synthetic songs to try it with: tempo, key, parts and the time of every line are known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from analysis.harmony import NAMES
from analysis.sound import RATE, Samples

BEATS_PER_BAR = 4
_CHORDS = {"major": (0, 5, 7, 0), "minor": (0, 5, 7, 0)}  # steps above the first note, one for each bar
_SCALE = {"major": (0, 2, 4, 5, 7, 9, 11), "minor": (0, 2, 3, 5, 7, 8, 10)}


@dataclass(frozen=True, slots=True)
class Song:
    title: str
    tempo: float
    tonic: str
    mode: str
    form: tuple[tuple[str, int], ...]  # kinds of parts and their bars: intro, verse, chorus
    stanzas: tuple[tuple[str, ...], ...] = ()  # one for each verse and chorus, in order

    @property
    def key(self) -> str:
        return f"{self.tonic} {self.mode}"

    @property
    def bar(self) -> float:
        return BEATS_PER_BAR * 60 / self.tempo

    @property
    def starts(self) -> list[float]:
        """Return when each part begins, in seconds."""
        bars = np.concatenate([[0], np.cumsum([count for _, count in self.form])[:-1]])
        return [float(each) * self.bar for each in bars]

    @property
    def lyrics(self) -> str:
        return "\n\n".join("\n".join(stanza) for stanza in self.stanzas)

    def line_times(self) -> list[float]:
        """Return when each line is sung: lines share the bars of their part evenly."""
        sung = [(start, bars) for start, (kind, bars) in zip(self.starts, self.form, strict=True) if kind != "intro"]
        return [
            start + self.bar * place * bars / len(stanza)
            for (start, bars), stanza in zip(sung, self.stanzas, strict=False)
            for place in range(len(stanza))
        ]


def sing(song: Song) -> Samples:
    """Return the samples of the song, from -1 to 1."""
    length = round((song.starts[-1] + song.form[-1][1] * song.bar + 1.0) * RATE)
    mix = np.zeros(length, dtype=np.float32)
    noise = np.random.default_rng(7)
    tonic = 48 + NAMES.index(song.tonic)
    for start, (kind, bars) in zip(song.starts, song.form, strict=True):
        for number in range(bars):
            root = tonic + _CHORDS[song.mode][number % 4]
            _bar(mix, start + number * song.bar, song, kind, root, noise)
    for place, at in enumerate(song.line_times()):
        _line(mix, at, song, tonic, place)
    return np.asarray(0.8 * mix / np.abs(mix).max(), dtype=np.float32)


def _bar(mix: Samples, at: float, song: Song, kind: str, root: int, noise: np.random.Generator) -> None:
    beat = song.bar / BEATS_PER_BAR
    third = 4 if song.mode == "major" or (root % 12) == (NAMES.index(song.tonic) + 7) % 12 else 3  # V is major in minor
    loud = {"intro": 0.5, "verse": 0.7, "chorus": 1.0}[kind]
    for note in (root, root + third, root + 7):
        _add(mix, at, 0.16 * loud * _tone(note, song.bar, overtones=3 if kind == "intro" else 5))
        if kind == "chorus":
            _add(mix, at, 0.12 * _tone(note + 12, song.bar, overtones=8))
    for number in range(BEATS_PER_BAR):
        now = at + number * beat
        if kind == "intro":
            _add(mix, now, 0.3 * _hit(noise, 0.03))
            continue
        _add(mix, now, loud * (0.9 * _kick() if number % 2 == 0 else 0.5 * _hit(noise, 0.12)))
        _add(mix, now, 0.3 * loud * _tone(root - 12, beat * 0.9, overtones=3))
        if kind == "chorus":
            _add(mix, now + beat / 2, 0.25 * _hit(noise, 0.05))


def _line(mix: Samples, at: float, song: Song, tonic: int, place: int) -> None:
    """Return four notes of the scale, sung with a clear onset."""
    scale = _SCALE[song.mode]
    for number, step in enumerate((4, 2, 1, 0) if place % 2 else (0, 2, 4, 2)):
        note = tonic + 12 + scale[step % 7]
        _add(mix, at + number * song.bar / BEATS_PER_BAR, 0.4 * _tone(note, song.bar / 5, overtones=6, attack=0.01))


@cache
def _tone(note: int, seconds: float, *, overtones: int, attack: float = 0.005) -> Samples:
    time = np.arange(round(seconds * RATE)) / RATE
    frequency = 440.0 * 2 ** ((note - 69) / 12)
    wave = sum(np.sin(2 * np.pi * frequency * n * time) / n**1.5 for n in range(1, overtones + 1))
    envelope = np.minimum(time / attack, 1) * np.exp(-1.2 * time / seconds) * np.minimum((seconds - time) / 0.02, 1)
    return np.asarray(wave * envelope, dtype=np.float32)


@cache
def _kick() -> Samples:
    time = np.arange(round(0.18 * RATE)) / RATE
    return np.asarray(np.sin(2 * np.pi * (50 * time + 6 * (1 - np.exp(-time * 40)))) * np.exp(-time * 22), np.float32)


def _hit(noise: np.random.Generator, seconds: float) -> Samples:
    time = np.arange(round(4 * seconds * RATE)) / RATE
    return np.asarray(noise.standard_normal(len(time)) * np.exp(-time / seconds * 1.5) * 0.5, dtype=np.float32)


def _add(mix: Samples, at: float, sound: Samples) -> None:
    start = round(at * RATE)
    end = min(start + len(sound), len(mix))
    mix[start:end] += sound[: end - start]


RIVER = (
    ("Slow water under the bridge", "Carries the day to the sea"),
    ("River, oh river, wait for me", "River, oh river, wait for me"),
    ("Lamps go on along the quay", "One by one as evening falls"),
    ("River, oh river, wait for me", "River, oh river, wait for me"),
)
LANTERN = (
    ("Hold the lantern, hold it high", "There is a road behind the hill"),
    ("And we walk, and we walk", "Till the morning finds us still"),
)
FORM = (("intro", 4), ("verse", 4), ("chorus", 4), ("verse", 4), ("chorus", 4))

SAMPLES = (
    Song("Wait for me", 96, "D", "major", FORM, RIVER),
    Song("The road behind the hill", 128, "A", "minor", (("intro", 4), ("verse", 6), ("chorus", 6)), LANTERN),
    Song("Harbour lights", 144, "Eb", "major", FORM, RIVER),
    Song("Night train", 76, "F#", "minor", (("intro", 2), ("verse", 4), ("chorus", 4)), LANTERN),
)
