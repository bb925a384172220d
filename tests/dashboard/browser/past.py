"""A day of work before the one that tests do, so that plots have something to show: written into the counters."""

from __future__ import annotations

import math
import random
import sqlite3
from pathlib import Path

from backstay.clock import MICROS, SystemClock
from backstay.core.states import Counted, Status, bucket_of
from backstay.engines.sqlite.connection import load

MINUTES = 24 * 60
# Type, queue, jobs in a minute, seconds that one takes, and the share that fails.
_KINDS = (
    ("embedding", "embeddings", 9.0, 0.4, 0.01),
    ("report", "reports", 1.6, 8.0, 0.02),
    ("mail", "mail", 4.0, 1.2, 0.05),
    ("clustering", "default", 0.5, 40.0, 0.0),
)
_INSERT = load("count")


def write(database: Path) -> None:
    draw = random.Random(4021)
    minute = 60 * MICROS
    last = SystemClock().now() // minute * minute
    with sqlite3.connect(database) as opened:
        for back in range(2, MINUTES):
            for kind in _KINDS:
                opened.executemany(_INSERT, _rows(draw, last - back * minute, back, *kind))
    opened.close()


def _rows(
    draw: random.Random, at: int, back: int, job_type: str, queue: str, pace: float, seconds: float, share: float
) -> list[tuple[int | str, ...]]:
    """More by day than by night, and an outage three hours ago."""
    wave = 0.55 + 0.45 * math.cos(2 * math.pi * (back - 200) / MINUTES)
    count = round(draw.gauss(pace * wave, math.sqrt(pace) / 2))
    if count < 1:
        return []
    bad = share + (0.5 if queue == "mail" and 150 < back < 185 else 0.0)
    failed = sum(draw.random() < bad for _ in range(count))
    rows: list[tuple[int | str, ...]] = [(at, job_type, queue, 50, str(Counted.SUBMITTED), 0, count, 0, 0)]
    for outcome, number in ((Counted.COMPLETED, count - failed), (Counted.RETRIED, failed)):
        for _ in range(number):
            ran = round(seconds * draw.lognormvariate(0, 0.6) * MICROS)
            waited = round(0.2 * draw.lognormvariate(0, 0.8) * MICROS)
            bucket = bucket_of(outcome, Status.PROCESSING, ran, waited)
            rows.append((at, job_type, queue, 50, str(outcome), bucket, 1, ran, waited))
    return rows
