"""What a verb is given: `async def verb(ground: Ground, …) -> answer`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from holdfast.store.tables import ResultTable
from holdfast.stores.dynamodb.board import Board
from holdfast.stores.dynamodb.counting import CounterLanes
from holdfast.stores.dynamodb.table import Tables
from holdfast.stores.dynamodb.values import Item

REMEMBERED_MAX = 2_000  # more than a process holds claims
TOKENS_MAX = 1_000


class Remembered:
    """Jobs as this store last wrote them: a settlement need not read what its claim has just written. One may be old:
    only an item read in the same call can refuse a write."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, Item] = OrderedDict()
        self._tokens: OrderedDict[str, set[str]] = OrderedDict()
        self.left_off: dict[str, str] = {}  # where claims stopped that met only what is too new for them; by lane

    def keep(self, item: Item) -> None:
        self._items[item["job_id"]] = item
        self._items.move_to_end(item["job_id"])
        while len(self._items) > REMEMBERED_MAX:
            self._items.popitem(last=False)

    def get(self, job_id: str) -> Item | None:
        return self._items.get(job_id)

    def trying(self, token: str, job_ids: Iterable[str]) -> None:
        """What a claim is about to take: a repeat of it looks there first."""
        self._tokens.setdefault(token, set()).update(job_ids)
        self._tokens.move_to_end(token)
        while len(self._tokens) > TOKENS_MAX:
            self._tokens.popitem(last=False)

    def tried(self, token: str) -> set[str]:
        return set(self._tokens.get(token, ()))

    def drop(self, job_id: str) -> None:
        self._items.pop(job_id, None)


class Ground(msgspec.Struct, frozen=True):
    tables: Tables
    board: Board
    counters: CounterLanes
    remembered: Remembered
    writer: str
    trails: set[int] = msgspec.field(default_factory=set)  # periods of the audit trail that this store has listed
    result_tables: dict[str, ResultTable] = msgspec.field(default_factory=dict)  # as they were when last looked for

    @property
    def shards(self) -> int:
        """They may be raised under a running process."""
        return self.tables.shards
