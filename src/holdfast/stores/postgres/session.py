"""Connections: a pool, opened only on a server that keeps its promises, and the patience with which verbs are run."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from holdfast.errors import ForkedStore, NotOpen, StoreUnsafe
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.errors import is_collision, is_outage, translate
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
        self._pool: asyncpg.Pool[Any] | None = None
        self._pid = os.getpid()

    async def open(self) -> None:
        self._pid = os.getpid()
        try:
            self._pool = await asyncpg.create_pool(
                self.address.dsn,
                min_size=1,
                max_size=self.address.pool,
                max_inactive_connection_lifetime=300,
                command_timeout=STATEMENT_SECONDS,
                timeout=CONNECT_SECONDS,
                **connection_options(self.address),
            )
        except Exception as error:
            raise translate(error, self.address.shown) from None

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None or os.getpid() != self._pid:
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await pool.close()
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pool.terminate()

    def pool(self) -> asyncpg.Pool[Any]:
        if os.getpid() != self._pid:
            raise ForkedStore("this store was opened before fork(): open the app anew in the child process")
        if self._pool is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._pool

    async def run(self, verb: Callable[[Tx, bool], Awaitable[T]], *, transaction: bool) -> tuple[T, Tx]:
        """The verb's answer, once it is committed. It is told whether an earlier try may have been applied."""
        collisions = 0
        repeat = False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OUTAGE_SECONDS
        while True:
            try:
                return await self._once(verb, transaction, repeat)
            except Exception as error:
                if is_collision(error) and collisions < COLLISIONS_MAX:
                    collisions += 1
                    await asyncio.sleep(random.uniform(0, min(0.2, 0.002 * 2**collisions)))
                    continue
                if is_outage(error) and loop.time() < deadline:
                    repeat = True
                    await asyncio.sleep(random.uniform(0.05, 0.5))
                    continue
                raise translate(error, self.address.shown) from None

    async def _once(self, verb: Callable[[Tx, bool], Awaitable[T]], transaction: bool, repeat: bool) -> tuple[T, Tx]:
        async with self.pool().acquire(timeout=CONNECT_SECONDS) as connection:
            tx = Tx(connection, self.sql)
            if not transaction:
                return await verb(tx, repeat), tx
            async with connection.transaction():
                answer = await verb(tx, repeat)
                await tx.write_counters()
            return answer, tx


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
