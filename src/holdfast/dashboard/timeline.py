"""How a job came to where it is: its states on a line, and its events in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.job import HistoryEntry
from holdfast.statuses import TERMINAL, Event, Status

WIDTH = 1_000.0
NARROWEST = 8.0  # what a state takes however short it was: 200 ms after 5 h of waiting should be seen

_WORDS = {
    Event.SUBMIT: "Submitted",
    Event.REUSE: "Took the result of an identical job",
    Event.RELEASE: "No longer waits",
    Event.DUE: "Its time has come",
    Event.CLAIM: "Attempt {attempt} began",
    Event.COMPLETE: "Completed",
    Event.RETRY: "Attempt {attempt} failed, and is repeated",
    Event.EXHAUST: "Attempt {attempt} failed, the last that it had",
    Event.DISCARD: "Given up by its handler",
    Event.SNOOZE: "Snoozed",
    Event.GIVE_BACK: "Handed back by its worker",
    Event.WAIT_FOR_CHILDREN: "Waits for its children",
    Event.RESCUE: "Taken from a worker that was lost",
    Event.RESCHEDULE: "Moved to another time",
    Event.REPRIORITISE: "Given another priority",
    Event.CANCEL: "Cancelled",
    Event.MANUAL_RETRY: "Sent again by hand",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A state that it was in. `seconds` of the last one is until now; of an end, none."""

    status: Status
    attempt: int
    at: datetime
    seconds: float
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Happening:
    version: int
    at: datetime
    after: float | None  # seconds since what came before
    words: str
    target: Status
    by: str | None
    reason: str | None
    dropped: int  # events before it that are no longer kept


def spans(history: Sequence[HistoryEntry], now: datetime) -> list[Span]:
    """Side by side over the whole width, each as wide as it was long but never too narrow to see."""
    found: list[tuple[HistoryEntry, float]] = []
    for place, entry in enumerate(history):
        follower = history[place + 1] if place + 1 < len(history) else None
        if entry.target in TERMINAL and follower is None:
            break
        until = now if follower is None else follower.at
        seconds = max(0.0, (until - entry.at).total_seconds())
        if found and found[-1][0].target is entry.target and found[-1][0].attempt == entry.attempt:
            found[-1] = (found[-1][0], found[-1][1] + seconds)  # another priority is no other state
        else:
            found.append((entry, seconds))
    widths = _widths([seconds for _, seconds in found])
    x, laid = 0.0, []
    for (entry, seconds), width in zip(found, widths, strict=True):
        laid.append(Span(entry.target, entry.attempt, entry.at, seconds, round(x, 2), round(width, 2)))
        x += width
    return laid


def _widths(lengths: Sequence[float]) -> list[float]:
    narrowest = min(NARROWEST, WIDTH / max(1, len(lengths)))
    spare, total = WIDTH - narrowest * len(lengths), sum(lengths)
    share = spare / total if total else 0.0
    return [narrowest + (length * share if total else spare / len(lengths)) for length in lengths]


def happenings(history: Sequence[HistoryEntry]) -> list[Happening]:
    found: list[Happening] = []
    for place, entry in enumerate(history):
        before = history[place - 1] if place else None
        found.append(
            Happening(
                version=entry.version,
                at=entry.at,
                after=None if before is None else max(0.0, (entry.at - before.at).total_seconds()),
                words=_words(entry),
                target=entry.target,
                by=entry.by,
                reason=entry.reason,
                dropped=0 if before is None else entry.version - before.version - 1,
            )
        )
    return found


def _words(entry: HistoryEntry) -> str:
    if entry.event is Event.RELEASE and entry.target in TERMINAL:
        return "Ended with what it waited for"
    if entry.event is Event.RESCUE and entry.target is Status.FAILED:
        return "Failed with its worker, the last attempt that it had"
    return _WORDS[entry.event].format(attempt=entry.attempt)
