"""Assigns a time to each line of lyrics.

It does not recognise words: stanzas are assigned to sections, and lines to onsets. Lines of a section share its time by
their syllables; then each is moved to a nearby onset, preferably a strong one, or one that begins a bar.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, combinations, islice
from math import inf

from analysis.models import AnalysisResult, Section, TimedLine

_VOWELS = re.compile(r"[aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýœ]+", re.IGNORECASE)
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # scripts in which a character is a syllable
_BEATS_PER_BAR = 4
_STEP = 0.01  # seconds: the resolution of an LRC file
_EARLY = 0.07  # seconds: an onset this close is still on the beat
_CHOICES_MAX = 20_000  # maximum number of assignments of stanzas to sections to compare
_STRONG, _BAR = 0.15, 0.25  # the weight of a strong onset, and of one that begins a bar, in line lengths


@dataclass(frozen=True, slots=True)
class Span:
    """Lines that share a time span."""

    start: float
    end: float
    lines: tuple[str, ...]


def stanzas(lyrics: str) -> list[tuple[str, ...]]:
    found: list[list[str]] = [[]]
    for line in (each.strip() for each in lyrics.splitlines()):
        if line:
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [tuple(each) for each in found if each]


def syllables(line: str) -> int:
    wide = len(_WIDE.findall(line))
    words = re.findall(r"[^\W\d_]+", _WIDE.sub(" ", line))
    return max(1, wide + sum(max(1, len(_VOWELS.findall(word))) for word in words))


def align(lyrics: str, song: AnalysisResult) -> list[TimedLine]:
    """Return every line with its time, in order."""
    timed: list[TimedLine] = []
    for span in spans(stanzas(lyrics), song):
        timed += _timed(span, song, after=timed[-1].at if timed else -_STEP)
    return timed


def spans(given: list[tuple[str, ...]], song: AnalysisResult) -> list[Span]:
    """Return each stanza with its section; if there are more stanzas than sections, all lines with the whole song."""
    if not given:
        return []
    if len(given) > len(song.sections):
        return [Span(0.0, song.duration_seconds, tuple(line for stanza in given for line in stanza))]
    chosen = _sections_for(given, song.sections)
    return [Span(section.start, section.end, stanza) for section, stanza in zip(chosen, given, strict=True)]


def _sections_for(given: list[tuple[str, ...]], sections: Sequence[Section]) -> list[Section]:
    loudest = max((each.loudness_lufs for each in sections if each.loudness_lufs is not None), default=0.0)

    def cost(chosen: tuple[Section, ...]) -> float:
        """Return the cost of an assignment: quiet sections are rarely sung, stanzas with the same text sound alike, and
        the pace changes little."""
        quiet = sum(
            (loudest - (each.loudness_lufs if each.loudness_lufs is not None else -70.0)) / 6 for each in chosen
        )
        pairs = list(combinations(range(len(chosen)), 2))
        unlike = sum(given[a] == given[b] and chosen[a].label != chosen[b].label for a, b in pairs)
        paces = [
            (each.end - each.start) / sum(map(syllables, stanza)) for each, stanza in zip(chosen, given, strict=True)
        ]
        return quiet + 2 * unlike + max(paces) / min(paces)

    chosen: tuple[Section, ...] = min(islice(combinations(sections, len(given)), _CHOICES_MAX), key=cost)
    return list(chosen)


def _timed(span: Span, song: AnalysisResult, after: float) -> list[TimedLine]:
    """Return each line with its best onset, in order."""
    start = max(span.start, after + _STEP)
    weights = [syllables(line) for line in span.lines]
    shares = [sum(weights[:place]) / sum(weights) for place in range(len(weights))]
    wished = [start + (span.end - start) * share for share in shares]
    length = (span.end - start) / len(wished)
    bar = _BEATS_PER_BAR * 60 / song.tempo_bpm if song.tempo_bpm else 0.0

    def worth(at: float, strength: float) -> float:
        off = abs((at - span.start + bar / 2) % bar - bar / 2) if bar else 1.0
        return _STRONG * strength + (_BAR if off < _EARLY else 0.0)

    worths = dict.fromkeys(wished, -1.0)  # without an onset, a line stays at its estimated time
    for at, strength in zip(song.onsets, song.onset_strengths, strict=True):
        if max(span.start - _EARLY, after + _STEP) <= at < span.end:
            worths[at] = worth(at, strength)
    times = sorted(worths)
    costs = [[abs(at - want) / length - worths[at] for at in times] for want in wished]
    return [TimedLine(at=round(times[at], 2), text=line) for at, line in zip(cheapest(costs), span.lines, strict=True)]


def cheapest(costs: list[list[float]]) -> list[int]:
    """Choose one column per row, each to the right of the previous one, with the smallest sum."""
    total, came = costs[0], []
    for row in costs[1:]:
        best = list(accumulate(range(len(total)), partial(_smaller, total)))
        came.append([-1, *best[:-1]])
        total = [inf, *(total[at] + cost for at, cost in zip(best, row[1:], strict=False))]
    chosen = [min(range(len(total)), key=total.__getitem__)]
    for before in reversed(came):
        chosen.append(before[chosen[-1]])
    return chosen[::-1]


def _smaller(total: list[float], first: int, second: int) -> int:
    return first if total[first] <= total[second] else second


def lrc(lines: Sequence[TimedLine], *, title: str = "", artist: str = "", seconds: float = 0.0) -> str:
    """Return the LRC file."""
    tags = {"ti": title, "ar": artist, "length": f"{int(seconds) // 60}:{int(seconds) % 60:02}" if seconds else ""}
    head = [f"[{name}:{' '.join(value.split())}]" for name, value in tags.items() if value]
    return "\n".join([*head, *(f"[{stamp(line.at)}]{line.text}" for line in lines)]) + "\n"


def stamp(seconds: float) -> str:
    hundredths = round(seconds * 100)
    return f"{hundredths // 6000:02}:{hundredths // 100 % 60:02}.{hundredths % 100:02}"
