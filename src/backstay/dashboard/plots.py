"""Computes plots: the coordinates of lines and boxes that a template draws as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from backstay.clock import MICROS, Instant
from backstay.core.checks import span

LEFT, RIGHT, TOP, BOTTOM = 44, 396, 10, 144  # the plot area, of 400 x 168
_TICKS = 4  # approximate number of grid lines
_SPANS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 14400.0)  # axis marks for durations, in seconds


@dataclass(frozen=True, slots=True)
class Box:
    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    says: str


@dataclass(frozen=True, slots=True)
class Place:
    """A time slot over the full height, with its tooltip."""

    x: float
    width: float
    says: str


@dataclass(frozen=True, slots=True)
class Plot:
    says: str  # a one-sentence summary for screen readers
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    places: tuple[Place, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]


def counted(
    starts: Sequence[Instant],
    stacked: Mapping[str, Sequence[int]],
    lined: Mapping[str, Sequence[int]],
    *,
    slot_seconds: int,
    says: str,
) -> Plot:
    """Stacked boxes for values that add up, and a line for each of `lined`."""
    heights = [sum(column) for column in zip(*stacked.values(), strict=True)]
    top, ticks = _counts_axis(max([0, *heights, *(each for line in lined.values() for each in line)]))
    width = (RIGHT - LEFT) / max(1, len(starts))
    lines = (Line(kind, _steps(values, top, width)) for kind, values in lined.items() if any(values))
    return Plot(
        says,
        tuple(_boxes(stacked, len(starts), top, width)),
        tuple(lines),
        _places(starts, slot_seconds, {**stacked, **lined}, "{:,}".format),
        _times(starts, slot_seconds),
        tuple(Tick(_y(value, top), f"{value:,}" if value < 10_000 else f"{value / 1000:,g}k") for value in ticks),
    )


def spread(
    starts: Sequence[Instant],
    series: Mapping[str, Sequence[float | None]],
    *,
    slot_seconds: int,
    says: str,
) -> Plot:
    """Lines on a logarithmic scale, which fits milliseconds and hours. A slot without a value breaks the line."""
    known = [value for values in series.values() for value in values if value is not None]
    low, high = _spans_axis(known)
    width = (RIGHT - LEFT) / max(1, len(starts))

    def y(value: float) -> float:
        share = math.log(max(value, low) / low) / math.log(high / low)
        return round(BOTTOM - min(1.0, share) * (BOTTOM - TOP), 1)

    return Plot(
        says,
        (),
        tuple(Line(kind, _joined(values, width, y)) for kind, values in series.items()),
        _places(starts, slot_seconds, series, lambda value: "–" if value is None else span(value)),
        _times(starts, slot_seconds),
        tuple(Tick(y(value), span(value)) for value in _SPANS if low <= value <= high) if known else (),
    )


def _counts_axis(most: int) -> tuple[int, list[int]]:
    """The end of the scale and its grid lines: at 1, 2 or 5 times a power of ten, and never at a fraction of a job."""
    rough = max(1.0, most / _TICKS)
    power = 10 ** math.floor(math.log10(rough))
    step = next(int(power * times) for times in (1, 2, 5, 10) if power * times >= rough)
    top = step * max(1, math.ceil(most / step))
    return top, list(range(0, top + 1, step))


def _spans_axis(known: Sequence[float]) -> tuple[float, float]:
    if not known:
        return _SPANS[0], _SPANS[-1]
    low = max((mark for mark in _SPANS if mark <= min(known)), default=_SPANS[0])
    high = min((mark for mark in _SPANS if mark >= max(known)), default=_SPANS[-1])
    if low < high:
        return low, high
    place = min(_SPANS.index(low), len(_SPANS) - 2)  # all values on one mark: use the step next to it
    return _SPANS[place], _SPANS[place + 1]


def _y(value: float, top: float) -> float:
    return round(BOTTOM - value / top * (BOTTOM - TOP), 1)


def _boxes(stacked: Mapping[str, Sequence[int]], slots: int, top: int, width: float) -> Iterable[Box]:
    gap = min(1.0, width * 0.2)
    for slot in range(slots):
        below = 0
        for kind, values in stacked.items():
            if values[slot]:
                upper = _y(below + values[slot], top)
                x = round(LEFT + slot * width + gap / 2, 2)
                yield Box(kind, x, upper, round(width - gap, 2), round(_y(below, top) - upper, 1))
                below += values[slot]


def _steps(values: Sequence[int], top: int, width: float) -> str:
    """A line that is level within each slot."""
    parts = [f"M{LEFT} {_y(values[0], top)}"]
    for slot, value in enumerate(values):
        parts.append(f"V{_y(value, top)}H{round(LEFT + (slot + 1) * width, 2)}")
    return "".join(parts)


def _joined(values: Sequence[float | None], width: float, y: Callable[[float], float]) -> str:
    parts: list[str] = []
    is_joined = False
    for slot, value in enumerate(values):
        if value is None:
            is_joined = False
            continue
        x = round(LEFT + (slot + 0.5) * width, 2)
        at = y(value)
        alone = slot + 1 == len(values) or values[slot + 1] is None
        if is_joined:
            parts.append(f"L{x} {at}")
        else:
            # A point without neighbours is drawn as a short stroke: a line of zero length is invisible.
            parts.append(f"M{x - 1.5} {at}H{x + 1.5}" if alone else f"M{x} {at}")
        is_joined = True
    return "".join(parts)


def _places(
    starts: Sequence[Instant], slot_seconds: int, series: Mapping[str, Sequence[Any]], text: Callable[[Any], str]
) -> tuple[Place, ...]:
    width = (RIGHT - LEFT) / max(1, len(starts))
    places = []
    for slot, start in enumerate(starts):
        values = ", ".join(f"{kind} {text(of[slot])}" for kind, of in series.items())
        places.append(Place(round(LEFT + slot * width, 2), round(width, 2), f"{_when(start, slot_seconds)}: {values}"))
    return tuple(places)


def _when(start: Instant, slot_seconds: int) -> str:
    at = datetime.fromtimestamp(start // MICROS, UTC)
    until = datetime.fromtimestamp(start // MICROS + slot_seconds, UTC)
    if slot_seconds <= 60:
        return f"{at:%H:%M}"
    return f"{at:%a %H:%M}–{until:%H:%M}"


def _times(starts: Sequence[Instant], slot_seconds: int) -> tuple[Tick, ...]:
    """Marks at round times: every quarter of an hour, six hours or day."""
    every, form = {60: (900, "%H:%M"), 900: (21_600, "%H:%M")}.get(slot_seconds, (86_400, "%a"))
    width = (RIGHT - LEFT) / max(1, len(starts))
    ticks = []
    for slot, start in enumerate(starts):
        seconds = start // MICROS
        if seconds % every == 0:
            says = datetime.fromtimestamp(seconds, UTC).strftime(form)
            ticks.append(Tick(round(LEFT + slot * width, 2), says))
    return tuple(tick for tick in ticks if tick.at < RIGHT - 12)
