"""Who makes a change, and the audit entry that every change of a person or program leaves.

Operations wrap their change in `audited`. The entry is stored before the change, so that a crash in between leaves a
trace, and updated when the outcome is known. Submits leave no entry, because a job's `created_by` says who submitted
it; nor do handlers and workers, whose changes are in the job's history.
"""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from backstay import limits
from backstay.clock import Clock
from backstay.core import access_keys
from backstay.core.access_keys import AuditTrail
from backstay.core.checks import check_text
from backstay.core.port import Store
from backstay.core.records import AuditEntry
from backstay.errors import InvalidOption

log = logging.getLogger("backstay")


class Actor(msgspec.Struct, frozen=True):
    """Who makes a change: a name for the trail and the history, and how the change came in."""

    by: str
    via: str = "python"  # or http, dashboard, cli, mcp
    remote: str | None = None  # the address that a request came from
    queues: tuple[str, ...] = ()  # patterns of the queues that a bulk change may touch; none: all queues

    def sees(self, queue: str) -> bool:
        return access_keys.matches(self.queues, queue)


By = str | Actor | None


def actor(by: By) -> Actor:
    """Return the actor that `by=` names; without a name, the user and host of this process."""
    found = by if isinstance(by, Actor) else Actor(_user() if by is None else by)
    check_text("by", found.by, limits.NAME_LENGTH_MAX)
    return found


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may run as a user that has no name
        user = "unknown"
    name = f"{user}@{socket.gethostname()}".encode("utf-8", "replace").decode().replace("\0", "")
    return name[: limits.NAME_LENGTH_MAX]


class Audited:
    """The audit entry of a change in progress: set `after`, and `target` if it becomes known only now."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.after: Any = None


@asynccontextmanager
async def audited(
    store: Store, clock: Clock, actor: Actor, action: str, target: str, before: Any = None
) -> AsyncIterator[Audited]:
    """Wrap a change: store its audit entry before it, and update the entry when the outcome is known."""
    entry = access_keys.begun(
        action, target, by=actor.by, via=actor.via, now=clock.now(), before=before, remote=actor.remote
    )
    await store.audit([entry])
    change = Audited(target)
    try:
        yield change
    except Exception as error:  # not if it is cancelled halfway: the outcome is then unknown
        await _finish(store, entry, change, access_keys.failure(error))
        raise
    await _finish(store, entry, change, access_keys.OK)


async def _finish(store: Store, entry: AuditEntry, change: Audited, outcome: str) -> None:
    done = access_keys.ended(entry, target=change.target, after=change.after, outcome=outcome)
    try:
        await store.audit([done])
    except Exception as error:  # the change is made, or refused: that is the answer
        log.warning(
            "could not write the outcome of %s to the audit trail: %s: %s", entry.action, type(error).__name__, error
        )


async def audit_trail(store: Store, after: str | None, limit: int) -> AuditTrail:
    """List changes, newest first."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= limits.AUDIT_PAGE_MAX:
        raise InvalidOption(f"limit={limit!r:.40}: use 1 to {limits.AUDIT_PAGE_MAX:,}")
    page = await store.audited(None if after is None else access_keys.cursor(after), limit)
    trail = AuditTrail(map(access_keys.record, page.items))
    trail.next = page.next
    return trail
