"""`Session`, what every DynamoDB verb receives: tables, board, counters, and the items seen last.

A verb is `async def verb(session: Session, …) -> answer`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from backstay.clock import MICROS, Instant
from backstay.core.result_tables import ResultTable
from backstay.engines.dynamodb.board import Board
from backstay.engines.dynamodb.schema import Item
from backstay.engines.dynamodb.table import CounterLanes, Tables

REMEMBERED_MAX = 2_000  # more than a process has claims
TOKENS_MAX = 1_000
LOOK_MICROS = 60 * MICROS  # for holders that do not run, once all of them leave by themselves


class Remembered:
    """Jobs as this store last wrote them, so that a settlement need not read what its claim has just written. They may
    be outdated: only an item read in the same call can refuse a write."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, Item] = OrderedDict()
        self._tokens: OrderedDict[str, set[str]] = OrderedDict()
        self._looked: dict[str, Instant] = {}
        self.left_off: dict[str, str] = {}  # by lane, where claims that found only jobs too new for them stopped

    def may_look(self, job_type: str, now: Instant) -> bool:
        """Return whether to look for holders of a limited type that do not run."""
        return abs(now - self._looked.get(job_type, 0)) >= LOOK_MICROS

    def need_not_look(self, job_type: str, now: Instant) -> None:
        """Note that all holders of a limited type leave by themselves."""
        self._looked[job_type] = now

    def keep(self, item: Item) -> None:
        self._items[item["job_id"]] = item
        self._items.move_to_end(item["job_id"])
        while len(self._items) > REMEMBERED_MAX:
            self._items.popitem(last=False)

    def get(self, job_id: str) -> Item | None:
        return self._items.get(job_id)

    def trying(self, token: str, job_ids: Iterable[str]) -> None:
        """Remember what a claim is about to take: a repeat of it checks these jobs first."""
        self._tokens.setdefault(token, set()).update(job_ids)
        self._tokens.move_to_end(token)
        while len(self._tokens) > TOKENS_MAX:
            self._tokens.popitem(last=False)

    def tried(self, token: str) -> set[str]:
        return set(self._tokens.get(token, ()))

    def drop(self, job_id: str) -> None:
        self._items.pop(job_id, None)


class Session(msgspec.Struct, frozen=True):
    tables: Tables
    board: Board
    counters: CounterLanes
    remembered: Remembered
    writer: str
    trails: set[int] = msgspec.field(default_factory=set)  # periods of the audit trail that this store has listed
    result_tables: dict[str, ResultTable] = msgspec.field(default_factory=dict)  # as last read
    failed_marks: set[str] = msgspec.field(default_factory=set)  # nonces of outbox marks that could not be continued

    @property
    def shards(self) -> int:
        """The number of shards, which may be raised under a running process."""
        return self.tables.shards
