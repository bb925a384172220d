"""Totals of the counters, and their upkeep: minutes that are over are added to the sums before they are dropped."""

from __future__ import annotations

import apsw

from holdfast.clock import Instant
from holdfast.store.types import Total
from holdfast.stores import records, summing
from holdfast.stores.sqlite import sql
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx

TOTALS = load("totals")
SUM = load("sum_counters")
_UNTIL = "summed_until"
_OLDEST = "SELECT min(minute) FROM counter WHERE minute >= ?"


def totals(connection: apsw.Connection) -> list[Total]:
    return [records.total(*row) for row in sql.rows(connection, TOTALS, (until(connection),))]


def until(connection: apsw.Connection) -> Instant:
    """What came before this is in the sums."""
    found = sql.value(connection, "SELECT value FROM meta WHERE name = ?", (_UNTIL,))
    return 0 if found is None else int(found)


def keep_until(tx: Tx, instant: Instant) -> None:
    tx.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_UNTIL, str(instant)))


def anything_to_do(connection: apsw.Connection, now: Instant) -> bool:
    if _next_span(connection, now) is not None:
        return True
    oldest = summing.droppable(until(connection), now)
    return bool(sql.value(connection, "SELECT EXISTS (SELECT 1 FROM counter WHERE minute < ?)", (oldest,)))


def keep_up(tx: Tx, now: Instant) -> None:
    span = _next_span(tx.connection, now)
    if span is not None:
        tx.execute(SUM, span)
        keep_until(tx, span[1])
    tx.execute("DELETE FROM counter WHERE minute < ?", (summing.droppable(until(tx.connection), now),))


def _next_span(connection: apsw.Connection, now: Instant) -> tuple[Instant, Instant] | None:
    start = until(connection)
    return summing.next_span(start, sql.value(connection, _OLDEST, (start,)), now)
