"""API keys: made, read and checked. Only `server_secret` touches a store.

The text of a key is `hf_<env>_<keyid>_<secret>_<crc>`. It is shown once, when it is made. Stored is the hash of its
secret, which is 256 random bits: nobody gets from the one to the other, however fast the hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast import limits
from holdfast.checks import check_text
from holdfast.clock import MICROS, Instant, to_datetime
from holdfast.errors import InvalidOption, StoreError
from holdfast.store.port import Store
from holdfast.store.types import ApiKey

SCOPES = ("read", "submit", "work", "admin")  # admin has the others in it
ENV = "live"
SERVER_SECRET_ID = "server-secret"  # noqa: S105 - no key has this id: theirs have no hyphen
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH, _SECRET_LENGTH, _CRC_LENGTH = 12, 43, 6  # 43 digits of base 62 hold 32 bytes, 6 hold a CRC-32
_TEXT = re.compile(r"(hf_[a-z]{1,10}_([0-9A-Za-z]{12})_([0-9A-Za-z]{43}))_([0-9A-Za-z]{6})")
_TEXT_LENGTH_MAX = 80
_ANYWHERE = re.compile(r"(hf_[a-z]{1,10}_[0-9A-Za-z]{12})_[0-9A-Za-z]+(?:_[0-9A-Za-z]+)?")
_ENV = re.compile(r"[a-z]{1,10}")
_PATTERN = re.compile(r"[A-Za-z0-9._:*-]{1,128}")
_NOBODYS_HASH = hashlib.sha256(b"").hexdigest()  # compared with where no key has the id: both cases take as long


class ParsedKey(msgspec.Struct, frozen=True):
    key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"ParsedKey({self.key_id!r})"


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key as people see it: nothing of its secret."""

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
    """A new key. `text` is what a client sends; it is nowhere else, and cannot be had again."""

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
    """The text of a new key, and what to store of it."""
    if check_text("name", name, limits.NAME_LENGTH_MAX) is None:
        raise InvalidOption("a key needs a name: say who is going to use it")
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
    """A short-lived key with the rights of another, for a browser that has shown that one."""
    until = now + limits.SESSION_SECONDS * MICROS
    if key.expires_at is not None:
        until = min(until, key.expires_at)
    return _drawn(
        ENV, msgspec.structs.replace(key, created_at=now, created_by=key.name, expires_at=until, of=key.key_id)
    )


def _drawn(env: str, key: ApiKey) -> tuple[str, ApiKey]:
    """With an id and a secret of its own."""
    key_id = _base62(secrets.randbelow(62**_ID_LENGTH), _ID_LENGTH)
    secret = _base62(secrets.randbits(256), _SECRET_LENGTH)
    head = f"hf_{env}_{key_id}_{secret}"
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
            raise InvalidOption(f"{each!r:.80} is no pattern of queues: write a name, with * for any characters")
    return tuple(dict.fromkeys(queues))


# Reading


def parse(text: str) -> ParsedKey | None:
    """The parts of a key's text; None where it is none, or was typed wrong."""
    found = _TEXT.fullmatch(text) if len(text) <= _TEXT_LENGTH_MAX else None
    if found is None or _crc(found[1]) != found[4]:
        return None
    return ParsedKey(found[2], found[3])


def masked(text: str) -> str:
    """A text in which keys are shortened to what is no secret: for logs and messages."""
    return _ANYWHERE.sub(r"\1_…", text)


# Checking


def check(parsed: ParsedKey, known: Mapping[str, ApiKey], now: Instant) -> ApiKey | None:
    """The stored key whose text this is, while it lives; a session has the rights that its key has now. How long it
    takes to say no tells nothing about how much of the secret was right, nor whether there is such an id."""
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
    """Whether this is a key that someone made, and no session or secret of the server's own."""
    return key.of is None and key.key_id != SERVER_SECRET_ID


def are_needed(known: Iterable[ApiKey]) -> bool:
    """Whether everyone needs a key: as soon as there is one, and until the last is removed. One that has expired or is
    revoked counts too, or else the end of the last key would open the door to all."""
    return any(map(is_listed, known))


def makes_keys(key: ApiKey, now: Instant) -> bool:
    """Whether who has it may make others over HTTP: an admin of all queues."""
    return is_listed(key) and is_live(key, now) and "admin" in key.scopes and not key.queues


def allows(key: ApiKey, scope: str) -> bool:
    return scope in key.scopes or "admin" in key.scopes


def matches(patterns: Iterable[str], queue: str) -> bool:
    """Whether a key with these patterns sees a queue. None at all: every queue."""
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
    """So that a text which was cut or typed wrong is known as such without a look into the store."""
    return _base62(zlib.crc32(head.encode()), _CRC_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


# The server's own secret


async def server_secret(store: Store) -> bytes:
    """What servers of one queue sign with. The first that asks makes it; all have the same."""
    for _ in range(2):
        if found := await store.keys([SERVER_SECRET_ID]):
            return bytes.fromhex(found[0].secret_hash)
        now = 0  # it is as old as the queue, as far as anyone asks
        made = ApiKey(
            key_id=SERVER_SECRET_ID,
            name=SERVER_SECRET_ID,
            secret_hash=secrets.token_hex(32),
            scopes=(),
            created_at=now,
            revoked_at=now,  # nobody comes in with it
        )
        await store.save_key(made, new=True)
    raise StoreError("the secret of the server was stored and is not there: try again")
