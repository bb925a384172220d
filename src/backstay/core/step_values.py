"""Statements of `ctx.transaction()`: which statements and parameters are allowed, and their encoding. Pure."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from backstay import codec

TAKEN = (
    "None, strings, numbers, bool, bytes, datetime, date, time, timedelta, UUID, Decimal, lists of these, or a dict,"
    " sent as JSON"
)
_INT64 = 2**63
_KEPT = (str, int, float, bytes, datetime, date, time, timedelta, uuid.UUID, Decimal)
_FIRST_WORD = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*([A-Za-z]*)", re.DOTALL)
_CONTROL = frozenset(
    {"ABORT", "BEGIN", "COMMIT", "END", "PREPARE", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"}
)  # PREPARE TRANSACTION would put the completion into a transaction that no one ends


def control_word(statement: str) -> str | None:
    """Return the keyword with which a statement would begin or end the transaction that it must be part of."""
    found = _FIRST_WORD.match(statement)
    word = "" if found is None else found[1].upper()
    return word if word in _CONTROL else None


def kept(value: object) -> object:
    """Return a copy of a parameter that later changes by the handler do not affect; TypeError if it cannot be
    stored."""
    if value is None or isinstance(value, _KEPT):
        if isinstance(value, float) and value != value:
            raise TypeError("parameter nan: not every engine can store it; use None, or Decimal('NaN') on PostgreSQL")
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return codec.to_json(value, "parameter")
    if isinstance(value, list | tuple):
        return [kept(each) for each in value]
    raise TypeError(f"parameter {value!r:.80}: give {TAKEN}")


_UNPACK: dict[str, Callable[[Any], object]] = {
    "base64": base64.b64decode,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda parts: timedelta(*parts),
    "uuid": uuid.UUID,
    "decimal": Decimal,
    "integer": int,
    "list": lambda values: [unpacked(each) for each in values],
}


def packed(value: object) -> object:
    """Encode for the JSON pipe of a child process, so that values that are not JSON keep their type."""
    match value:
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case datetime():
            return {"datetime": value.isoformat()}
        case date():
            return {"date": value.isoformat()}
        case time():
            return {"time": value.isoformat()}
        case timedelta():
            return {"timedelta": [value.days, value.seconds, value.microseconds]}
        case uuid.UUID():
            return {"uuid": str(value)}
        case Decimal():
            return {"decimal": str(value)}
        case list():
            return {"list": [packed(each) for each in value]}
        case int() if not -_INT64 <= value < _INT64:
            return {"integer": str(value)}
        case _:
            return value


def unpacked(value: object) -> object:
    if not isinstance(value, dict):
        return value
    [(kind, inner)] = value.items()
    return _UNPACK[kind](inner)
