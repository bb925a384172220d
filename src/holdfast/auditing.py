"""Entries of the audit trail: how they are made, and how people see them. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast import ids, limits
from holdfast.clock import Instant, to_datetime
from holdfast.errors import HoldfastError, InvalidOption
from holdfast.store.types import AuditEntry

OK = "ok"
VIA = ("http", "dashboard", "cli")


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change, as people read it. `outcome` None: whoever made it died before it heard what became of it."""

    entry_id: str
    at: datetime
    by: str
    via: str
    action: str
    target: str
    before: Any
    after: Any
    outcome: str | None
    remote: str | None


class AuditTrail(list[AuditRecord]):
    """Entries, newest first; `next` is the cursor for `after=`, or None at the end."""

    next: str | None = None


def begun(
    action: str, target: str, *, by: str, via: str, now: Instant, before: Any = None, remote: str | None = None
) -> AuditEntry:
    """The entry of a change that is about to be made."""
    return AuditEntry(
        entry_id=ids.new_id(now),
        at=now,
        by=_plain(by),
        via=via,
        action=action,
        target=_plain(target),
        before=_json(before),
        remote=None if remote is None else _plain(remote),
    )


def ended(entry: AuditEntry, *, target: str, after: Any, outcome: str) -> AuditEntry:
    """The same once it is known what became of the change."""
    return msgspec.structs.replace(entry, target=_plain(target), after=_json(after), outcome=_plain(outcome))


def failure(error: Exception) -> str:
    """What went wrong, in a word: messages may have in them what does not belong here."""
    return type(error).__name__ if isinstance(error, HoldfastError) else "Error"


def record(entry: AuditEntry) -> AuditRecord:
    return AuditRecord(
        entry_id=entry.entry_id,
        at=to_datetime(entry.at),
        by=entry.by,
        via=entry.via,
        action=entry.action,
        target=entry.target,
        before=None if entry.before is None else msgspec.json.decode(entry.before),
        after=None if entry.after is None else msgspec.json.decode(entry.after),
        outcome=entry.outcome,
        remote=entry.remote,
    )


def cursor(after: str) -> str:
    """Where a page of the trail ended; it is the id of an entry."""
    try:
        return ids.canonical(after)
    except InvalidOption:
        raise InvalidOption(f"after={after!r:.80} is no cursor of the audit trail: give the `next` of a page") from None


def _plain(text: str) -> str:
    """What every engine keeps: it may come from a request that is about to be refused for it."""
    cut = text[: limits.KEY_LENGTH_MAX]
    return cut.encode("utf-8", "replace").decode().replace("\0", "�")


def _json(value: Any) -> str | None:
    if value is None:
        return None
    encoded = msgspec.json.encode(value)
    if len(encoded) > limits.AUDIT_TEXT_BYTES_MAX:
        encoded = msgspec.json.encode({"left_out_bytes": len(encoded)})
    return encoded.decode()
