"""A handler's own statements, in the commit of its completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import apsw

from holdfast.errors import EffectFailed
from holdfast.lifecycle import Effect
from holdfast.stores.sqlite import sql

# What would end, hide or leave the transaction that they must be part of.
_FORBIDDEN = frozenset(
    {
        apsw.SQLITE_TRANSACTION,
        apsw.SQLITE_SAVEPOINT,
        apsw.SQLITE_ATTACH,
        apsw.SQLITE_DETACH,
        apsw.SQLITE_PRAGMA,
        apsw.SQLITE_CREATE_VTABLE,
        apsw.SQLITE_DROP_VTABLE,
    }
)


_WRITES = frozenset({apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE, apsw.SQLITE_ALTER_TABLE})
_SCHEMA = frozenset(
    {
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_CREATE_INDEX,
    }
)
_OURS = frozenset(
    {
        *("job", "edge", "release_due", "dedup", "step", "worker", "job_type", "meta"),
        *("staged", "unpack_due", "result_table"),
    }
)


def run(connection: apsw.Connection, job_id: str, effects: Sequence[Effect]) -> None:
    connection.authorizer = _guard(connection)
    try:
        for statement, parameters in effects:
            for value in parameters:
                if not (value is None or isinstance(value, str | int | float | bytes)):
                    raise TypeError(f"parameter {value!r:.80}: SQLite takes None, text, numbers and bytes")
            connection.execute(statement, parameters)
        if connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            raise EffectFailed("a deferred foreign key is not satisfied", job_id=job_id)
    except (apsw.FullError, apsw.IOError, apsw.BusyError):
        raise  # not the statement's fault: the whole group is tried again
    except (apsw.Error, TypeError, ValueError, OverflowError) as error:
        raise EffectFailed(f"{type(error).__name__}: {error}", job_id=job_id) from None
    finally:
        connection.authorizer = None


def _guard(connection: apsw.Connection) -> Callable[..., int]:
    """The user's tables are theirs; ours change through the lifecycle alone, result rows through the run that puts
    them, and no temporary table may hide one."""
    named = [name for (name,) in sql.rows(connection, "SELECT name FROM result_table")]
    ours = _OURS.union(f"result_{name}" for name in named)

    def authorize(operation: int, first: str | None, second: str | None, database: str | None, *_: Any) -> int:
        if database == "temp" or operation in _FORBIDDEN:
            return apsw.SQLITE_DENY
        touched = {first} if operation == apsw.SQLITE_UPDATE else {first, second}  # of an update, that is a column
        changes = operation in _WRITES or operation in _SCHEMA
        return apsw.SQLITE_DENY if changes and not touched.isdisjoint(ours) else apsw.SQLITE_OK

    return authorize
