"""What a job says about itself, within bounds: an item ends at 400 KB, and one that is larger can never be settled.

Sizes are of what is written. In JSON a control character takes six bytes, so the length of a text tells nothing. Pure.
"""

from __future__ import annotations

import msgspec

from holdfast.lifecycle import ErrorEntry
from holdfast.store.types import HistoryEvent
from holdfast.stores import records

ERRORS_BYTES = 40_000
ERROR_TEXT_BYTES = 3_500
LAST_ERROR_BYTES = 4_000
LOGS_BYTES = 32_000
HISTORY_BYTES = 64_000
HISTORY_FIRST = 10  # events that are never dropped, besides the last ones
HISTORY_LAST = 20  # events whose reasons are cut less than those before
LAST_REASON_BYTES = 16_000  # the last one stays whole, as long as it may be
LATE_REASON_BYTES = 1_000
REASON_BYTES = 200
NAME_BYTES = 300  # of a worker, a person, a type of error
METRICS_BYTES = 16_000

_errors = msgspec.json.Decoder(list[ErrorEntry])


def cut(text: str, most: int) -> str:
    """Its beginning and its end."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    half = (most - 5) // 2
    return raw[:half].decode(errors="ignore") + " … " + raw[-half:].decode(errors="ignore")


def cut_written(text: str, most: int) -> str:
    """Likewise, by the bytes that it takes as JSON."""
    budget = most
    while len(msgspec.json.encode(text)) - 2 > most:
        text = cut(text, budget)
        budget = budget * 2 // 3
    return text


def errors(text: str) -> str:
    entries = [
        msgspec.structs.replace(
            each,
            type=cut_written(each.type, NAME_BYTES),
            message=cut_written(each.message, ERROR_TEXT_BYTES),
            traceback=cut_written(each.traceback, ERROR_TEXT_BYTES),
        )
        for each in _errors.decode(text)
    ]
    return last_that_fit(msgspec.json.encode(entries).decode(), ERRORS_BYTES)


def last_that_fit(text: str, most: int) -> str:
    entries = msgspec.json.decode(text)
    while isinstance(entries, list) and entries and len(msgspec.json.encode(entries)) > most:
        entries = entries[max(1, len(entries) // 10) :]
    return msgspec.json.encode(entries).decode()


def first_that_fit(text: str, most: int) -> str:
    entries = msgspec.json.decode(text)
    while isinstance(entries, dict) and entries and len(msgspec.json.encode(entries)) > most:
        entries.popitem()
    return msgspec.json.encode(entries).decode()


def history(text: str) -> str:
    """Reasons are cut, the earlier ones more; then events go from the middle: versions tell how many."""
    events = records.history(text)
    from_the_end = range(len(events) - 1, -1, -1)
    lines = [_event(each, ago) for each, ago in zip(events, from_the_end, strict=True)]
    total = sum(len(line.encode()) + 1 for line in lines)
    while total > HISTORY_BYTES and len(lines) > HISTORY_FIRST + 1:
        total -= len(lines.pop(HISTORY_FIRST).encode()) + 1
    return "\n".join(lines)


def _event(event: HistoryEvent, ago: int) -> str:
    most = LAST_REASON_BYTES if ago == 0 else LATE_REASON_BYTES if ago < HISTORY_LAST else REASON_BYTES
    shortened = msgspec.structs.replace(
        event,
        by=None if event.by is None else cut_written(event.by, NAME_BYTES),
        reason=None if event.reason is None else cut_written(event.reason, most),
    )
    return msgspec.json.encode(shortened).decode()
