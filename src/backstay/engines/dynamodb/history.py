"""The history of a job in its item: one event per line, as JSON, the first one first."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from backstay.clock import Instant
from backstay.core.records import HistoryEvent, Transition
from backstay.core.states import Event, Status
from backstay.limits import HISTORY_HEAD, HISTORY_TAIL

_REQUIRED = sum(each.required for each in msgspec.structs.fields(HistoryEvent))
_events = msgspec.json.Decoder(tuple[HistoryEvent, ...])


def parse(text: str) -> tuple[HistoryEvent, ...]:
    return _events.decode("[" + text.replace("\n", ",") + "]")


def text_of(events: Iterable[HistoryEvent]) -> str:
    return "\n".join(map(line, events))


def line(event: HistoryEvent) -> str:
    """Return an event as stored: without what most events do not have, which comes last."""
    values = msgspec.structs.astuple(event)
    while len(values) > _REQUIRED and not values[-1]:
        values = values[:-1]
    return msgspec.json.encode(values).decode()


def submitted(now: Instant, event: Event, target: Status, by: str | None) -> str:
    return line(HistoryEvent(1, now, event, None, target, 0, by))


def trim(text: str) -> str:
    """Return the first and the last events of a history; their versions tell how many were dropped."""
    lines = text.split("\n")
    if len(lines) <= HISTORY_HEAD + HISTORY_TAIL:
        return text
    return "\n".join(lines[:HISTORY_HEAD] + lines[-HISTORY_TAIL:])


def is_on_record(text: str, t: Transition) -> bool:
    """Return whether a claim that its holder has settled was settled by `t`, and not by a different earlier write."""
    settled = (t.event, t.source, t.target, t.attempt)
    return any((each.event, each.source, each.target, each.attempt) == settled for each in parse(text))
