"""Wakes other processes by NOTIFY, and LISTENs for their signals.

Signals are coalesced and sent on their own, after the commit: a commit that sends them holds a lock of the whole
cluster until it is on disk. Their own transaction does not wait for the disk, so that it holds that lock for
microseconds; a signal that a crash takes along costs a poll interval. Only a submit that comes alone carries its
signal, which saves a round trip and wakes a worker sooner, no more often than once in a few milliseconds, and not while
that takes long: with many who submit one job at a time, each would wait for the flushes of all others.

That jobs have ended is told on a channel of its own, and less often: every busy worker has it to say all the time, and
no other worker wants to hear it, but only those who wait for results.
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
ENDED_SECONDS = 0.02  # … and what ended within this, because the server wakes every listener for each notification
CARRY_SECONDS = 0.004  # … and a submit may carry those that wait to be sent, shortly before
CARRY_SLOW_SECONDS = 0.005  # a submit that carried signals for longer may have waited for others that carry some …
CARRY_REST_SECONDS = 2.0  # … so that none carries any for a while: signals that are sent apart delay no submit
KEEP_ALIVE_SECONDS = 20.0  # how soon a dead connection is noticed
RECONNECT_SECONDS_MIN, RECONNECT_SECONDS_MAX = 0.1, 5.0
CLOSE_SECONDS = 2.0  # for the last signals, if the server is slow: without them a job waits for the next poll


class Sender:
    """Sends the signals of one channel, at most one notification at a time and in so many seconds."""

    def __init__(self, session: Session, channel: str, own: str, pause: float) -> None:
        self._session = session
        self._channel = channel
        self._own = own
        self._pause = pause
        self._unsent: set[Signal] = set()
        self._loop = asyncio.get_running_loop()
        self._stir = asyncio.Event()
        self._stopping = asyncio.Event()
        self.sent_at = float("-inf")
        self.task = self._loop.create_task(self._send())

    def add(self, signals: set[Signal]) -> None:
        self._unsent |= signals
        self._stir.set()

    def taken(self, more: set[Signal]) -> str:
        """Return the payload for the signals that have not been sent yet, and more."""
        signals, self._unsent = self._unsent | more, set()
        self.sent_at = self._loop.time()
        return f"{self._own} {' '.join(sorted(signals))}"

    def stop(self) -> None:
        """Let it send the remaining signals at once, and end."""
        self._stopping.set()
        self._stir.set()

    async def _send(self) -> None:
        while self._unsent or not self._stopping.is_set():
            await self._stir.wait()
            self._stir.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self.sent_at + self._pause):
                    await self._stopping.wait()
            if not self._unsent:
                continue
            payload = self.taken(set())
            try:
                async with self._session.pool().lend() as connection:
                    await connection.execute(self._session.sql["notify"], self._channel, payload)
            except (*OUTAGES, asyncpg.PostgresError) as error:
                log.debug("could not send a wake-up: %s", error)  # a lost one costs a poll interval


class Waker:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._address: Address = session.address
        self._channel = f"backstay_{session.address.schema}"
        self._ended_channel = f"{self._channel}_ended"
        self._own = secrets.token_hex(4)  # our own notifications come back; their listeners have been called already
        self._listeners: list[tuple[frozenset[Signal], Listener]] = []
        self._loop = asyncio.get_running_loop()
        self._sender: Sender | None = None  # None where others are not notified, as the next
        self._ended_sender: Sender | None = None
        self._carried_at = float("-inf")
        self._carry_from = float("-inf")  # when a submit may carry signals again
        self._stopping = False
        self._hearer: asyncio.Task[None] | None = None
        self._look = asyncio.Event()  # for the hearer: someone listens for more, or the connection is lost

    def start(self) -> None:
        if self._address.wake:
            self._sender = Sender(self._session, self._channel, self._own, COALESCE_SECONDS)
            self._ended_sender = Sender(self._session, self._ended_channel, self._own, ENDED_SECONDS)

    async def stop(self) -> None:
        """Send the remaining signals: a process that submits a job and exits at once should still wake a worker."""
        self._stopping = True
        senders = [sender for sender in (self._sender, self._ended_sender) if sender is not None]
        tasks = [sender.task for sender in senders] + ([] if self._hearer is None else [self._hearer])
        for sender in senders:
            sender.stop()
        try:
            if senders:
                await asyncio.wait([sender.task for sender in senders], timeout=CLOSE_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._sender = self._ended_sender = self._hearer = None

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        entry = (signals, listener)
        self._listeners.append(entry)
        self._look.set()
        if self._address.listen and self._hearer is None and not self._stopping:
            self._hearer = asyncio.get_running_loop().create_task(self._hear())
        return lambda: self._listeners.remove(entry)

    def carried(self, signal: Signal) -> str | None:
        """Return what a statement is to send with its own commit; None if the last signals have just been sent."""
        now = self._loop.time()
        if self._sender is None or now < max(self._carry_from, self._sender.sent_at + CARRY_SECONDS):
            return None
        self._carried_at = now
        return self._sender.taken({signal})

    def committed(self, signals: set[Signal], carried: str | None = None) -> None:
        """Wake listeners here, and others unless the commit has carried the signals."""
        if carried is not None:
            self._was_carried()
        if not signals:
            return
        self.wake(signals)
        if self._sender is None or self._ended_sender is None or carried is not None:
            return
        if Signal.ENDED in signals:
            self._ended_sender.add({Signal.ENDED})
        if others := signals - {Signal.ENDED}:
            self._sender.add(others)

    def _was_carried(self) -> None:
        """Look at how long it took: those who carry signals commit one after the other, and share no flush."""
        now = self._loop.time()
        if now - self._carried_at > CARRY_SLOW_SECONDS:
            self._carry_from = now + random.uniform(0.5, 1.5) * CARRY_REST_SECONDS

    def lost(self, carried: str | None) -> None:
        """The statement that was to send this has failed; it may have carried the signals of other commits."""
        if carried is not None and self._sender is not None:
            self._sender.add(set(map(Signal, carried.split()[1:])))

    def wake(self, signals: set[Signal]) -> None:
        for wanted, listener in tuple(self._listeners):
            for signal in wanted & signals:
                listener(signal)

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
        connection.add_termination_listener(lambda _: self._look.set())
        hears_ended = False
        try:
            await connection.add_listener(self._channel, self._heard)
            self.wake(set(Signal))  # signals from before we listened: a worker may hold claims already
            while not connection.is_closed():
                self._look.clear()
                if not hears_ended and any(Signal.ENDED in signals for signals, _ in self._listeners):
                    await connection.add_listener(self._ended_channel, self._heard)
                    hears_ended = True
                    self.wake({Signal.ENDED})
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        await self._look.wait()
                except TimeoutError:
                    await connection.execute("SELECT 1")
        finally:
            connection.terminate()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        sender, *names = str(payload).split()
        if sender != self._own:
            self.wake({Signal(name) for name in names if name in set(Signal)})
