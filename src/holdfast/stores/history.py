"""History as text: one JSON array per event and line, in order of versions. Pure."""

from __future__ import annotations

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Event, Status, Transition
from holdfast.limits import HISTORY_HEAD, HISTORY_TAIL


def submit_event(now: Instant, event: Event, target: Status, by: str | None) -> str:
    return f'[1,{now},"{event.value}",null,"{target.value}",0,{_text(by)}]'


def event_tail(
    now: Instant,
    event: Event,
    source: Status,
    target: Status,
    attempt: int,
    by: str | None,
    reason: str | None,
) -> str:
    """A history event without its opening bracket and version, which come before it."""
    why = f",{_text(reason)}" if reason is not None else ""
    return f',{now},"{event.value}","{source.value}","{target.value}",{attempt},{_text(by)}{why}]'


def event(
    version: int,
    now: Instant,
    event: Event,
    source: Status,
    target: Status,
    attempt: int,
    by: str | None,
    reason: str | None,
) -> str:
    return f"[{version}{event_tail(now, event, source, target, attempt, by, reason)}"


def trim(history: str) -> str:
    """First and last events; the versions in them tell how many were dropped."""
    lines = history.split("\n")
    if len(lines) <= HISTORY_HEAD + HISTORY_TAIL:
        return history
    return "\n".join(lines[:HISTORY_HEAD] + lines[-HISTORY_TAIL:])


def is_on_record(history: str, t: Transition) -> bool:
    """Of a claim that was settled by its holder: whether as `t` says, or otherwise by an earlier write."""
    return f'"{t.event.value}","{t.source.value}","{t.target.value}",{t.attempt},' in history


def _text(value: str | None) -> str:
    return "null" if value is None else msgspec.json.encode(str(value)).decode()
