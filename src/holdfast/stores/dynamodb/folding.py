"""Numbers of a parent whom others write to at the same moment.

Two transactions on one item exclude each other, and whoever is cancelled has paid all the same. So who meets another
over a parent does not go for it again: its children end with a note of what they change, which nobody else writes, and
the notes are folded into the parent afterwards, all that there are in one commit, by whoever gets through. The others
find theirs gone. A note is a mark: what is left of them is folded by `release`.

Until then the parent counts children as open that have ended: it waits a moment longer, never shorter.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Mapping

import msgspec

from holdfast.clock import Instant
from holdfast.stores.dynamodb import broods, items, keys, moving, outbox
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import Cancelled, Commit, Contended
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.outbox import Mark, MarkKind
from holdfast.stores.dynamodb.plan import Plan
from holdfast.stores.dynamodb.wire import Lane
from holdfast.trees import Brood

TOGETHER_MAX = 80  # notes of one commit
SECONDS = 5.0  # then upkeep may do it
_PAUSE_SECONDS = 0.03  # about a transaction: by then another has folded ours, most likely


def note(parent_id: str, brood: Brood, now: Instant) -> Mark:
    name = f"{parent_id}|{items.new_wid()}"
    return outbox.new_mark(MarkKind.FOLD, name, now, job_id=parent_id, numbers=moving.added(brood))


async def fold(ground: Ground, own: Mark, now: Instant, then: deque[Mark]) -> int:
    """Until this note is folded, by whomever, or time is up; how many were folded here. What follows from a parent that
    ends by it is put into `then`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS
    folded = 0
    while True:
        notes = await _notes(ground, own.item["job_id"])
        if own.nonce not in notes or loop.time() > deadline:
            return folded
        folded += await _fold(ground, own.item["job_id"], [own, *notes.values()], now, then)
        await asyncio.sleep(random.random() * _PAUSE_SECONDS)


async def _notes(ground: Ground, parent_id: str) -> Mapping[str, Mark]:
    partition, begins = keys.mark(MarkKind.FOLD, f"{parent_id}|")
    ask = Ask(table=Table.RECORDS, hash=partition, begins=begins, consistent=True)
    rows = [row async for row in ground.tables.ask(ask, lane=Lane.URGENT)]
    return {row["nonce"]: Mark(row["kind"], row["name"], row["nonce"], row["at"], row) for row in rows}


async def _fold(ground: Ground, parent_id: str, notes: list[Mark], now: Instant, then: deque[Mark]) -> int:
    some = list({mark.nonce: mark for mark in notes}.values())[:TOGETHER_MAX]
    made = Plan()
    for mark in some:
        made.count(parent_id, _brood(mark))
    await broods.settle(ground, made, now)
    commit = Commit(ground.tables, "release", now)
    made.into(commit)
    commit.write(*map(outbox.finished, some))
    try:
        await commit.run(Lane.URGENT, yields=True)
    except (Cancelled, Contended):
        return 0  # another is at it
    ground.board.committed(commit.signals)
    then.extend(made.marks)
    return len(some)


class _Numbers(msgspec.Struct):
    children: int = 0
    open: int = 0
    bad: int = 0
    left: int = 0


def _brood(mark: Mark) -> Brood:
    numbers = msgspec.convert(mark.item["numbers"], _Numbers)
    return Brood(numbers.children, numbers.open, numbers.bad, numbers.left)
