"""Who may come in over HTTP, and the trail of what they changed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec

from holdfast import auditing, keys, limits
from holdfast.auditing import AuditTrail
from holdfast.checks import check_text
from holdfast.clock import Instant, micros
from holdfast.errors import HoldfastError, InvalidOption, KeyNotFound, StoreError
from holdfast.keys import CreatedKey, KeyInfo
from holdfast.opened import Opened
from holdfast.store.types import ApiKey, AuditEntry, Verdict

log = logging.getLogger("holdfast")


class Audited:
    """What is said of a change while it is made: set `after`, and `target` where it is known only now."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.after: Any = None


class Granting(Opened):
    # Keys

    async def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        queues: Sequence[str] = (),
        expires_in: float | timedelta | None = None,
        by: str | None = None,
        env: str = keys.ENV,
    ) -> CreatedKey:
        """A key for clients of the HTTP API. `created.text` is shown now and never again.

        Scopes are read, submit, work and admin, which has the others in it; `queues` are patterns such as "mail*".
        """
        now = self.clock.now()
        text, key = keys.make(name, scopes, queues=queues, now=now, expires_at=_expiry(expires_in, now), by=by, env=env)
        known = await self.store.keys()
        if sum(map(keys.is_listed, known)) >= limits.KEYS_MAX:
            raise InvalidOption(f"there are {limits.KEYS_MAX:,} keys already (KEYS_MAX): remove some first")
        await self._save_new(key)
        if not any(keys.makes_keys(each, now) for each in (*known, key)):
            log.warning(
                "no key has the scope admin and every queue, and as there is a key now, everyone needs one: nobody can"
                " make or revoke keys over HTTP. Make one with the scope admin here"
            )
        return CreatedKey(text, keys.info(key, now))

    async def api_keys(self) -> list[KeyInfo]:
        """Every key, the newest first, those that are over included; of none of them the secret."""
        now = self.clock.now()
        found = [key for key in await self.store.keys() if keys.is_listed(key)]
        return [keys.info(key, now) for key in sorted(found, key=lambda key: key.created_at, reverse=True)]

    async def check_key(self, text: str) -> KeyInfo | None:
        """The key whose text this is, while it lives; else None. For routes of an application of your own."""
        parsed = keys.parse(text)
        if parsed is None:
            return None
        now = self.clock.now()
        found = {key.key_id: key for key in await self.store.keys([parsed.key_id]) if keys.is_listed(key)}
        key = keys.check(parsed, found, now)
        return None if key is None else keys.info(key, now)

    async def revoke_key(self, key_id: str, *, by: str | None = None) -> KeyInfo:
        """End a key, and the sessions that were opened with it; servers know within five seconds."""
        now = self.clock.now()
        known = await self.store.keys()
        key = _one(known, key_id)
        was_last = [each.key_id for each in known if keys.makes_keys(each, now)] == [key_id]
        if key.revoked_at is None:
            by = check_text("by", by, limits.NAME_LENGTH_MAX)
            key = msgspec.structs.replace(key, revoked_at=now, revoked_by=by)
            await self.store.save_key(key)
        await self.store.drop_keys(_sessions_of(known, key_id))
        if was_last:
            log.warning(
                "that was the last key with the scope admin and every queue: nobody can make keys over HTTP any more,"
                ' and without a key nobody comes in. Make another with "holdfast keys create NAME --scope admin"'
            )
        return keys.info(key, now)

    async def remove_key(self, key_id: str) -> None:
        """Forget a key that is over: it is no longer listed."""
        known = await self.store.keys()
        if keys.is_live(_one(known, key_id), self.clock.now()):
            raise InvalidOption(f"key {key_id} is in use: revoke it first")
        await self.store.drop_keys([key_id, *_sessions_of(known, key_id)])

    # Sessions of the dashboard

    async def open_session(self, key: ApiKey) -> CreatedKey:
        """A key for the browser of someone who has shown another; sessions that are over go."""
        now = self.clock.now()
        text, session = keys.open_session(key, now)
        await self._save_new(session)
        await self.store.drop_keys(_over(await self.store.keys(), now))
        return CreatedKey(text, keys.info(session, now))

    async def close_session(self, key_id: str) -> None:
        """Log out. No key but that of a session is touched."""
        found = await self.store.keys([key_id])
        await self.store.drop_keys([key.key_id for key in found if key.of is not None])

    async def _save_new(self, key: ApiKey) -> None:
        if await self.store.save_key(key, new=True) is not Verdict.APPLIED:
            raise StoreError("the id of the new key is taken, which is not to be expected: try again")

    # The trail

    @asynccontextmanager
    async def audited(
        self,
        action: str,
        target: str,
        *,
        by: str,
        via: str,
        before: Any = None,
        remote: str | None = None,
        failure: Callable[[Exception], str] = auditing.failure,
    ) -> AsyncIterator[Audited]:
        """Around a change: its entry is stored before it, and again when it is known what became of it.

        async with app.audited("queue.pause", name, by="deploys", via="http") as entry:
            queue = await app.pause_queue(name, by="deploys")
            entry.after = {"paused": True}
        """
        entry = auditing.begun(action, target, by=by, via=via, now=self.clock.now(), before=before, remote=remote)
        await self.store.audit([entry])
        change = Audited(target)
        try:
            yield change
        except Exception as error:  # not where it is stopped half-way: then nobody knows what became of it
            await self._finish(entry, change, failure(error))
            raise
        await self._finish(entry, change, auditing.OK)

    async def _finish(self, entry: AuditEntry, change: Audited, outcome: str) -> None:
        done = auditing.ended(entry, target=change.target, after=change.after, outcome=outcome)
        try:
            await self.store.audit([done])
        except HoldfastError as error:  # the change is made, or refused: that is the answer
            log.warning("the outcome of %s could not be written to the audit trail: %s", entry.action, error)

    async def audit_trail(self, after: str | None = None, limit: int = 50) -> AuditTrail:
        """Who changed what, newest first; those of the last year are kept."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= limits.AUDIT_PAGE_MAX:
            raise InvalidOption(f"limit={limit!r:.40}: use 1 to {limits.AUDIT_PAGE_MAX:,}")
        page = await self.store.audited(None if after is None else auditing.cursor(after), limit)
        trail = AuditTrail(map(auditing.record, page.items))
        trail.next = page.next
        return trail


def _one(known: Sequence[ApiKey], key_id: str) -> ApiKey:
    for key in known:
        if key.key_id == key_id and keys.is_listed(key):
            return key
    raise KeyNotFound(f'no key {keys.masked(key_id)!r:.80}: "holdfast keys" lists their ids')


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


def _over(known: Sequence[ApiKey], now: Instant) -> list[str]:
    """Sessions that have run out, and the oldest of those that are too many."""
    sessions = sorted((key for key in known if key.of is not None), key=lambda key: key.created_at)
    spare = len(sessions) - limits.SESSIONS_MAX
    return [key.key_id for place, key in enumerate(sessions) if place < spare or not keys.is_live(key, now)]
