"""Keys and entries of the audit trail as rows of the SQL engines, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.store.types import ApiKey, AuditEntry, AuditPage

AFTER_ALL = "~"  # after every id
_names = msgspec.json.Decoder(tuple[str, ...])
_FIELDS = ApiKey.__struct_fields__
_LISTS = ("scopes", "queues")


def key_values(key: ApiKey) -> tuple[Any, ...]:
    """In the order of its fields; lists as JSON."""
    return tuple(
        msgspec.json.encode(value).decode() if name in _LISTS else value
        for name, value in msgspec.structs.asdict(key).items()
    )


def key(row: Iterable[Any]) -> ApiKey:
    fields = dict(zip(_FIELDS, row, strict=True))
    for name in _LISTS:
        fields[name] = _names.decode(fields[name])
    return ApiKey(**fields)


def entry(row: Iterable[Any]) -> AuditEntry:
    return AuditEntry(**dict(zip(AuditEntry.__struct_fields__, row, strict=True)))


def page(found: Sequence[AuditEntry], limit: int) -> AuditPage:
    """Of one more than was asked for, which tells whether there is a next page."""
    items = tuple(found[:limit])
    return AuditPage(items, items[-1].entry_id if len(found) > limit else None)
