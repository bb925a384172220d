"""Job ids: UUIDv7, created by the client and ordered by time, so that an insert is safe to repeat."""

from __future__ import annotations

import hashlib
import random
import threading
import uuid

from backstay import posix
from backstay.clock import Instant
from backstay.errors import InvalidOption

_COUNTER_BITS = 12  # after the time in milliseconds
_COUNTER_MAX = 0xFFF
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))
_lock = threading.RLock()  # a signal handler may interrupt a thread that makes ids, and make some itself
_random = random.Random()  # seeded by the system; ids must be unique, not secret
_last = 0  # time and counter of the last id


def _start_anew() -> None:
    """After a fork: the child must not repeat its parent's ids, nor wait for a thread that it does not have."""
    global _lock
    _lock = threading.RLock()
    _random.seed()


posix.at_fork(after_in_child=_start_anew)


def _take(count: int, now: Instant) -> int:
    """Return the first of as many times with a counter, which no other id of this process has."""
    global _last
    with _lock:
        first = max(_last, now // 1000 << _COUNTER_BITS) + 1
        _last = first + count - 1
    return first


def new_ids(count: int, now: Instant) -> list[str]:
    """Return ids in ascending order within this process, even if the clock stands still or is set back."""
    first = _take(count, now)
    drawn = bytearray(_random.randbytes(8 * count))
    drawn[::8] = drawn[::8].translate(_VARIANT)
    tails = drawn.hex()  # of all: slices of it cost less than numbers to write
    head = _head(first >> _COUNTER_BITS)
    ids = []
    at = 0
    for place in range(first, first + count):
        counter = place & _COUNTER_MAX
        if counter == 0:
            head = _head(place >> _COUNTER_BITS)
        ids.append(f"{head}{counter:03x}-{tails[at : at + 4]}-{tails[at + 4 : at + 16]}")
        at += 16
    return ids


def _head(millis: int) -> str:
    """Return the part that all ids of a millisecond share: the time, and the version 7."""
    time = f"{millis:012x}"
    return f"{time[:8]}-{time[8:]}-7"


def new_id(now: Instant) -> str:
    time = f"{_take(1, now):015x}"
    tail = f"{_random.getrandbits(62) | 0x8000000000000000:x}"
    return f"{time[:8]}-{time[8:12]}-7{time[12:]}-{tail[:4]}-{tail[4:]}"


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
