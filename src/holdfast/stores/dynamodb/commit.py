"""Several writes as one transaction, with what it counts and signals."""

from __future__ import annotations

import secrets
from typing import Any

from holdfast import failpoints
from holdfast.clock import Instant
from holdfast.counted import NO_BUCKET
from holdfast.errors import StoreError
from holdfast.lifecycle import Counted
from holdfast.lifecycle import Kind as JobKind
from holdfast.store.types import Signal
from holdfast.stores.dynamodb import counting
from holdfast.stores.dynamodb.counting import Sums
from holdfast.stores.dynamodb.errors import Answer, Refused, Unanswered, answer, translate
from holdfast.stores.dynamodb.layout import Key, Table
from holdfast.stores.dynamodb.table import Tables, bare
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane
from holdfast.stores.dynamodb.writes import (
    Write,
    add,
    change,
    check,
    delete,
    join_set,
    leave_set,
    merged,
    put,
    put_new,
    replace,
    update,
    wire,
)

__all__ = [
    "BYTES_MAX",
    "ITEMS_MAX",
    "Cancelled",
    "Commit",
    "Write",
    "add",
    "change",
    "check",
    "delete",
    "join_set",
    "leave_set",
    "put",
    "put_new",
    "replace",
    "update",
]

ITEMS_MAX = 96  # a transaction takes 100; four are left for a counter that comes late
BYTES_MAX = 3_500_000  # of 4 MB


class Cancelled(Exception):
    """Nothing was written: conditions failed. `failed` says of which items, and what stands there."""

    def __init__(self, failed: dict[tuple[Table, Key], Item | None]) -> None:
        super().__init__(f"{len(failed)} conditions of a commit did not hold")
        self.failed = failed

    def of_job(self, job_id: str) -> bool:
        return (Table.JOBS, (job_id,)) in self.failed


class Commit:
    def __init__(self, tables: Tables, verb: str, now: Instant) -> None:
        self.signals: set[Signal] = set()  # for the board, which its verb tells once it is in
        self._tables = tables
        self._verb = verb
        self._now = now
        self._writes: dict[tuple[Table, Key], Write] = {}
        self._bytes = 0
        self._counts: dict[tuple[JobKind, Counted], Sums] = {}

    def write(self, *writes: Write) -> None:
        for each in writes:
            place = (each.table, each.key)
            before = self._writes.get(place)
            self._writes[place] = each if before is None else merged(before, each)
            self._bytes += each.size

    def count(
        self,
        kind: JobKind,
        outcome: Counted,
        n: int = 1,
        ran: int = 0,
        waited: int = 0,
        bucket: int = NO_BUCKET,
    ) -> None:
        self._counts.setdefault((kind, outcome), Sums()).add(counting.sums(n, ran, waited, ((bucket, n),)))

    @property
    def empty(self) -> bool:
        return not self._writes

    def room(self) -> int:
        """Items that still fit."""
        return ITEMS_MAX - len(self._writes) - len(self._counts)

    def takes(self, *writes: Write, spare: int = 0) -> bool:
        """Whether these fit too, with a new counter and `spare` items that come later."""
        fresh = {(each.table, each.key) for each in writes} - set(self._writes)
        return len(fresh) < self.room() - spare and self._bytes + sum(each.size for each in writes) <= BYTES_MAX

    async def run(self, lane: Lane = Lane.USUAL, seconds: float = 8.0) -> None:
        if not self._writes:
            return
        async with self._tables.counters.lent(self._now, bool(self._counts)) as counter:
            writes = [*self._writes.values(), *counter.writes(self._counts)]
            await self._send(writes, lane, seconds)

    async def _send(self, writes: list[Write], lane: Lane, seconds: float) -> None:
        tables = self._tables
        body: dict[str, Any] = {
            "TransactItems": [
                {each.kind.value: wire(each, tables.names[each.table], tables.shards)} for each in writes
            ],
            "ClientRequestToken": secrets.token_hex(16),  # what makes a repeat of this body harmless
        }
        failpoints.hit_moment(self._verb, "uncommitted")
        try:
            await tables.wire.persist("TransactWriteItems", body, lane=lane, seconds=seconds)
        except Refused as refused:
            if answer(refused) is Answer.CONDITION:
                raise Cancelled(_failed(writes, refused)) from None
            if answer(refused) is Answer.OURS:
                sizes = ", ".join(f"{each.key[0]} {each.size:,}" for each in writes[:5])
                raise StoreError(f"{tables.shown}: {self._verb}: {refused} ({len(writes)} items: {sizes} …)") from None
            raise translate(refused, tables.shown, maybe_applied=True) from None
        except Unanswered as unanswered:
            raise translate(unanswered, tables.shown, maybe_applied=unanswered.sent) from None
        failpoints.hit_moment(self._verb, "committed")


def _failed(writes: list[Write], refused: Refused) -> dict[tuple[Table, Key], Item | None]:
    if len(refused.reasons) != len(writes):  # a server that names none: everything may be it
        return {(each.table, each.key): None for each in writes}
    return {
        (each.table, each.key): None if reason.item is None else bare(reason.item)
        for each, reason in zip(writes, refused.reasons, strict=True)
        if reason.code == "ConditionalCheckFailed"
    }
