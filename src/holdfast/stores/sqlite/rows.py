"""History events as text."""

from __future__ import annotations

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Event, Status


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
    """A history event without its opening bracket and version, which SQL puts before it."""
    why = f",{_text(reason)}" if reason is not None else ""
    return f',{now},"{event.value}","{source.value}","{target.value}",{attempt},{_text(by)}{why}]'


def _text(value: str | None) -> str:
    return "null" if value is None else msgspec.json.encode(str(value)).decode()
