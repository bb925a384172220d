"""Guards of deduplication: which job a key stands for, and whether it still does. Pure.

Every write of a guard gives it a new nonce and compares the one that was read: a guard that was dead when it was looked
at, and stands for a living job by now, is not taken over.
"""

from __future__ import annotations

import secrets

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL
from holdfast.store.types import FOREVER
from holdfast.stores.dynamodb import keys, moving
from holdfast.stores.dynamodb.expressions import absent, equals
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.writes import Write, put


def in_force(until: Instant | None, target: Item | None, now: Instant) -> bool:
    """Whether a guard stands; `until` None: while its job is active."""
    if target is None:
        return False
    return moving.status_of(target) not in TERMINAL if until is None else now < until


def stands_for(guard: Item | None, target: Item | None, now: Instant) -> str | None:
    """The job that answers for a key; None when the guard has ended, or its job is no longer there."""
    if guard is None or not in_force(guard.get("until"), target, now):
        return None
    job_id: str = guard["job_id"]
    return job_id


def guard(key: str, job_id: str, until: Instant | None, seen: Item | None) -> Write:
    """Let the key stand for this job, in the place of the guard that was seen."""
    pk, sk = keys.guard(key)
    item: Item = {"pk": pk, "sk": sk, "key": key, "job_id": job_id, "nonce": secrets.token_hex(8)}
    if until is not None:
        item["until"] = min(until, FOREVER)
    return put(Table.RECORDS, item, absent("pk") if seen is None else equals("nonce", seen["nonce"]))
