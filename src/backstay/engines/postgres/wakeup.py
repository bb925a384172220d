"""Wakes other processes by NOTIFY, and LISTENs for their signals.

Signals are coalesced and sent on their own, after the commit: a commit that sends them holds a lock of the whole
cluster until it is on disk. Only a submit that comes alone carries its signal, which saves a round trip and wakes a
worker sooner, and no more often than once in a few milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable
from typing import Any

import asyncpg

from backstay.core.port import Listener
from backstay.core.records import Signal
from backstay.engines.postgres.connection import CONNECT_SECONDS, OUTAGES, Address, Session, connection_options

log = logging.getLogger("backstay.postgres")
COALESCE_SECONDS = 0.005  # signals within this time are sent as one: NOTIFY takes a lock that the whole cluster shares
CARRY_SECONDS = 0.004  # … and a submit may carry those that wait to be sent, shortly before
KEEP_ALIVE_SECONDS = 20.0  # how soon a dead connection is noticed
RECONNECT_SECONDS_MIN, RECONNECT_SECONDS_MAX = 0.1, 5.0
CLOSE_SECONDS = 2.0  # for the last signals, if the server is slow: without them a job waits for the next poll


class Waker:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._address: Address = session.address
        self._channel = f"backstay_{session.address.schema}"
        self._own = secrets.token_hex(4)  # our own notifications come back; their listeners have been called already
        self._listeners: list[tuple[frozenset[Signal], Listener]] = []
        self._unsent: set[Signal] = set()
        self._loop = asyncio.get_running_loop()
        self._sent_at = float("-inf")
        self._stir = asyncio.Event()
        self._stopping = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._hearer: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._address.wake:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def stop(self) -> None:
        """Send the remaining signals: a process that submits a job and exits at once should still wake a worker."""
        self._stopping.set()
        self._stir.set()
        tasks = [task for task in (self._sender, self._hearer) if task is not None]
        try:
            if self._sender is not None:
                await asyncio.wait([self._sender], timeout=CLOSE_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._sender = self._hearer = None

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        entry = (signals, listener)
        self._listeners.append(entry)
        if self._address.listen and self._hearer is None and not self._stopping.is_set():
            self._hearer = asyncio.get_running_loop().create_task(self._hear())
        return lambda: self._listeners.remove(entry)

    def carried(self, signal: Signal) -> str | None:
        """Return what a statement is to send with its own commit; None if the last signals have just been sent."""
        now = self._loop.time()
        if not self._address.wake or now - self._sent_at < CARRY_SECONDS:
            return None
        self._sent_at = now
        return self._taken({signal})

    def committed(self, signals: set[Signal], carried: str | None = None) -> None:
        """Wake listeners here, and others unless the commit has carried the signals."""
        if not signals:
            return
        self._wake(signals)
        if self._address.wake and carried is None:
            self._unsent |= signals
            self._stir.set()

    def lost(self, carried: str | None) -> None:
        """The statement that was to send this has failed; it may have carried the signals of other commits."""
        if carried is not None:
            self._unsent.update(map(Signal, carried.split()[1:]))
            self._stir.set()

    def _taken(self, more: set[Signal]) -> str:
        """Return the payload for the signals that have not been sent yet, and more."""
        signals, self._unsent = self._unsent | more, set()
        return f"{self._own} {' '.join(sorted(signals))}"

    def _wake(self, signals: set[Signal]) -> None:
        for wanted, listener in tuple(self._listeners):
            for signal in wanted & signals:
                listener(signal)

    async def _send(self) -> None:
        while self._unsent or not self._stopping.is_set():
            await self._stir.wait()
            self._stir.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._sent_at + COALESCE_SECONDS):
                    await self._stopping.wait()
            if not self._unsent:
                continue
            self._sent_at = self._loop.time()
            payload = self._taken(set())
            try:
                async with self._session.pool().lend() as connection:
                    await connection.execute(self._session.sql["notify"], self._channel, payload)
            except (*OUTAGES, asyncpg.PostgresError) as error:
                log.debug("could not send a wake-up: %s", error)  # a lost one costs a poll interval

    async def _hear(self) -> None:
        pause = RECONNECT_SECONDS_MIN
        while True:
            try:
                await self._hear_once()
                pause = RECONNECT_SECONDS_MIN
            except (*OUTAGES, asyncpg.PostgresError) as error:
                # Once per outage: every try would log the same.
                level = logging.WARNING if pause == RECONNECT_SECONDS_MIN else logging.DEBUG
                log.log(level, "wake-ups are interrupted, polling until the server is back: %s", error)
                pause = min(RECONNECT_SECONDS_MAX, pause * 2)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))

    async def _hear_once(self) -> None:
        """Listen until the connection is lost. Uses its own connection: a pooled one would be passed on."""
        connection: Any = await asyncpg.connect(
            self._address.dsn,
            timeout=CONNECT_SECONDS,
            command_timeout=CONNECT_SECONDS,
            **connection_options(self._address),
        )
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await connection.add_listener(self._channel, self._heard)
            self._wake(set(Signal))  # signals from before we listened: a worker may hold claims already
            while not lost.is_set():
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        await lost.wait()
                except TimeoutError:
                    await connection.execute("SELECT 1")
        finally:
            connection.terminate()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        sender, *names = str(payload).split()
        if sender != self._own:
            self._wake({Signal(name) for name in names if name in set(Signal)})
