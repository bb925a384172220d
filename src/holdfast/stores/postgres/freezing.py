"""A queue that moves is kept from changing by triggers. Making one waits for every transaction that writes the table,
so that afterwards none is under way; and a queue that does not move pays nothing for them."""

from __future__ import annotations

import asyncpg
import msgspec

from holdfast.errors import ConfigurationError
from holdfast.store.moves import INTO, SEALED, MoveState, is_as_closed, refusal, refuse_freezing
from holdfast.stores import dumping
from holdfast.stores.postgres.tx import Tx

_PREFIX = "moved_"
_ALL = "INSERT OR UPDATE OR DELETE"


async def freeze(tx: Tx, state: MoveState | None) -> int:
    try:
        return await _freeze(tx, state)
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigurationError(
            f'this role may not make triggers on the tables of "{tx.sql.schema}" ({error}): move the queue as the role'
            " that owns them, which is the one that made or migrated it"
        ) from None


async def _freeze(tx: Tx, state: MoveState | None) -> int:
    if state is None:
        await _thaw(tx)
        await tx.execute("move_forget")
        return 0
    refuse_freezing(await held(tx), state)
    if state.kind == SEALED:
        await tx.execute("move_lock")  # none begins while we count
        if left := int(await tx.value("under_way")):
            return left
    await keep(tx, state)
    return 0


async def keep(tx: Tx, state: MoveState) -> None:
    """Store how far a move is, and close the queue as that asks for."""
    before = await moving(tx)
    await tx.execute("move_save", msgspec.json.encode(state).decode())
    if is_as_closed(before, state):
        return  # it is as closed as it has to be
    await _thaw(tx)
    if state.role == INTO:
        if not state.done:
            await _seal(tx, state)
    elif state.kind == SEALED:
        await _seal(tx, state)
    else:
        # Children come with what still runs; nothing else does.
        await _forbid(tx, "job", "INSERT", state, "FOR EACH ROW WHEN (NEW.parent_job_id IS NULL)")
        await _forbid(tx, "job", "UPDATE OF attempt", state, "FOR EACH ROW WHEN (NEW.attempt > OLD.attempt)")


async def moving(tx: Tx) -> MoveState | None:
    text = await tx.value("move_state")
    return None if text is None else msgspec.json.decode(text, type=MoveState)


async def held(tx: Tx) -> MoveState | None:
    """How far the move is, which no other run of it changes before this transaction has ended."""
    await tx.execute("lock_names", [f"holdfast move {tx.sql.schema}"])
    return await moving(tx)


async def _seal(tx: Tx, state: MoveState) -> None:
    results = [row[0] for row in await tx.rows("result_names")]
    for table in (*dumping.TABLES, *(f"result_{name}" for name in results)):
        await _forbid(tx, table, _ALL, state, "FOR EACH STATEMENT")


async def _forbid(tx: Tx, table: str, change: str, state: MoveState, when: str) -> None:
    schema = tx.sql.schema
    name = f"{_PREFIX}{change.split()[0].lower()}"
    says = refusal(state).replace("'", "''")
    await tx.connection.execute(
        f'CREATE TRIGGER "{name}" BEFORE {change} ON "{schema}"."{table}" {when}'
        f" EXECUTE FUNCTION \"{schema}\".refuse_moved('{says}')"
    )


async def _thaw(tx: Tx) -> None:
    schema = tx.sql.schema
    for trigger, table in await tx.rows("move_triggers", schema, _PREFIX):
        await tx.connection.execute(f'DROP TRIGGER "{trigger}" ON "{schema}"."{table}"')
