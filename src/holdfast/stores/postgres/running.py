"""A schema of PostgreSQL, opened: how each verb is run, by whose clock, and who is woken after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.clock import Instant
from holdfast.errors import ConfigurationError, NotOpen
from holdfast.limits import POLL_SECONDS, RECORD_INTERVAL_SECONDS
from holdfast.store.port import Listener
from holdfast.store.types import Signal
from holdfast.stores.postgres import migrating
from holdfast.stores.postgres.address import parse
from holdfast.stores.postgres.session import Session, refuse_unsafe
from holdfast.stores.postgres.tx import Tx
from holdfast.stores.postgres.waker import Waker

T = TypeVar("T")


class Running:
    def __init__(self, url: str) -> None:
        self.address = parse(url)
        self._session = Session(self.address)
        self._waker: Waker | None = None

    @property
    def location(self) -> str:
        return self.address.shown

    @property
    def files_root(self) -> str | None:
        """None: workers may be on other hosts, where a folder of this one is nowhere."""
        return None

    @property
    def poll_seconds(self) -> float:
        return POLL_SECONDS

    @property
    def record_seconds(self) -> float:
        return RECORD_INTERVAL_SECONDS

    # Opening

    async def open(self) -> None:
        await self._session.open()
        try:
            await self._session.run(self._prepare, transaction=False)
        except BaseException:
            await asyncio.shield(self._session.close())
            raise
        self._waker = Waker(self._session)
        self._waker.start()

    async def _prepare(self, tx: Tx, _repeat: bool) -> None:
        await refuse_unsafe(tx.connection, self.location)
        if not await migrating.check(tx.connection, tx.sql, self.location):
            await migrating.migrate(tx.connection, tx.sql)
            await migrating.check(tx.connection, tx.sql, self.location)

    async def migrate(self) -> list[str]:
        async def missing(tx: Tx, _repeat: bool) -> list[str]:
            if await migrating.check(tx.connection, tx.sql, self.location):
                return []  # and no right to change anything is needed for that
            return await migrating.migrate(tx.connection, tx.sql)

        return await self._by_itself(missing)

    async def exists(self) -> bool:
        """Whether the schema is there; makes none."""
        return await self._by_itself(lambda tx, _: migrating.exists(tx.connection, tx.sql))

    async def _by_itself(self, verb: Callable[[Tx, bool], Awaitable[T]]) -> T:
        session = Session(self.address)  # of its own: this one may be open, or not yet
        await session.open()
        try:
            return (await session.run(verb, transaction=False))[0]
        finally:
            await session.close()

    def migration_sql(self) -> str:
        return migrating.script(self._session.sql)

    async def erase(self) -> list[str]:
        raise ConfigurationError(
            f'stop all workers, then delete the queue with its schema: DROP SCHEMA "{self.address.schema}" CASCADE'
        )

    async def close(self) -> None:
        waker, self._waker = self._waker, None
        if waker is not None:
            await waker.stop()
        await self._session.close()

    # Running verbs

    def _store_now(self, now: Instant) -> Instant | None:
        """None: the server's clock counts."""
        return now if self.address.caller_clock else None

    async def _now(self, tx: Tx, now: Instant) -> Instant:
        return now if self.address.caller_clock else int(await tx.value("now"))

    async def _write(self, name: str, verb: Callable[[Tx, bool], Awaitable[T]], *, transaction: bool = True) -> T:
        answer, tx = await self._session.run(verb, transaction=transaction, name=name)
        if tx.signals and self._waker is not None:
            self._waker.committed(tx.signals)
        return answer

    async def _at(self, name: str, now: Instant, verb: Callable[[Tx, Instant], Awaitable[T]]) -> T:
        """A verb in a transaction that needs the time as a number."""

        async def run(tx: Tx, _repeat: bool) -> T:
            return await verb(tx, await self._now(tx, now))

        return await self._write(name, run)

    async def _read(self, verb: Callable[[Tx], Awaitable[T]]) -> T:
        return (await self._session.run(lambda tx, _: verb(tx), transaction=False))[0]

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        if self._waker is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._waker.listen(signals, listener)
