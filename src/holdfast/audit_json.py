"""What the trail keeps of a queue, a schedule and a key: the same fields before a change and after it. Pure.

Times are datetimes, which are ISO 8601 in JSON; payloads and secrets are in none of it.
"""

from __future__ import annotations

from typing import Any

from holdfast.keys import KeyInfo
from holdfast.queues import Queue
from holdfast.schedules import ScheduleInfo
from holdfast.store.types import QueueRow

_OF_SCHEDULES = ("cron", "timezone", "missed", "job_type", "queue", "priority", "paused", "paused_by", "version")
_OF_KEYS = ("name", "scopes", "queues", "state", "expires_at", "revoked_by")


def queue(found: Queue | QueueRow | None) -> dict[str, Any]:
    """Of one that nobody has said anything about, too."""
    return {
        "paused": found is not None and found.paused_at is not None,
        "paused_by": None if found is None else found.paused_by,
        "reason": None if found is None else found.pause_reason,
        "max_pending": None if found is None else found.max_pending,
    }


def schedule(found: ScheduleInfo | None) -> dict[str, Any] | None:
    return None if found is None else {name: getattr(found, name) for name in _OF_SCHEDULES}


def key(found: KeyInfo | None) -> dict[str, Any] | None:
    return None if found is None else {name: getattr(found, name) for name in _OF_KEYS}
