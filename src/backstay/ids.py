"""Job ids: UUIDv7, created by the client and ordered by time, so that an insert is safe to repeat."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import uuid

from backstay.clock import Instant
from backstay.errors import InvalidOption

_COUNTER_MAX = 0xFFF
_lock = threading.RLock()  # a signal handler may interrupt a thread that makes ids, and make some itself
_random = random.Random()  # seeded by the system; ids must be unique, not secret
_last_millis = 0
_counter = 0


def _start_anew() -> None:
    """After a fork: the child must not repeat its parent's ids, nor wait for a thread that it does not have."""
    global _lock
    _lock = threading.RLock()
    _random.seed()


os.register_at_fork(after_in_child=_start_anew)


def new_ids(count: int, now: Instant) -> list[str]:
    """Return ids in ascending order within this process, even if the clock stands still or is set back."""
    global _last_millis, _counter
    ids = []
    draw = _random.getrandbits
    with _lock:
        if now // 1000 > _last_millis:
            _last_millis, _counter = now // 1000, 0
        head = _head(_last_millis)
        for _ in range(count):
            _counter += 1
            if _counter > _COUNTER_MAX:
                _last_millis, _counter = _last_millis + 1, 0
                head = _head(_last_millis)
            tail = f"{draw(62) | 0x8000000000000000:x}"
            ids.append(f"{head}{_counter:03x}-{tail[:4]}-{tail[4:]}")
    return ids


def _head(millis: int) -> str:
    """Return the part that all ids of a millisecond share: the time, and the version 7."""
    time = f"{millis:012x}"
    return f"{time[:8]}-{time[8:]}-7"


def new_id(now: Instant) -> str:
    return new_ids(1, now)[0]


def floor(now: Instant) -> str:
    """Return an id that sorts before every id of this millisecond, and after every earlier one."""
    return f"{_head(now // 1000)[:-1]}0000-0000-000000000000"


def derived(parent_id: str, name: str) -> str:
    """Return the id of a parent's child with this name: always the same, with the time of its parent."""
    drawn = int.from_bytes(hashlib.sha256(f"{parent_id}\0{name}".encode()).digest()[:10])
    tail = f"{drawn & (1 << 62) - 1 | 0x8000000000000000:016x}"
    return f"{parent_id[:13]}-7{drawn >> 68:03x}-{tail[:4]}-{tail[4:]}"


def canonical(job_id: str | uuid.UUID) -> str:
    """Return the spelling under which an id is stored."""
    if isinstance(job_id, uuid.UUID):
        return str(job_id)
    try:
        return str(uuid.UUID(job_id))
    except (ValueError, AttributeError, TypeError):
        raise InvalidOption(f"{job_id!r:.100} is not a job id: ids are UUIDs") from None
