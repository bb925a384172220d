"""Connections: a pool, opened only on a server that keeps its promises, and the patience with which verbs are run."""

from __future__ import annotations

import asyncio
import functools
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from holdfast import failpoints
from holdfast.errors import ForkedStore, NotOpen, StoreBusy, StoreUnavailable, StoreUnsafe
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.errors import is_collision, is_outage, translate
from holdfast.stores.postgres.pool import Pool
from holdfast.stores.postgres.sql import Statements
from holdfast.stores.postgres.tx import Tx

T = TypeVar("T")
CONNECT_SECONDS = 5.0
STATEMENT_SECONDS = 15.0  # less than a third of a lease: a call that hangs must not cost the claims
LOCK_SECONDS = 5.0
IDLE_IN_TRANSACTION_SECONDS = 30.0
OUTAGE_SECONDS = 8.0  # how long a verb waits for a server that is away before it says so
COLLISIONS_MAX = 20  # tries; each means that someone else made progress
OLDEST_SERVER = 140_000


class Session:
    """Runs verbs on pooled connections: again after a collision, and after an outage if the server comes back soon."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.sql = Statements(address.schema)
        self._pool: Pool | None = None
        self._pid = os.getpid()

    async def open(self) -> None:
        self._pid = os.getpid()
        pool = Pool(functools.partial(connect, self.address), self.address.pool, CONNECT_SECONDS)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OUTAGE_SECONDS
        while True:
            try:
                async with pool.lend():
                    self._pool = pool
                    return
            except Exception as error:
                if not is_outage(error) or loop.time() >= deadline:
                    raise translate(error, self.address.shown) from None
            await asyncio.sleep(random.uniform(0.05, 0.5))  # a server that restarts is back soon

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None and os.getpid() == self._pid:
            await pool.close(CONNECT_SECONDS)

    def pool(self) -> Pool:
        if os.getpid() != self._pid:
            raise ForkedStore("this store was opened before fork(): open the app anew in the child process")
        if self._pool is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._pool

    async def run(
        self, verb: Callable[[Tx, bool], Awaitable[T]], *, transaction: bool, name: str = "read"
    ) -> tuple[T, Tx]:
        """The verb's answer, once it is committed. It is told whether an earlier try may have been applied. By its name
        crash tests know it."""
        collisions = 0
        repeat = False
        cancels = _cancels()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OUTAGE_SECONDS
        while True:
            try:
                return await self._once(verb, transaction, name, repeat)
            except Exception as error:
                if _cancels() > cancels:  # and then the rollback failed: its error took the place of the cancellation
                    raise asyncio.CancelledError from None
                if is_collision(error) and collisions < COLLISIONS_MAX and loop.time() < deadline:
                    collisions += 1
                    await asyncio.sleep(random.uniform(0, min(0.2, 0.002 * 2**collisions)))
                    continue
                # What is there already is the earlier try, if it was still under way when we looked for it.
                found_late = repeat and isinstance(error, asyncpg.UniqueViolationError)
                if (is_outage(error) or found_late) and loop.time() < deadline:
                    repeat = True
                    await asyncio.sleep(random.uniform(0.05, 0.5))
                    continue
                raise _told(error, self.address.shown, repeat) from None

    async def _once(
        self, verb: Callable[[Tx, bool], Awaitable[T]], transaction: bool, name: str, repeat: bool
    ) -> tuple[T, Tx]:
        async with self.pool().lend() as connection:
            tx = Tx(connection, self.sql)
            if not transaction:
                failpoints.hit_moment(name, "uncommitted")  # a statement by itself commits as it runs
                answer = await verb(tx, repeat)
                failpoints.hit_moment(name, "committed")
                return answer, tx
            try:
                async with connection.transaction():
                    answer = await verb(tx, repeat)
                    await tx.write_counters()
                    failpoints.hit_moment(name, "uncommitted")
                failpoints.hit_moment(name, "committed")
            finally:
                if tx.unclean and not connection.is_closed():
                    await connection.reset()
            return answer, tx


def _cancels() -> int:
    """How often this task was told to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def connect(address: Address) -> Any:
    return await asyncpg.connect(
        address.dsn, timeout=CONNECT_SECONDS, command_timeout=STATEMENT_SECONDS, **connection_options(address)
    )


def _told(error: BaseException, where: str, repeat: bool) -> BaseException:
    told = translate(error, where)
    if repeat and isinstance(told, StoreBusy):  # that would say that nothing was applied
        return StoreUnavailable(f"{told}; an earlier try of it was cut off, and may have been applied")
    return told


def connection_options(address: Address) -> dict[str, Any]:
    """A connection pooler in transaction mode takes neither settings of a session nor prepared statements."""
    if address.pgbouncer:
        return {"statement_cache_size": 0}
    millis = 1000
    return {
        "server_settings": {
            "application_name": "holdfast",
            "statement_timeout": str(round(STATEMENT_SECONDS * millis)),
            "lock_timeout": str(round(LOCK_SECONDS * millis)),
            "idle_in_transaction_session_timeout": str(round(IDLE_IN_TRANSACTION_SECONDS * millis)),
            "jit": "off",  # our statements are short; compiling them costs more than running them
            "plan_cache_mode": "force_generic_plan",  # planned once: a claim is planned as long as it runs
        }
    }


async def refuse_unsafe(connection: Any, where: str) -> None:
    """An acknowledged job must be on disk: the settings that say so are read back."""
    settings = dict(
        await connection.fetch(
            "SELECT name, setting FROM pg_settings WHERE name IN"
            " ('fsync', 'full_page_writes', 'synchronous_commit', 'server_version_num', 'transaction_read_only')"
        )
    )
    if int(settings["server_version_num"]) < OLDEST_SERVER:
        raise StoreUnsafe(f"{where} is older than PostgreSQL 14: upgrade it")
    for name in ("fsync", "full_page_writes"):
        if settings[name] == "off":
            raise StoreUnsafe(f"{where} has {name}=off: a crash would lose acknowledged jobs; set it to on")
    if settings["synchronous_commit"] == "off":
        raise StoreUnsafe(
            f"{where} has synchronous_commit=off: a crash would lose acknowledged jobs;"
            " set it to on for this role: ALTER ROLE … SET synchronous_commit = on"
        )
