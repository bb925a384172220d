"""Instants as texts, where an engine keeps them so: for whoever looks with another tool."""

from __future__ import annotations

from datetime import datetime

from holdfast.clock import Instant, to_datetime, to_instant


def text(instant: Instant) -> str:
    """ISO 8601, of one length, so that texts stand in the order of time."""
    return to_datetime(instant).isoformat(timespec="microseconds").replace("+00:00", "Z")


def instant(text: str) -> Instant:
    return to_instant(datetime.fromisoformat(text))
