"""API keys and audit entries: create, parse and check keys; what an audit entry says about a change.

The text of a key is `bs_<env>_<keyid>_<secret>_<crc>`. It is shown once, when it is created. The store has only the
hash of its secret, which is 256 random bits and cannot be recovered from the hash, however fast the hash is. Only
`server_secret` accesses a store; the rest is pure.

An audit entry has the same fields of a queue, schedule or key before and after a change. It contains no payloads and no
secrets.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from backstay import ids, limits
from backstay.clock import MICROS, Instant, Moment, to_datetime
from backstay.core.checks import check_text
from backstay.core.port import Store
from backstay.core.queues import Queue
from backstay.core.records import ApiKey, AuditEntry, QueueRow
from backstay.core.run_limits import Limit
from backstay.core.schedules import ScheduleInfo
from backstay.errors import BackstayError, InvalidOption, StoreError

SCOPES = ("read", "submit", "work", "admin")  # admin includes the others
ENV = "live"
SERVER_SECRET_ID = "server-secret"  # noqa: S105 - no key has this id: theirs have no hyphen
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH, _SECRET_LENGTH, _CRC_LENGTH = 12, 43, 6  # 43 digits of base 62 hold 32 bytes, 6 hold a CRC-32
_TEXT = re.compile(r"(bs_[a-z]{1,10}_([0-9A-Za-z]{12})_([0-9A-Za-z]{43}))_([0-9A-Za-z]{6})")
_TEXT_LENGTH_MAX = 80
_ANYWHERE = re.compile(r"(bs_[a-z]{1,10}_[0-9A-Za-z]{12})_[0-9A-Za-z]+(?:_[0-9A-Za-z]+)?")
_ENV = re.compile(r"[a-z]{1,10}")
_PATTERN = re.compile(r"[A-Za-z0-9._:*-]{1,128}")
# what an unknown id is compared with, so that both cases take the same time
_NOBODYS_HASH = hashlib.sha256(b"").hexdigest()


class ParsedKey(msgspec.Struct, frozen=True):
    key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"ParsedKey({self.key_id!r})"


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as users see it, without its secret."""

    key_id: str
    name: str
    scopes: tuple[str, ...]
    queues: tuple[str, ...]
    state: str  # live, expired, revoked
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class CreatedKey(msgspec.Struct, frozen=True):
    """A new key. `text` is what a client sends; it is stored nowhere and cannot be recovered."""

    text: str
    key: KeyInfo

    def __repr__(self) -> str:
        return f"CreatedKey({self.key!r})"


# Making


def make(
    name: str,
    scopes: Sequence[str],
    *,
    queues: Sequence[str] = (),
    now: Instant,
    expires_at: Instant | None = None,
    by: str | None = None,
    env: str = ENV,
) -> tuple[str, ApiKey]:
    """Return the text of a new key, and the record to store."""
    if check_text("name", name, limits.NAME_LENGTH_MAX) is None:
        raise InvalidOption("a key needs a name: say who will use it")
    return _drawn(
        _checked_env(env),
        ApiKey(
            key_id="",
            name=name,
            secret_hash="",
            scopes=_checked_scopes(scopes),
            queues=_checked_queues(queues),
            created_at=now,
            created_by=check_text("by", by, limits.NAME_LENGTH_MAX),
            expires_at=expires_at,
        ),
    )


def open_session(key: ApiKey, now: Instant) -> tuple[str, ApiKey]:
    """Return a short-lived key with the rights of another, for a browser that presented that one."""
    until = now + limits.SESSION_SECONDS * MICROS
    if key.expires_at is not None:
        until = min(until, key.expires_at)
    return _drawn(
        ENV, msgspec.structs.replace(key, created_at=now, created_by=key.name, expires_at=until, of=key.key_id)
    )


def _drawn(env: str, key: ApiKey) -> tuple[str, ApiKey]:
    """Return the key with a new id and secret."""
    key_id = _base62(secrets.randbelow(62**_ID_LENGTH), _ID_LENGTH)
    secret = _base62(secrets.randbits(256), _SECRET_LENGTH)
    head = f"bs_{env}_{key_id}_{secret}"
    return f"{head}_{_crc(head)}", msgspec.structs.replace(key, key_id=key_id, secret_hash=digest(secret))


def _checked_env(env: str) -> str:
    if not isinstance(env, str) or not _ENV.fullmatch(env):
        raise InvalidOption(f"env={env!r:.40}: use 1 to 10 of a-z, such as live or test")
    return env


def _checked_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    if isinstance(scopes, str) or not scopes or not set(scopes) <= set(SCOPES):
        raise InvalidOption(f"scopes={scopes!r:.80}: give a list of one or more of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in scopes)


def _checked_queues(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str) or len(queues) > limits.KEY_QUEUES_MAX:
        raise InvalidOption(f"queues={queues!r:.80}: give a list of up to {limits.KEY_QUEUES_MAX} patterns")
    for each in queues:
        if not isinstance(each, str) or not _PATTERN.fullmatch(each):
            raise InvalidOption(f"{each!r:.80} is not a queue pattern: write a name, with * for any characters")
    return tuple(dict.fromkeys(queues))


# Reading


def parse(text: str) -> ParsedKey | None:
    """Return the parts of a key's text; None if it is not a key, or was mistyped."""
    found = _TEXT.fullmatch(text) if len(text) <= _TEXT_LENGTH_MAX else None
    if found is None or _crc(found[1]) != found[4]:
        return None
    return ParsedKey(found[2], found[3])


def masked(text: str) -> str:
    """Return a text with keys shortened to their public part: for logs and messages."""
    return _ANYWHERE.sub(r"\1_…", text)


# Checking


def check(parsed: ParsedKey, known: Mapping[str, ApiKey], now: Instant) -> ApiKey | None:
    """Return the stored key with this text if it is valid; a session has the rights that its key has now.

    The time of a refusal reveals neither how much of the secret was right nor whether the id exists.
    """
    key = known.get(parsed.key_id)
    expected = _NOBODYS_HASH if key is None else key.secret_hash
    is_right = hmac.compare_digest(digest(parsed.secret), expected)
    if key is None or not is_right or not is_live(key, now):
        return None
    if key.of is None:
        return key
    opened_with = known.get(key.of)
    if opened_with is None or not is_live(opened_with, now):
        return None
    return msgspec.structs.replace(key, name=opened_with.name, scopes=opened_with.scopes, queues=opened_with.queues)


def is_live(key: ApiKey, now: Instant) -> bool:
    return key.revoked_at is None and (key.expires_at is None or now < key.expires_at)


def is_listed(key: ApiKey) -> bool:
    """Return whether this is a user's key, and not a session or a secret of the server."""
    return key.of is None and key.key_id != SERVER_SECRET_ID


def are_needed(known: Iterable[ApiKey]) -> bool:
    """Return whether every request needs a key: as soon as there is one, and until the last is removed. An expired or
    revoked key counts too; otherwise the end of the last key would let everyone in."""
    return any(map(is_listed, known))


def makes_keys(key: ApiKey, now: Instant) -> bool:
    """Return whether the key may create others over HTTP: an admin of all queues."""
    return is_listed(key) and is_live(key, now) and "admin" in key.scopes and not key.queues


def allows(key: ApiKey, scope: str) -> bool:
    return scope in key.scopes or "admin" in key.scopes


def matches(patterns: Iterable[str], queue: str) -> bool:
    """Return whether a key with these patterns sees a queue. No patterns means every queue."""
    listed = tuple(patterns)
    return not listed or any(_matches(pattern, queue) for pattern in listed)


def _matches(pattern: str, queue: str) -> bool:
    if "*" not in pattern:
        return pattern == queue
    first, *middle, last = pattern.split("*")
    if len(queue) < len(first) + len(last) or not (queue.startswith(first) and queue.endswith(last)):
        return False
    at, end = len(first), len(queue) - len(last)
    for piece in middle:  # the leftmost place of each leaves most room for those after it
        found = queue.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def info(key: ApiKey, now: Instant) -> KeyInfo:
    state = "live" if is_live(key, now) else "expired" if key.revoked_at is None else "revoked"
    return KeyInfo(
        key_id=key.key_id,
        name=key.name,
        scopes=key.scopes,
        queues=key.queues,
        state=state,
        created_at=to_datetime(key.created_at),
        created_by=key.created_by,
        expires_at=None if key.expires_at is None else to_datetime(key.expires_at),
        revoked_at=None if key.revoked_at is None else to_datetime(key.revoked_at),
        revoked_by=key.revoked_by,
    )


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _crc(head: str) -> str:
    """Return a checksum, so that a truncated or mistyped key is detected without reading the store."""
    return _base62(zlib.crc32(head.encode()), _CRC_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


# The server's own secret


async def server_secret(store: Store) -> bytes:
    """Return the secret with which the servers of one queue sign. The first one to ask creates it; all share it."""
    for _ in range(2):
        if found := await store.keys([SERVER_SECRET_ID]):
            return bytes.fromhex(found[0].secret_hash)
        now = 0  # counts as old as the queue
        made = ApiKey(
            key_id=SERVER_SECRET_ID,
            name=SERVER_SECRET_ID,
            secret_hash=secrets.token_hex(32),
            scopes=(),
            created_at=now,
            revoked_at=now,  # no one can log in with it
        )
        await store.save_key(made, new=True)
    raise StoreError("the server secret was stored but cannot be found: try again")


OK = "ok"
VIA = ("http", "dashboard", "cli", "python")


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change, as users see it. `outcome` is None if the process died before it learned the outcome."""

    entry_id: str
    at: Moment
    by: str
    via: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(VIA)})]
    action: str
    target: str
    before: Any
    after: Any
    outcome: str | None
    remote: str | None


class AuditTrail(list[AuditRecord]):
    """Entries, newest first; `next` is the cursor to pass as `after=`, or None at the end."""

    next: str | None = None


def begun(
    action: str, target: str, *, by: str, via: str, now: Instant, before: Any = None, remote: str | None = None
) -> AuditEntry:
    """Return the entry of a change that is about to be made."""
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
    """Return the entry with the outcome of the change."""
    return msgspec.structs.replace(entry, target=_plain(target), after=_json(after), outcome=_plain(outcome))


def failure(error: Exception) -> str:
    """Return the error as one word: messages may contain payloads or secrets."""
    return type(error).__name__ if isinstance(error, BackstayError) else "Error"


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
    """Check the cursor of a page of the trail, which is the id of an entry."""
    try:
        return ids.canonical(after)
    except InvalidOption:
        raise InvalidOption(
            f"after={after!r:.80} is not a cursor of the audit trail: pass the `next` of a page"
        ) from None


def _plain(text: str) -> str:
    """Reduce a value to what every engine can store: it may come from a request that is about to be refused for it."""
    cut = text[: limits.KEY_LENGTH_MAX]
    return cut.encode("utf-8", "replace").decode().replace("\0", "�")


def _json(value: Any) -> str | None:
    if value is None:
        return None
    encoded = msgspec.json.encode(value)
    if len(encoded) > limits.AUDIT_TEXT_BYTES_MAX:
        encoded = msgspec.json.encode({"left_out_bytes": len(encoded)})
    return encoded.decode()


_OF_SCHEDULES = (
    "cron", "timezone", "missed", "overlap", "jitter_seconds", "starts_at", "ends_at", "job_type", "queue", "priority",
    "declared_by", "paused", "paused_by", "version",
)  # fmt: skip
_OF_KEYS = ("name", "scopes", "queues", "state", "expires_at", "revoked_by")


def queue(found: Queue | QueueRow | None) -> dict[str, Any]:
    """Return the audited fields of a queue; a queue that was never changed has the defaults."""
    return {
        "paused": found is not None and found.paused_at is not None,
        "paused_by": None if found is None else found.paused_by,
        "reason": None if found is None else found.pause_reason,
        "until": _until(found),
        "max_pending": None if found is None else found.max_pending,
    }


def limit(found: Limit | None) -> dict[str, Any]:
    """Return the audited fields of what was set at run time."""
    return {
        "concurrency": None if found is None else found.concurrency,
        "rate": None if found is None else found.rate,
        "paused": found is not None and found.paused_at is not None,
        "paused_by": None if found is None else found.paused_by,
        "reason": None if found is None else found.pause_reason,
        "until": _until(found),
    }


def _until(found: Queue | QueueRow | Limit | None) -> str | None:
    until = None if found is None else found.paused_until
    if until is None:
        return None
    return (until if isinstance(until, datetime) else to_datetime(until)).isoformat()


def schedule(found: ScheduleInfo | None) -> dict[str, Any] | None:
    return None if found is None else {name: getattr(found, name) for name in _OF_SCHEDULES}


def key(found: KeyInfo | None) -> dict[str, Any] | None:
    return None if found is None else {name: getattr(found, name) for name in _OF_KEYS}
