"""Combines several writes into one DynamoDB transaction with its counters and signals, and retries on conflict."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

from backstay import failpoints
from backstay.clock import Instant
from backstay.core.records import Kind as JobKind
from backstay.core.records import Signal
from backstay.core.states import NO_BUCKET, Counted
from backstay.engines.dynamodb import table
from backstay.engines.dynamodb.expressions import (
    Write,
    wire,
)
from backstay.engines.dynamodb.expressions import merged as merged_writes
from backstay.engines.dynamodb.schema import Item, Key, Table
from backstay.engines.dynamodb.table import Sums, Tables, bare
from backstay.engines.dynamodb.transport import Answer, Lane, Refused, Unanswered, answer, translate
from backstay.errors import StoreBusy, StoreError

ITEMS_MAX = 96  # a transaction holds 100; four are left for counters that are added late
BYTES_MAX = 3_500_000  # of 4 MB


class Cancelled(Exception):
    """Nothing was written because conditions failed. `failed` has the items concerned, and their current content."""

    def __init__(self, failed: dict[tuple[Table, Key], Item | None]) -> None:
        super().__init__(f"{len(failed)} conditions of a commit did not hold")
        self.failed = failed

    def of_job(self, job_id: str) -> bool:
        return (Table.JOBS, (job_id,)) in self.failed


class Commit:
    def __init__(self, tables: Tables, verb: str, now: Instant) -> None:
        self.signals: set[Signal] = set()  # signals for the board, sent by the verb after the commit
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
            self._writes[place] = each if before is None else merged_writes(before, each)
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
        self._counts.setdefault((kind, outcome), Sums()).add(table.sums(n, ran, waited, ((bucket, n),)))

    @property
    def empty(self) -> bool:
        return not self._writes

    def room(self) -> int:
        """Return how many more items fit."""
        return ITEMS_MAX - len(self._writes) - len(self._counts)

    def takes(self, *writes: Write, spare: int = 0) -> bool:
        """Return whether these fit too, with a new counter and `spare` items to be added later."""
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
            "TransactItems": [{each.kind.value: wire(each, tables.names[each.table], tables.form)} for each in writes],
            "ClientRequestToken": secrets.token_hex(16),  # makes a repeat of this request harmless
        }
        failpoints.hit_moment(self._verb, "uncommitted")
        try:
            await tables.wire.persist("TransactWriteItems", body, lane=lane, seconds=seconds)
        except Refused as refused:
            if answer(refused) is Answer.CONDITION:
                raise Cancelled(_failed(tables, writes, refused)) from None
            if answer(refused) is Answer.OURS:
                sizes = ", ".join(f"{each.key[0]} {each.size:,}" for each in writes[:5])
                raise StoreError(f"{tables.shown}: {self._verb}: {refused} ({len(writes)} items: {sizes} …)") from None
            raise translate(refused, tables.shown, maybe_applied=True) from None
        except Unanswered as unanswered:
            raise translate(unanswered, tables.shown, maybe_applied=unanswered.sent) from None
        failpoints.hit_moment(self._verb, "committed")


def _failed(tables: Tables, writes: list[Write], refused: Refused) -> dict[tuple[Table, Key], Item | None]:
    if len(refused.reasons) != len(writes):  # a server that names no items: it may be any of them
        return {(each.table, each.key): None for each in writes}
    return {
        (each.table, each.key): None if reason.item is None else bare(tables.fields(each.table, reason.item))
        for each, reason in zip(writes, refused.reasons, strict=True)
        if reason.code == "ConditionalCheckFailed"
    }


ROUNDS_MAX = 30
_PAUSE_SECONDS = 0.005


class Rounds:
    """Counts conflicts of one verb. After too many, there is heavy contention, and the caller should try again
    later."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self.lost = 0

    async def again(self) -> None:
        self.lost += 1
        if self.lost == ROUNDS_MAX:
            raise StoreBusy(
                f"{self._verb}: other processes changed the same jobs {self.lost} times meanwhile: try again"
            )
        await asyncio.sleep(random.random() * _PAUSE_SECONDS * min(2**self.lost, 40))


async def merged(streams: Sequence[AsyncIterator[Item]], name: str, *, backwards: bool = False) -> AsyncIterator[Item]:
    """Merge sorted streams by the attribute with this name. The first pages are requested together."""
    heads = dict(enumerate(await asyncio.gather(*(anext(stream, None) for stream in streams))))
    choose = max if backwards else min
    while open_ones := {number: head for number, head in heads.items() if head is not None}:
        number = choose(open_ones, key=lambda each: open_ones[each][name])
        yield open_ones[number]
        heads[number] = await anext(streams[number], None)
