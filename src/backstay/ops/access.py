"""API keys for the HTTP API, and sessions of the dashboard."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from backstay import limits
from backstay.clock import Clock, Instant, micros
from backstay.core import access_keys
from backstay.core.access_keys import CreatedKey, KeyInfo
from backstay.core.port import Store
from backstay.core.records import ApiKey, Verdict
from backstay.errors import InvalidOption, KeyNotFound, StoreError
from backstay.ops.audit import Actor, audited

log = logging.getLogger("backstay")


# Keys


async def create_key(
    store: Store,
    clock: Clock,
    actor: Actor,
    name: str,
    scopes: Sequence[str],
    *,
    queues: Sequence[str],
    expires_in: float | timedelta | None,
    env: str,
) -> CreatedKey:
    """Create a key, and warn if none of the keys may create others over HTTP."""
    now = clock.now()
    async with audited(store, clock, actor, "key.create", str(name)) as entry:
        text, key = access_keys.make(
            name, scopes, queues=queues, now=now, expires_at=_expiry(expires_in, now), by=actor.by, env=env
        )
        known = await store.keys()
        if sum(map(access_keys.is_listed, known)) >= limits.KEYS_MAX:
            raise InvalidOption(f"there are {limits.KEYS_MAX:,} keys already (KEYS_MAX): remove some first")
        await _save_new(store, key)
        info = access_keys.info(key, now)
        entry.target, entry.after = key.key_id, access_keys.key(info)
    if not any(access_keys.makes_keys(each, now) for each in (*known, key)):
        log.warning(
            "every request needs a key from now on, and no key with the scope admin covers every queue, so that keys"
            " cannot be created or revoked over HTTP: create one with the scope admin here"
        )
    return CreatedKey(text, info)


async def api_keys(store: Store, now: Instant) -> list[KeyInfo]:
    """List all keys, newest first, including expired and revoked ones."""
    found = [key for key in await store.keys() if access_keys.is_listed(key)]
    return [access_keys.info(key, now) for key in sorted(found, key=lambda key: key.created_at, reverse=True)]


async def check_key(store: Store, now: Instant, text: str) -> KeyInfo | None:
    """Return the key with this text if it is valid, otherwise None."""
    parsed = access_keys.parse(text)
    if parsed is None:
        return None
    found = {key.key_id: key for key in await store.keys([parsed.key_id]) if access_keys.is_listed(key)}
    key = access_keys.check(parsed, found, now)
    return None if key is None else access_keys.info(key, now)


async def revoke_key(store: Store, clock: Clock, actor: Actor, key_id: str) -> KeyInfo:
    """Revoke a key and delete its sessions; warn if it was the last that may create others over HTTP."""
    known, now = await store.keys(), clock.now()
    was_last = [each.key_id for each in known if access_keys.makes_keys(each, now)] == [key_id]
    async with audited(store, clock, actor, "key.revoke", key_id, _before(known, key_id, now)) as entry:
        key = _one(known, key_id)
        if key.revoked_at is None:
            key = msgspec.structs.replace(key, revoked_at=now, revoked_by=actor.by)
            await store.save_key(key)
        await store.drop_keys(_sessions_of(known, key_id))
        info = access_keys.info(key, now)
        entry.after = access_keys.key(info)
    if was_last:
        log.warning(
            "that was the last key with the scope admin and every queue: keys can no longer be created over HTTP,"
            ' and every request needs a key. Create another with "backstay keys create NAME --scope admin"'
        )
    return info


async def remove_key(store: Store, clock: Clock, actor: Actor, key_id: str) -> None:
    """Delete a revoked or expired key, and what is left of its sessions."""
    known, now = await store.keys(), clock.now()
    async with audited(store, clock, actor, "key.remove", key_id, _before(known, key_id, now)):
        if access_keys.is_live(_one(known, key_id), now):
            raise InvalidOption(f"key {key_id} is still valid: revoke it first")
        await store.drop_keys([key_id, *_sessions_of(known, key_id)])


def _before(known: Sequence[ApiKey], key_id: str, now: Instant) -> dict[str, Any] | None:
    found = next((key for key in known if key.key_id == key_id and access_keys.is_listed(key)), None)
    return None if found is None else access_keys.key(access_keys.info(found, now))


def _one(known: Sequence[ApiKey], key_id: str) -> ApiKey:
    for key in known:
        if key.key_id == key_id and access_keys.is_listed(key):
            return key
    raise KeyNotFound(f'no key {access_keys.masked(key_id)!r:.80}: "backstay keys" lists their ids')


def _sessions_of(known: Sequence[ApiKey], key_id: str) -> list[str]:
    return [key.key_id for key in known if key.of == key_id]


def _expiry(expires_in: float | timedelta | None, now: Instant) -> Instant | None:
    if expires_in is None:
        return None
    try:
        span = micros(expires_in)
    except (TypeError, ValueError, OverflowError):
        span = 0
    if not 0 < span <= limits.KEY_DAYS_MAX * 86_400 * 1_000_000:
        raise InvalidOption(
            f"expires_in={expires_in!r:.40}: use seconds or a timedelta, above 0 and up to {limits.KEY_DAYS_MAX:,} days"
        )
    return now + span


async def _save_new(store: Store, key: ApiKey) -> None:
    if await store.save_key(key, new=True) is not Verdict.APPLIED:
        raise StoreError("the id of the new key is unexpectedly taken: try again")


# Sessions of the dashboard


async def open_session(store: Store, now: Instant, key: ApiKey) -> CreatedKey:
    """Create a session key for a browser that logged in with another key; delete expired sessions."""
    text, session = access_keys.open_session(key, now)
    await _save_new(store, session)
    await store.drop_keys(_over(await store.keys(), now))
    return CreatedKey(text, access_keys.info(session, now))


async def close_session(store: Store, key_id: str) -> None:
    """Delete a session's key, never another key."""
    found = await store.keys([key_id])
    await store.drop_keys([key.key_id for key in found if key.of is not None])


def _over(known: Sequence[ApiKey], now: Instant) -> list[str]:
    """Sessions that have expired, and the oldest of those beyond the limit."""
    sessions = sorted((key for key in known if key.of is not None), key=lambda key: key.created_at)
    spare = len(sessions) - limits.SESSIONS_MAX
    return [key.key_id for place, key in enumerate(sessions) if place < spare or not access_keys.is_live(key, now)]
