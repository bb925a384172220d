"""A queue that moves is kept from changing by triggers. Other processes meet them with their next statement, and a
queue that does not move pays nothing for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import apsw
import msgspec

from holdfast.store.moves import INTO, SEALED, MoveState, is_as_closed, refusal, refuse_freezing
from holdfast.stores import dumping
from holdfast.stores.sqlite import sql, tables
from holdfast.stores.sqlite.errors import MOVED
from holdfast.stores.sqlite.tx import Tx

_STATE = "move"
_RESTORING = "restoring"  # there only within the transaction of a restore
_UNLESS_RESTORING = "WHEN NOT EXISTS (SELECT 1 FROM meta WHERE name = 'restoring')"
_PREFIX = "moved_"
# What is under way, and would be half done if the queue stood still now.
_UNDER_WAY = """
SELECT (SELECT count(*) FROM job INDEXED BY job_lease WHERE status = 'processing')
    + (SELECT count(*) FROM release_due) + (SELECT count(*) FROM unpack_due)
"""


def freeze(tx: Tx, state: MoveState | None) -> int:
    if state is None:
        _thaw(tx)
        tx.execute("DELETE FROM meta WHERE name = ?", (_STATE,))
        return 0
    refuse_freezing(moving(tx.connection), state)
    left: int = tx.value(_UNDER_WAY) if state.kind == SEALED else 0
    if not left:
        keep(tx, state)
    return left


def keep(tx: Tx, state: MoveState) -> None:
    """Store how far a move is, and close the queue as that asks for."""
    before = moving(tx.connection)
    tx.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_STATE, msgspec.json.encode(state).decode()))
    if is_as_closed(before, state):
        return  # it is as closed as it has to be
    _thaw(tx)
    if state.role == INTO:
        if not state.done:
            _seal(tx, state, _UNLESS_RESTORING)
    elif state.kind == SEALED:
        _seal(tx, state, "")
    else:
        # Children come with what still runs; nothing else does.
        _forbid(tx, "job", "INSERT", state, "WHEN new.parent_job_id IS NULL")
        _forbid(tx, "job", "UPDATE OF attempt", state, "WHEN new.attempt > old.attempt")


def moving(connection: apsw.Connection) -> MoveState | None:
    text = sql.value(connection, "SELECT value FROM meta WHERE name = ?", (_STATE,))
    return None if text is None else msgspec.json.decode(text, type=MoveState)


@contextlib.contextmanager
def restoring(tx: Tx) -> Iterator[None]:
    """Within this, what is being moved into takes what is written. An error takes the whole transaction back."""
    tx.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, '')", (_RESTORING,))
    yield
    tx.execute("DELETE FROM meta WHERE name = ?", (_RESTORING,))


def _seal(tx: Tx, state: MoveState, when: str) -> None:
    results = [f"result_{table.name}" for table in tables.result_tables(tx.connection)]
    for table in (*dumping.TABLES, *results):
        for change in ("INSERT", "UPDATE", "DELETE"):
            _forbid(tx, table, change, state, when)


def _forbid(tx: Tx, table: str, change: str, state: MoveState, when: str) -> None:
    name = tables.quoted(f"{_PREFIX}{table}_{change.partition(' ')[0].lower()}")
    says = (MOVED + refusal(state)).replace("'", "''")
    tx.execute(
        f"CREATE TRIGGER {name} BEFORE {change} ON {tables.quoted(table)} {when}"
        f" BEGIN SELECT RAISE(ABORT, '{says}'); END"
    )


def _thaw(tx: Tx) -> None:
    made = tx.rows(
        "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, ?) = ?", (len(_PREFIX), _PREFIX)
    )
    for (name,) in made:
        tx.execute(f"DROP TRIGGER {tables.quoted(name)}")
