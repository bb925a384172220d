"""Outbox marks on DynamoDB: what a commit has started and a later one must finish.

A mark is written in the commit that makes it due, and removed when the last part is done. `release` of any store
continues from them, so a crash in between loses nothing. A mark has a nonce: the process that finishes removes the mark
that it read, never a newer one of the same name.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from enum import StrEnum

import msgspec

from backstay.clock import MICROS, Instant
from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.expressions import Ask, Write, delete, equals, put, update
from backstay.engines.dynamodb.schema import Item, Key, Table
from backstay.engines.dynamodb.table import Failed, Tables
from backstay.engines.dynamodb.transport import Lane

GRACE_MICROS = 5 * MICROS


class MarkKind(StrEnum):
    INSERT = "insert"  # a batch that is larger than one commit, whose jobs are in the journal
    ENDED = "ended"  # a job that ended and has dependents to release
    LINK = "link"  # a job whose edges are not all registered
    TREE = "tree"  # a tree that is being archived
    JOIN = "join"  # a waiting parent whose last child has ended
    STAGED = "staged"  # an attempt that has staged children, which are removed if it fails
    UNPACK = "unpack"  # a settled job whose staged children are to be stored


class Mark(msgspec.Struct, frozen=True):
    kind: str
    name: str
    nonce: str
    at: Instant
    item: Item = {}


def is_left(mark: Mark, now: Instant) -> bool:
    """Return whether other processes should continue: the process that stores a batch, or registers edges, needs some
    time."""
    return "handed_over" in mark.item or abs(now - mark.at) >= GRACE_MICROS


def place(kind: str, name: str) -> Key:
    return schema.mark(kind, name)


def new_mark(kind: MarkKind, name: str, now: Instant, **more: object) -> Mark:
    pk, sk = place(kind, name)
    nonce = secrets.token_hex(8)
    item = {"pk": pk, "sk": sk, "kind": kind.value, "name": name, "nonce": nonce, "at": now, **more}
    return Mark(kind.value, name, nonce, now, item)


def written(mark: Mark) -> Write:
    return put(Table.RECORDS, mark.item)


def finished(mark: Mark) -> Write:
    return delete(Table.RECORDS, place(mark.kind, mark.name), equals("nonce", mark.nonce))


async def finish(tables: Tables, mark: Mark) -> None:
    with contextlib.suppress(Failed):  # another process has finished it, or there is a newer mark
        await tables.update(finished(mark), lane=Lane.URGENT)


async def hand_over(tables: Tables, mark: Mark) -> None:
    """Leave the rest to other processes at once."""
    if "handed_over" in mark.item:
        return
    still = equals("nonce", mark.nonce)
    with contextlib.suppress(Failed):
        await tables.update(
            update(Table.RECORDS, place(mark.kind, mark.name), sets={"handed_over": 1}, condition=still),
            lane=Lane.URGENT,
        )


async def marks(tables: Tables, limit: int) -> AsyncIterator[Mark]:
    """Read existing marks, up to `limit` of each partition."""
    for number in range(schema.SLOTS):
        ask = Ask(table=Table.RECORDS, hash=schema.outbox(number), page=limit, consistent=True)
        found = 0
        async for row in tables.ask(ask, lane=Lane.IDLE):
            yield Mark(row["kind"], row["name"], row["nonce"], row["at"], row)
            found += 1
            if found >= limit:
                break
