"""Draws a song as SVG: sections, waveform, loudness, beats and lyrics."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from analysis.models import AnalysisResult, TimedLine
from analysis.sound import Sound

WIDTH, LEFT, RIGHT = 960, 20, 20
TOP, WAVE, LINE = 96, 120, 20  # pixels: where the wave begins, its height, and that of a line of lyrics
COLOURS = ("#9db4c0", "#e9b44c", "#c8553d", "#588157", "#7b6d8d", "#4f6d7a", "#b56576", "#6b705c")
INK, FAINT, LOUD = "#1f2933", "#7b8794", "#0b6e4f"


def picture(sound: Sound, song: AnalysisResult, title: str = "", lines: Sequence[TimedLine] = ()) -> str:
    height = TOP + WAVE + 46 + LINE * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_heading(song, title),
        *_sections(song, height if lines else TOP + WAVE + 8),
        _wave(sound),
        _loudness(song),
        *_beats(song),
        *_seconds(song),
        *_lines(song, lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(song: AnalysisResult, seconds: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * seconds / song.duration_seconds, 1)


def _heading(song: AnalysisResult, title: str) -> list[str]:
    facts = [
        f"{song.tempo_bpm:.1f} beats a minute",
        song.key,
        "silence" if song.loudness_lufs is None else f"{song.loudness_lufs:.1f} LUFS",
        f"{song.duration_seconds:.1f} s",
        f"{len(song.sections)} sections",
    ]
    return [
        f'<text x="{LEFT}" y="30" font-size="20" font-weight="bold" fill="{INK}">{escape(title or "Untitled")}</text>',
        f'<text x="{LEFT}" y="54" fill="{FAINT}">{escape(" · ".join(facts))}</text>',
        f'<text x="{WIDTH - RIGHT}" y="54" fill="{LOUD}" text-anchor="end">loudness, from -40 to 0 LUFS</text>',
    ]


def _sections(song: AnalysisResult, bottom: int) -> list[str]:
    drawn = []
    for section in song.sections:
        x, width = _x(song, section.start), _x(song, section.end) - _x(song, section.start)
        colour = COLOURS[(ord(section.label) - ord("A")) % len(COLOURS)]
        box = f'<rect x="{x}" y="{TOP - 22}" fill="{colour}"'
        drawn += [
            f'{box} width="{width:.1f}" height="{bottom - TOP + 22}" opacity="0.18"/>',
            f'{box} width="{max(width - 1, 0):.1f}" height="20"/>',
            f'<text x="{x + 6}" y="{TOP - 7}" font-weight="bold" fill="{INK}">{escape(section.label)}</text>',
        ]
    return drawn


def _wave(sound: Sound) -> str:
    columns = WIDTH - LEFT - RIGHT
    mixed = np.abs(sound.mono)
    peaks = [float(part.max()) if len(part) else 0.0 for part in np.array_split(mixed, columns)]
    middle = TOP + WAVE / 2
    upper = [f"{LEFT + x},{middle - peak * WAVE / 2:.1f}" for x, peak in enumerate(peaks)]
    lower = [f"{LEFT + x},{middle + peak * WAVE / 2:.1f}" for x, peak in enumerate(peaks)]
    return f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{INK}" opacity="0.55"/>'


def _loudness(song: AnalysisResult) -> str:
    """Draw the loudness, from -40 LUFS at the bottom of the wave to 0 at its top."""
    step = (WIDTH - LEFT - RIGHT) / max(len(song.loudness_curve), 1)
    points = [
        f"{LEFT + step * (place + 0.5):.1f},{TOP + WAVE * min(max(-lufs / 40, 0), 1):.1f}"
        for place, lufs in enumerate(song.loudness_curve)
    ]
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="{LOUD}" stroke-width="1.5"/>'


def _beats(song: AnalysisResult) -> list[str]:
    y = TOP + WAVE
    return [f'<path d="M{_x(song, at)} {y}v6" stroke="{FAINT}" stroke-width="0.8"/>' for at in song.beats]


def _seconds(song: AnalysisResult) -> list[str]:
    step = next(each for each in (5, 10, 30, 60, 120, 300) if song.duration_seconds / each <= 12 or each == 300)
    return [
        f'<text x="{_x(song, at)}" y="{TOP + WAVE + 22}" fill="{FAINT}" font-size="11">{at // 60}:{at % 60:02}</text>'
        for at in range(0, int(song.duration_seconds), step)
    ]


def _lines(song: AnalysisResult, lines: Sequence[TimedLine]) -> list[str]:
    rulers, texts = [], []
    for place, line in enumerate(lines):
        x, y = _x(song, line.at), TOP + WAVE + 44 + LINE * place
        right = x > WIDTH * 0.72  # no room to its right
        rulers.append(
            f'<path d="M{x} {TOP}V{y - 4}" stroke="{INK}" stroke-width="0.7" stroke-dasharray="2 3"/>'
            f'<circle cx="{x}" cy="{y - 4}" r="3" fill="{INK}"/>'
        )
        place_of_text = f'x="{x - 7 if right else x + 7}" y="{y}" text-anchor="{"end" if right else "start"}"'
        halo = (
            # drawn over the lines of others
            'stroke="#ffffff" stroke-width="4" stroke-opacity="0.9" paint-order="stroke"'
        )
        texts.append(f'<text {place_of_text} fill="{INK}" {halo}>{escape(line.text)}</text>')
    return rulers + texts
