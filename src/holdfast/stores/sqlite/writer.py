"""The one thread that writes. What waits is committed together; nobody is answered before COMMIT has returned."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import apsw

from holdfast import failpoints
from holdfast.errors import ForkedStore, StoreError, StoreFull, StoreGone
from holdfast.store.types import Signal
from holdfast.stores.sqlite.connection import Identity
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.forking import inside
from holdfast.stores.sqlite.reserve import Reserve
from holdfast.stores.sqlite.tx import Tx

GROUP_MAX = 256  # verbs in one transaction: bounds how long others wait for the lock


Done = Callable[[Any, BaseException | None], None]


class Verb:
    """A queued piece of work. `essential` verbs (settling, leases) may spend the reserve of a full disk."""

    __slots__ = ("done", "error", "essential", "name", "result", "run")

    def __init__(self, name: str, run: Callable[[Tx], Any], done: Done, essential: bool) -> None:
        self.name = name
        self.run = run
        self.done = done  # called on the event loop, with a result or an error
        self.essential = essential
        self.result: Any = None
        self.error: BaseException | None = None


# Errors of the file, not of the verb that met them.
_TROUBLE = (apsw.FullError, apsw.IOError, apsw.BusyError, apsw.CorruptError, apsw.ReadOnlyError, StoreFull, StoreGone)


class Writer:
    def __init__(
        self,
        connection: apsw.Connection,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[set[Signal]], None],
    ) -> None:
        self.connection = connection
        self.path = str(path)
        self.loop = loop
        self.committed = committed
        self.identity = Identity(path)
        self.reserve = Reserve(path)
        self.reserve.ensure()
        self._running: Verb | None = None
        self._asleep = False
        self.queue: SimpleQueue[Verb | None] = SimpleQueue()
        self.pid = os.getpid()
        self.thread = threading.Thread(target=self._work, name="holdfast-sqlite-writer", daemon=True)
        self.thread.start()

    @property
    def idle(self) -> bool:
        """Whether a verb that is put now would be taken up at once. A hint: it may be over as it is read."""
        return self._asleep and self.queue.empty()

    def put(self, name: str, run: Callable[[Tx], Any], done: Done, essential: bool) -> None:
        if os.getpid() != self.pid:
            raise ForkedStore("this store was opened before fork(): open the app anew in the child process")
        self.queue.put(Verb(name, run, done, essential))

    def stop(self) -> None:
        self.queue.put(None)
        self.thread.join()

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._next_group()
            if group:
                with inside():
                    signals = self._settle(group)
                self._answer(group, signals)

    def _next_group(self) -> tuple[list[Verb], bool]:
        self._asleep = True
        first = self.queue.get()
        self._asleep = False
        if first is None:
            return [], True
        group = [first]
        while len(group) < GROUP_MAX:
            try:
                verb = self.queue.get_nowait()
            except Empty:
                break
            if verb is None:
                return group, True
            group.append(verb)
        return group, False

    def _settle(self, group: list[Verb]) -> set[Signal]:
        """Run the group as one transaction. A verb that fails for itself is left out and the others run again: nothing
        of them is committed yet. Where the file is the trouble, each runs alone, the essential ones first."""
        while group:
            try:
                return self._transact(group)
            except Exception as error:
                guilty = self._running
                if guilty is None or isinstance(error, _TROUBLE):
                    return self._each_alone(group, error)
                guilty.error = translate(error, self.path)
                group = [verb for verb in group if verb is not guilty]
        return set()

    def _each_alone(self, group: list[Verb], error: Exception) -> set[Signal]:
        if len(group) == 1:
            return self._once_more(group[0], error)
        if isinstance(error, apsw.BusyError | StoreGone):  # alone each would only wait, or be gone, in turn
            for verb in group:
                verb.error = translate(error, self.path)
            return set()
        signals: set[Signal] = set()
        for verb in sorted(group, key=lambda verb: not verb.essential):
            verb.error = None
            try:
                signals |= self._transact([verb])
            except Exception as again:
                signals |= self._once_more(verb, again)
        return signals

    def _once_more(self, verb: Verb, error: Exception) -> set[Signal]:
        full = isinstance(error, apsw.FullError | StoreFull)
        if full and verb.essential and self.reserve.spend():
            try:
                return self._transact([verb])
            except Exception as again:
                error = again
        verb.error = translate(error, self.path)
        return set()

    def _transact(self, group: list[Verb]) -> set[Signal]:
        tx = Tx(self.connection)
        self._running = None
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for verb in group:
                self._run(tx, verb)
            tx.write_counters()
            failpoints.hit_each(group, "uncommitted")
            self.connection.execute("COMMIT")
            failpoints.hit_each(group, "committed")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        self.identity.check()
        return tx.signals

    def _run(self, tx: Tx, verb: Verb) -> None:
        if not verb.essential and not self.reserve.ensure():  # spent by us, or by another process on this file
            verb.error = StoreFull(
                f"no space left for {self.path}: new jobs are refused until some is free; running ones can finish"
            )
            return
        self._running = verb
        verb.result = verb.run(tx)
        self._running = None

    def _answer(self, group: list[Verb], signals: set[Signal]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is waiting any more
            self.loop.call_soon_threadsafe(_resolve, group)
        if signals:
            self.committed(signals)


def _resolve(group: list[Verb]) -> None:
    for verb in group:
        error = verb.error
        if error is not None and not isinstance(error, Exception):
            error = StoreError(repr(error))
        verb.done(verb.result, error)
