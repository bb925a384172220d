"""A storm on PostgreSQL: a primary with a synchronous replica, behind a proxy.

A failover kills the primary, promotes the replica and switches the proxy. The old primary then starts again as a
replica of the new one, from a fresh backup, and the next failover waits until it is in sync: only then is every
acknowledged commit on both.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg

from tests.campaigns.storm.site import Fault, up_as_long_as_down
from tests.support.servers.postgres import Postgres
from tests.support.servers.proxy import Proxy

IN_SYNC_SECONDS = 60
SEVERED_AFTER = 6_000  # bytes, at most
SILENT_SECONDS = (0.5, 4.0)
DURABLE = {"max_connections": "200", "wal_keep_size": "256MB", "wal_retrieve_retry_interval": "200ms"}


class PostgresSite:
    skew_seconds = 0.0
    clock_jumps = 0

    def __init__(self) -> None:
        self.release = ""
        self.faults: dict[str, Fault] = {
            "connections severed": self._sever,
            "connections cut": self._cut,
            "replies lost": self._swallow,
            "network silent": self._silence,
            "backends terminated": self._terminate,
            "server killed": self._kill,
            "server restarted": self._restart,
            "failover": self._fail_over,
        }
        self._number = 0
        self._at = 0
        self._server = asyncio.Lock()  # one fault of the server at a time
        self._stack = contextlib.ExitStack()

    async def open(self, folder: Path) -> None:
        folder.chmod(0o755)
        self._primary = self._stack.enter_context(Postgres(settings=DURABLE))
        self._replica = Postgres(settings=DURABLE)
        self._stack.callback(lambda: self._replica.__exit__())
        self._proxy = self._stack.enter_context(Proxy(self._primary.port))
        await self._replicate()
        async with self._asked() as connection:
            self.release = await connection.fetchval("SHOW server_version")

    async def close(self) -> None:
        await asyncio.to_thread(self._stack.close)
        await asyncio.to_thread(self._primary.__exit__)

    @property
    def url(self) -> str:
        return self.direct.replace(f":{self._primary.port}/", f":{self._proxy.port}/")

    @property
    def direct(self) -> str:
        return self._primary.url(schema=f"storm_{self._at}")

    def worker_options(self, slot: int) -> dict[str, Any]:
        return {}

    def next_url(self) -> str:
        self._number += 1
        return self.url.replace(f"schema=storm_{self._at}", f"schema=storm_{self._number}")

    def moved(self) -> None:
        self._at = self._number

    async def calm(self) -> None:
        async with self._server:
            self._proxy.heal()

    # Faults

    async def _sever(self, draw: random.Random) -> None:
        for _ in range(draw.randint(1, 5)):
            self._proxy.sever(draw.randrange(SEVERED_AFTER))

    async def _cut(self, draw: random.Random) -> None:
        await asyncio.to_thread(self._proxy.cut)

    async def _swallow(self, draw: random.Random) -> None:
        self._proxy.swallow(draw.randint(1, 3))

    async def _silence(self, draw: random.Random) -> None:
        async with self._server:
            self._proxy.silence()
            await asyncio.sleep(draw.uniform(*SILENT_SECONDS))
            await asyncio.to_thread(self._proxy.heal)

    async def _terminate(self, draw: random.Random) -> None:
        async with self._server, self._asked() as connection:
            pids = await connection.fetch(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            for (pid,) in draw.sample(pids, min(len(pids), draw.randint(1, 6))):
                await connection.execute("SELECT pg_terminate_backend($1)", pid)

    async def _kill(self, draw: random.Random) -> None:
        async with self._server, up_as_long_as_down():
            await asyncio.to_thread(self._primary.restart, "kill")

    async def _restart(self, draw: random.Random) -> None:
        async with self._server, up_as_long_as_down():
            await asyncio.to_thread(self._primary.restart, draw.choice(("fast", "immediate")))

    async def _fail_over(self, draw: random.Random) -> None:
        async with self._server, up_as_long_as_down():
            await self._in_sync()
            await asyncio.to_thread(self._primary.stop, "kill")
            await asyncio.to_thread(self._replica.promote)
            self._primary, self._replica = self._replica, self._primary
            async with self._asked() as connection:
                await self._require(connection, "")  # it would wait for a replica that is not there yet
            await asyncio.to_thread(self._proxy.switch, self._primary.port)
            await self._replicate()

    # Replication

    async def _replicate(self) -> None:
        """Make the other server a replica, and let commits wait for it from then on."""
        await asyncio.to_thread(self._replica.follow, self._primary)
        async with self._asked() as connection:
            await self._require(connection, "*")
        await self._in_sync()

    async def _require(self, connection: asyncpg.Connection, names: str) -> None:
        await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        await connection.execute("SELECT pg_reload_conf()")

    async def _in_sync(self) -> None:
        """Wait until the replica is synchronous and has all that was written before that."""
        async with asyncio.timeout(IN_SYNC_SECONDS), self._asked() as connection:
            written = None
            while True:
                state = await connection.fetchrow("SELECT sync_state, flush_lsn::text FROM pg_stat_replication")
                if state is not None and state["sync_state"] == "sync":
                    written = written or await connection.fetchval("SELECT pg_current_wal_flush_lsn()::text")
                    behind = "SELECT pg_wal_lsn_diff($1::text::pg_lsn, flush_lsn) FROM pg_stat_replication"
                    lag = await connection.fetchval(behind, written)
                    if lag is not None and lag <= 0:
                        return
                await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def _asked(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(self._primary.url(), timeout=30)
        try:
            yield connection
        finally:
            await connection.close()
