"""Submitting inside a transaction of the caller's own, on an apsw connection to the same file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

from holdfast.clock import Instant
from holdfast.errors import InvalidOption
from holdfast.store.types import Inserted, NewJob, Signal
from holdfast.stores.sqlite import inserting
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.tx import Tx

LOOK_SECONDS = 0.005  # how often to see whether the caller has committed: SQLite tells nobody


def insert(
    connection: object, path: Path, jobs: Sequence[NewJob], now: Instant, committed: Callable[[set[Signal]], None]
) -> list[Inserted]:
    """In the caller's thread, which is the one that may use the connection."""
    opened = _checked(connection, path)
    tx = Tx(opened)
    try:
        with opened:  # a savepoint: what is refused leaves the rest of the caller's transaction as it was
            answers = inserting.insert(tx, jobs, now)
            tx.write_counters()
    except apsw.Error as error:
        raise translate(error, str(path)) from None
    _tell_after_commit(opened, tx.signals, committed)
    return answers


def _checked(connection: object, path: Path) -> apsw.Connection:
    if type(connection).__module__ == "sqlite3":
        raise InvalidOption(
            "connection= is a sqlite3.Connection: two copies of SQLite in one process on one file drop each other's"
            " locks, and jobs would be lost; open the file with apsw.Connection instead"
        )
    if not isinstance(connection, apsw.Connection):
        raise InvalidOption(f"connection={type(connection)!r}: give an apsw.Connection to {path}")
    if not connection.in_transaction:
        raise InvalidOption(
            "connection= has no transaction: begin one (BEGIN IMMEDIATE), or submit without connection="
        )
    if not os.path.exists(connection.filename) or not os.path.samefile(connection.filename, path):
        raise InvalidOption(f"connection= is to {connection.filename}, and the jobs are in {path}")
    return connection


def _tell_after_commit(
    connection: apsw.Connection, signals: set[Signal], committed: Callable[[set[Signal]], None]
) -> None:
    """Signals are hints: should the caller roll back, someone looks in vain."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        try:
            busy = connection.in_transaction
        except apsw.Error:  # closed
            busy = False
        if busy:
            loop.call_later(LOOK_SECONDS, look)
        else:
            committed(signals)

    loop.call_later(LOOK_SECONDS, look)
