"""Runs a handler's own statements in the commit of its completion: what they may touch, and for how long.

They share our connection and the file's only write lock. So SQLite asks us about each table and each kind of statement
while it prepares one, and about the time while it runs one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence

import apsw

from backstay.core.records import Effect
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite.connection import load
from backstay.errors import EffectFailed
from backstay.limits import EFFECT_SECONDS_MAX

_CHECK_EVERY = 10_000  # instructions of SQLite's virtual machine, less than a millisecond

# Statements that would end, hide or leave the transaction that they must be part of, or change how SQLite works.
_FORBIDDEN = {
    apsw.SQLITE_TRANSACTION: "transactions",
    apsw.SQLITE_SAVEPOINT: "savepoints",
    apsw.SQLITE_ATTACH: "ATTACH",
    apsw.SQLITE_DETACH: "DETACH",
    apsw.SQLITE_PRAGMA: "PRAGMA",
    apsw.SQLITE_ANALYZE: "ANALYZE",  # would change the plans of our statements
    apsw.SQLITE_CREATE_VTABLE: "virtual tables",
    apsw.SQLITE_DROP_VTABLE: "virtual tables",
    # What a trigger or a view refers to is not known before it is used, which may be outside of a job.
    apsw.SQLITE_CREATE_TRIGGER: "triggers",
    apsw.SQLITE_DROP_TRIGGER: "triggers",
    apsw.SQLITE_CREATE_VIEW: "views",
    apsw.SQLITE_DROP_VIEW: "views",
}
_CHANGES = frozenset(
    {
        apsw.SQLITE_INSERT,
        apsw.SQLITE_UPDATE,
        apsw.SQLITE_DELETE,
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_DROP_INDEX,
    }
)
_DEFINES = frozenset({apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_ALTER_TABLE})
OWN_TABLES = load("own_tables")
RESULT_NAMES = load("result_names")
REFERENCES = load("references")


@functools.cache
def own_tables() -> frozenset[str]:
    """Return the tables that the migrations create, in lower case."""
    scratch = apsw.Connection(":memory:")
    try:
        for _, _, statements in sqlite_connection.migrations():
            scratch.execute(statements)
        found = sqlite_connection.rows(scratch, OWN_TABLES)
    finally:
        scratch.close()
    return frozenset(name.lower() for (name,) in found)


def run(connection: apsw.Connection, job_id: str, effects: Sequence[Effect]) -> None:
    declared = sqlite_connection.rows(connection, RESULT_NAMES)
    guard = _Guard(own_tables().union(f"result_{name}".lower() for (name,) in declared))
    connection.authorizer = guard.authorize
    connection.set_progress_handler(guard.over_time, _CHECK_EVERY)
    try:
        for statement, parameters in effects:
            for value in parameters:
                if not (value is None or isinstance(value, str | int | float | bytes)):
                    raise TypeError(f"parameter {value!r:.80}: SQLite takes None, strings, numbers and bytes")
            for _row in connection.execute(statement, parameters):
                pass  # to the end: a statement is done once it has no more rows, and the next one runs after it
    except (apsw.FullError, apsw.IOError, apsw.BusyError):
        raise  # not caused by the statement: the whole group is repeated
    except apsw.InterruptError:
        raise EffectFailed(
            f"the statements of ctx.transaction() took longer than {EFFECT_SECONDS_MAX:g} s, during which no other"
            " process could write: do the work before, and only store its result here",
            job_id=job_id,
        ) from None
    except apsw.AuthError as error:
        raise EffectFailed(f"{error}: {guard.denied}", job_id=job_id) from None
    except (apsw.Error, TypeError, ValueError, OverflowError) as error:
        raise EffectFailed(f"{type(error).__name__}: {error}", job_id=job_id) from None
    finally:
        connection.set_progress_handler(None)
        connection.authorizer = None
    if connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
        raise EffectFailed("a deferred foreign key is not satisfied", job_id=job_id)
    if guard.defined:
        _refuse_references(guard.own, sqlite_connection.rows(connection, REFERENCES), job_id)


def _refuse_references(own: frozenset[str], references: Iterable[tuple[str, str]], job_id: str) -> None:
    """Refuse foreign keys on our tables: their rows could no longer be archived, or would take others with them."""
    for name, table in references:
        if table.lower() in own and name.lower() not in own:
            raise EffectFailed(
                f"{name} has a foreign key on {table}, which belongs to Backstay and whose rows come and go: store the"
                " job's id without one",
                job_id=job_id,
            )


class _Guard:
    """Denies changes of Backstay's tables: those change only through the lifecycle, and result rows only through their
    run. No temporary table may shadow one."""

    def __init__(self, own: frozenset[str]) -> None:
        self.own = own
        self.denied = ""
        self.defined = False  # whether a table was created or changed
        self._deadline = time.monotonic() + EFFECT_SECONDS_MAX

    def over_time(self) -> bool:
        return time.monotonic() > self._deadline

    def authorize(
        self, operation: int, first: str | None, second: str | None, database: str | None, _trigger: str | None
    ) -> int:
        if operation in _FORBIDDEN:
            return self._deny(f"{_FORBIDDEN[operation]} cannot be used in ctx.transaction()")
        if database == "temp":
            return self._deny("temporary tables cannot be used in ctx.transaction()")
        if operation not in _CHANGES:
            return apsw.SQLITE_OK
        self.defined |= operation in _DEFINES
        # For an update, the second is a column.
        touched = (first,) if operation == apsw.SQLITE_UPDATE else (first, second)
        for name in touched:
            if name is not None and name.lower() in self.own:
                return self._deny(f"{name} belongs to Backstay, and changes only through its own calls")
        if operation in (apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE) and (first or "").startswith("sqlite_stat"):
            return self._deny("SQLite's statistics cannot be changed in ctx.transaction()")
        return apsw.SQLITE_OK

    def _deny(self, why: str) -> int:
        self.denied = why
        return apsw.SQLITE_DENY
