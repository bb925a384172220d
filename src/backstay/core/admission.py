"""Admission rules: the bucket behind a rate limit, and which jobs must run alone after a lost worker. Pure.

A bucket is one number: the instant at which it would be full again. Every start moves it forward by one share of the
span; a job may start as long as that leaves the bucket within one span of now.

Suspects are jobs whose worker died or stalled during their last attempt. When a worker is lost, each job that it held
is charged with a failure, because it is impossible to tell which of them was the cause. So that a job that kills its
worker does not drag the others to the dead letters, time after time:

    lost together ──▶ suspects ──▶ a worker starts one only while it runs no other ──▶ it ends, and is cleared
                                   └─▶ the others are put off, at no cost

The culprit can then kill only itself and jobs that started after it, and these become suspects: it costs another job
one attempt, once. A stall counts like a death: seen from another host they look the same. Suspects in child processes
may run next to one another, but not next to one in the worker's own process: they can only take down their own process.
`worker.slots` applies these rules.
"""

from __future__ import annotations

import re

from backstay.clock import MICROS, Instant
from backstay.core.records import ClaimedJob, Rate
from backstay.errors import InvalidOption
from backstay.limits import SUSPECT_SECONDS_MAX, SUSPECT_SECONDS_MIN

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_RATE = re.compile(r"(\d{1,9})/(\d{1,6})?(s|m|h|d)")


def parse(text: str | Rate | None) -> Rate | None:
    """Parse a rate such as 10/s, 100/m, 5/30s or 1000/h."""
    if text is None or isinstance(text, Rate):
        return text
    found = _RATE.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
    if found is None or int(found[1]) == 0 or int(found[2] or 1) == 0:
        raise InvalidOption(f'rate={text!r:.60}: write "10/s", "100/m", "5/30s", "1000/h"')
    return Rate(int(found[1]), int(found[2] or 1) * _UNITS[found[3]] * MICROS)


def room(rate: Rate, full_at: Instant, now: Instant) -> int:
    """Return how many jobs may start now."""
    spent = min(max(full_at - now, 0), rate.micros)  # a clock that jumped can leave more than a span
    return (rate.micros - spent) * rate.count // rate.micros


def take(rate: Rate, full_at: Instant, now: Instant, starts: int) -> Instant:
    """Return when the bucket is full again after this many starts."""
    full_at = min(max(full_at, now), now + rate.micros)
    return full_at + -(-starts * rate.micros // rate.count)


def due_at(rate: Rate, full_at: Instant, now: Instant) -> Instant:
    """Return when the next job may start."""
    share = -(-rate.micros // rate.count)
    return max(now, min(full_at, now + rate.micros) + share - rate.micros)


REASON = "its worker was lost along with other jobs: these now run one at a time"


def is_suspect(job: ClaimedJob) -> bool:
    return job.lost_at is not None


def may_wait(job: ClaimedJob) -> bool:
    """Return whether a worker may claim the job before it has a free slot for it. If that worker died, a last attempt
    would be spent without a run, and a suspect would be charged with a crash that it did not cause."""
    return job.failures + 1 < job.max_attempts and job.lost_at is None


def may_run_beside(isolation: str, other: str) -> bool:
    """Return whether two suspects with these kinds of isolation may run in one worker at the same time."""
    return isolation == other == "process"


def is_called_alone(job: ClaimedJob) -> bool:
    """Return whether a job of a batch type gets a call of its own: the job that crashed a call must not crash the
    others again."""
    return job.failures > 0 or job.lost_at is not None


def put_off_micros(lost_at: Instant, now: Instant, draw: float) -> int:
    """Return how long to defer a suspect while another one runs: half of the time since the loss, within limits. `draw`
    in [0, 1) spreads jobs that were lost together."""
    half = (now - lost_at) / 2 / MICROS
    return round(min(SUSPECT_SECONDS_MAX, max(SUSPECT_SECONDS_MIN, half)) * (0.5 + draw) * MICROS)
