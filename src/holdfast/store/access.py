"""Who may come in over HTTP, and what was changed by whom: plain data that crosses the port."""

from __future__ import annotations

import msgspec

from holdfast.clock import Instant


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is stored: enough to recognise its text, and not enough to make it."""

    key_id: str
    name: str
    secret_hash: str  # SHA-256 of the secret, in hex
    scopes: tuple[str, ...]
    queues: tuple[str, ...] = ()  # patterns with * in them; empty: all
    created_at: Instant
    created_by: str | None = None
    expires_at: Instant | None = None
    revoked_at: Instant | None = None
    revoked_by: str | None = None
    of: str | None = None  # a session of the dashboard: the key it was opened with, and goes with

    def __repr__(self) -> str:
        return f"ApiKey({self.key_id!r}, {self.name!r}, scopes={self.scopes!r}, queues={self.queues!r})"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change that someone asked for. It is stored before the change, without an outcome, and again after it."""

    entry_id: str  # UUIDv7: entries are in the order of their ids
    at: Instant
    by: str
    via: str  # http, dashboard, cli
    action: str  # job.cancel, queue.pause, …
    target: str  # an id or a name
    before: str | None = None  # JSON
    after: str | None = None  # JSON
    outcome: str | None = None  # "ok", or what went wrong; None: whoever wrote it has not come back to say
    remote: str | None = None


class AuditPage(msgspec.Struct, frozen=True):
    items: tuple[AuditEntry, ...]
    next: str | None = None
