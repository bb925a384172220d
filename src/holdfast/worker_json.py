"""A worker as a JSON document: the one place that makes it, for the command line and over HTTP."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.clock import MICROS, to_datetime
from holdfast.store.types import WorkerRow

# Of no meaning outside: how a process is told from another, and what averages are made from.
_INTERNAL = ("process_key", "marks", "unread", "busy_micros", "lease_micros", "key_id")


def document(row: WorkerRow, now: datetime) -> dict[str, object]:
    found = msgspec.structs.asdict(row)
    for name in _INTERNAL:
        del found[name]
    found["started_at"] = to_datetime(row.started_at)
    found["heartbeat_at"] = to_datetime(row.heartbeat_at)
    found["heartbeat_age_seconds"] = (now - to_datetime(row.heartbeat_at)).total_seconds()
    found["lease_seconds"] = row.lease_micros / MICROS or None
    found["average_time_ms"] = row.busy_micros / row.ended / 1000 if row.ended else None
    return found
