"""Marks of what a commit has begun and others finish: they are written in the commit that makes them due, and go when
the last part is done. `release` of any store goes on from them, so a crash in between loses nothing.

A mark has a nonce: who finishes takes away the one that was read, never a newer one of the same name.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from enum import StrEnum

import msgspec

from holdfast.clock import MICROS, Instant
from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.expressions import equals
from holdfast.stores.dynamodb.layout import Key, Table
from holdfast.stores.dynamodb.table import Ask, Failed, Tables
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane
from holdfast.stores.dynamodb.writes import Write, delete, put, update

GRACE_MICROS = 5 * MICROS


class MarkKind(StrEnum):
    INSERT = "insert"  # a batch that is larger than one commit, whose jobs lie in the journal
    ENDED = "ended"  # a job that ended and has dependents to release
    LINK = "link"  # a job whose edges are not all registered
    TREE = "tree"  # a tree that is being retired
    JOIN = "join"  # a parent that waited, and that the last of its children ended
    STAGED = "staged"  # an attempt that has staged children: what is left of it where it came to nothing
    UNPACK = "unpack"  # a settled job whose staged children are to be stored


class Mark(msgspec.Struct, frozen=True):
    kind: str
    name: str
    nonce: str
    at: Instant
    item: Item = {}


def is_left(mark: Mark, now: Instant) -> bool:
    """Whether others should come to help: who stores a batch, or registers edges, is at it for a while."""
    return "handed_over" in mark.item or abs(now - mark.at) >= GRACE_MICROS


def place(kind: str, name: str) -> Key:
    return keys.mark(kind, name)


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
    with contextlib.suppress(Failed):  # another has finished it, or it is due anew
        await tables.update(finished(mark), lane=Lane.URGENT)


async def hand_over(tables: Tables, mark: Mark) -> None:
    """Who was at it leaves the rest to others."""
    if "handed_over" in mark.item:
        return
    still = equals("nonce", mark.nonce)
    with contextlib.suppress(Failed):
        await tables.update(
            update(Table.RECORDS, place(mark.kind, mark.name), sets={"handed_over": 1}, condition=still),
            lane=Lane.URGENT,
        )


async def marks(tables: Tables, limit: int) -> AsyncIterator[Mark]:
    """Those that stand, up to `limit` of each partition."""
    for number in range(keys.SLOTS):
        ask = Ask(table=Table.RECORDS, hash=keys.outbox(number), page=limit, consistent=True)
        found = 0
        async for row in tables.ask(ask, lane=Lane.IDLE):
            yield Mark(row["kind"], row["name"], row["nonce"], row["at"], row)
            found += 1
            if found >= limit:
                break
