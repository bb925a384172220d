"""The geometry of the plots: scaling points to a frame, hulls, and labels that do not overlap."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom

LETTER_WIDTH = 0.58  # of the font's size, on average: the page is drawn before any font is known
LINE_HEIGHT = 1.25
DOT_COST = 1.2  # cost of covering a dot: less than that of moving a label too far from its point


@dataclass(frozen=True, slots=True)
class Frame:
    width: float
    height: float
    margin: float = 40.0

    def fit(self, points: Sequence[Point]) -> list[Point]:
        """Return the points scaled to the frame, with y upwards. Equal points, or a single one, are in the middle."""
        if not points:
            return []
        xs, ys = [x for x, _ in points], [y for _, y in points]
        left, right, low, high = min(xs), max(xs), min(ys), max(ys)
        return [
            (
                _between(x, left, right, self.margin, self.width - self.margin),
                _between(y, low, high, self.height - self.margin, self.margin),
            )
            for x, y in points
        ]


def _between(value: float, low: float, high: float, start: float, end: float) -> float:
    return (start + end) / 2 if high <= low else start + (end - start) * (value - low) / (high - low)


def middle(points: Sequence[Point]) -> Point:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def hull(points: Sequence[Point], share: float = 0.95) -> list[Point]:
    """Return the convex hull of the points nearest to the middle: a few outliers would make it cover everything."""
    if not points:
        return []
    centre = middle(points)
    near = sorted(points, key=lambda each: math.dist(each, centre))[: max(1, math.ceil(share * len(points)))]
    ordered = sorted(set(near))
    if len(ordered) < 3:
        return ordered
    return [*_chain(ordered)[:-1], *_chain(ordered[::-1])[:-1]]


def _chain(ordered: Sequence[Point]) -> list[Point]:
    found: list[Point] = []
    for point in ordered:
        while len(found) > 1 and _turn(found[-2], found[-1], point) <= 0:
            found.pop()
        found.append(point)
    return found


def _turn(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


@dataclass(frozen=True, slots=True)
class Label:
    x: float  # its middle
    y: float
    lines: tuple[str, ...]


def wrapped(text: str, letters: int) -> tuple[str, ...]:
    """Wrap a text to at most two lines; the rest becomes an ellipsis."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= letters:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    if len(lines) > 2:
        lines = [lines[0], f"{lines[1]} …"]
    return tuple(line if len(line) <= letters + 4 else f"{line[: letters + 3]}…" for line in lines) or ("",)


def place_labels(
    wanted: Sequence[tuple[Point, str]], frame: Frame, size: float, letters: int = 20, dots: Sequence[Point] = ()
) -> list[Label | None]:
    """Place each label near its point, in order, over as few dots as possible; None if there is no room."""
    taken: list[Box] = []
    return [_place(point, wrapped(text, letters), frame, size, taken, dots) for point, text in wanted]


def _place(
    point: Point, lines: tuple[str, ...], frame: Frame, size: float, taken: list[Box], dots: Sequence[Point]
) -> Label | None:
    half_width = max(len(line) for line in lines) * size * LETTER_WIDTH / 2 + 3
    half_height = len(lines) * size * LINE_HEIGHT / 2
    best: tuple[float, Box] | None = None
    for ring, (dx, dy) in _around(half_width, half_height):
        x = min(max(point[0] + dx, half_width), frame.width - half_width)
        y = min(max(point[1] + dy, half_height), frame.height - half_height)
        box = (x - half_width, y - half_height, x + half_width, y + half_height)
        if any(_overlap(box, other) for other in taken):
            continue
        cost = ring + DOT_COST * sum(
            box[0] - 5 < dot[0] < box[2] + 5 and box[1] - 5 < dot[1] < box[3] + 5 for dot in dots
        )
        if best is None or cost < best[0]:
            best = (cost, box)
    if best is None:
        return None
    taken.append(best[1])
    left, top, right, bottom = best[1]
    return Label((left + right) / 2, (top + bottom) / 2, lines)


def _around(half_width: float, half_height: float) -> list[tuple[float, Point]]:
    """Yield positions to try with their distance: on the point, then in growing rings around it."""
    return [
        (0.0, (0.0, 0.0)),
        *(
            (ring, (ring * half_width * math.cos(angle), ring * 1.6 * half_height * math.sin(angle)))
            for ring in (0.5, 0.9, 1.3, 1.7, 2.1)
            for angle in (math.pi * step / 4 for step in (2, 6, 0, 4, 1, 3, 5, 7))
        ),
    ]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def columns(values: Sequence[float], width: float, margin: float, radius: float) -> list[Point]:
    """Return dots on an axis from 0 to 1, stacked where they would touch; the lowest are at 0, and up is negative."""
    step = 2 * radius + 1
    heights: Counter[int] = Counter()
    answer: list[Point] = []
    for value in values:
        column = round((width - 2 * margin) * min(max(value, 0.0), 1.0) / step)
        answer.append((margin + column * step, -heights[column] * step))
        heights[column] += 1
    return answer
