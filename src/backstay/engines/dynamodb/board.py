"""The board on DynamoDB: one partition with queue settings, run-time limits, fair lanes and signals.

A claim reads it once, consistently, and so sees a pause. Listeners read it often while something happens, and up to a
ceiling less often while nothing does. Signals are counters that only grow; a changed counter is a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from backstay.clock import Instant
from backstay.core import run_limits
from backstay.core.admission import RunLimits
from backstay.core.dumps import MoveState, is_closed, refusal
from backstay.core.port import Listener
from backstay.core.records import LimitChange, LimitOf, LimitRow, QueueChange, QueueRow, Signal
from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.expressions import Ask, delete, equals, put, update
from backstay.engines.dynamodb.schema import Item, Key, Table
from backstay.engines.dynamodb.table import Failed, Tables
from backstay.engines.dynamodb.transport import Lane
from backstay.errors import BackstayError, StoreBusy, StoreGone, StoreMoved

log = logging.getLogger("backstay.engines.dynamodb")

TELL_SECONDS = 0.5  # between two signals of one process: other processes need no more
POLL_SECONDS = 0.2  # between reads while signals arrive
POLL_GROWTH = 1.6
CLOSE_SECONDS = 1.0  # for the last signal: a process that submits and exits at once should still signal
ECHO_SECONDS = 2.0  # an index hardly ever lags more; beyond this, the next poll finds the job
FRESH_SECONDS = 1.0  # how old a cached board may be if nothing depends on it
CHANGE_ROUNDS = 20
AnyRow = TypeVar("AnyRow", QueueRow, LimitRow)
_ALL = Ask(table=Table.RECORDS, hash=schema.BOARD)


class BoardState(msgspec.Struct, frozen=True):
    signals: dict[Signal, int]
    queues: dict[str, QueueRow]
    limits: dict[tuple[LimitOf, str], LimitRow]
    fair: frozenset[tuple[str, str]]  # queue and type of lanes that have, or had, jobs with a fairness key
    move: MoveState | None = None  # set if the queue is being transferred, or was
    place: str | None = None  # identifies the queue: one that is deleted and created again is another
    shards: int = 1  # as many as the queue was created with, or raised to

    @property
    def run_limits(self) -> RunLimits:
        return RunLimits(self.limits)

    def is_paused(self, queue: str = "", job_type: str = "") -> bool:
        """Return whether a queue or a type is paused."""
        of_queue, of_type = self.queues.get(queue), self.limits.get((LimitOf.TYPE, job_type))
        return any(row is not None and row.paused_at is not None for row in (of_queue, of_type))


class Board:
    def __init__(self, tables: Tables, *, wake: bool, ceiling_seconds: float) -> None:
        self._tables = tables
        self._wake = wake
        self.ceiling_seconds = ceiling_seconds
        self._listeners: list[tuple[frozenset[Signal], Listener]] = []
        self._state: BoardState | None = None
        self._read_at = 0.0
        self._seen: dict[Signal, int] = {}
        self._told: set[Signal] = set()
        self._teller: asyncio.Task[None] | None = None
        self._poller: asyncio.Task[None] | None = None
        self._stopped: deque[asyncio.Task[None]] = deque(maxlen=4)  # cancelled pollers that may not have ended yet
        self._stir = asyncio.Event()
        self._echoes: dict[Signal, asyncio.TimerHandle] = {}
        self.heard_at: dict[Signal, float] = {}  # by the loop's clock
        self._ended = asyncio.Event()
        self._closing = False
        self._place: str | None = None
        self.move: MoveState | None = None  # as known here; listeners update it soon

    def refuse_closed(self) -> None:
        """Refuse changes of a queue that is frozen for a transfer."""
        if self.move is not None and is_closed(self.move):
            raise StoreMoved(refusal(self.move))

    # Reading

    async def read(self, *, fresh: bool) -> BoardState:
        """Read the board, or return a recent copy if that is enough."""
        now = asyncio.get_running_loop().time()
        if not fresh and self._state is not None and now - self._read_at < FRESH_SECONDS:
            return self._state
        ask = msgspec.structs.replace(_ALL, consistent=True)
        self._state = self._noticed([item async for item in self._tables.ask(ask)])
        self._read_at = now
        return self._state

    def _noticed(self, items: list[Item]) -> BoardState:
        state = state_of(items)
        if self._place is not None and state.place not in (None, self._place):
            raise StoreGone(
                f"{self._tables.shown} was deleted and created again while the app was running: restart the app"
            )
        self._place = self._place or state.place
        # raised in the meantime: jobs are stored there from now on
        self._tables.shards = max(self._tables.shards, state.shards)
        self.move = state.move
        return state

    async def begin(self) -> None:
        """Ignore signals from before our listeners were added."""
        self._seen = dict((await self.read(fresh=True)).signals)

    # Fair lanes

    async def mark_fair(self, queue: str, job_type: str) -> None:
        """Mark a lane before its first job with a fairness key is stored: claims look for such jobs only in marked
        lanes."""
        known = self._state.fair if self._state is not None else ()
        if (queue, job_type) in known:
            return
        pk, sk = schema.fair_lane(queue, job_type)
        await self._tables.put(Table.RECORDS, {"pk": pk, "sk": sk, "queue": queue, "job_type": job_type})
        if self._state is not None:
            self._state = msgspec.structs.replace(self._state, fair=self._state.fair | {(queue, job_type)})

    # Queues, and limits at run time

    async def change_queue(self, name: str, change: QueueChange, now: Instant) -> QueueRow:
        row = await self._change(
            schema.queue_row(name), lambda found: run_limits.changed_queue(queue_of(found, name), change, now)
        )
        if change.max_pending is not None:  # a count under another limit does not apply to this one
            await self._tables.delete_many(Table.RECORDS, [schema.queue_gate(name)])
        self._told_of(change)
        return row

    async def change_limit(self, of: LimitOf, name: str, change: LimitChange, now: Instant) -> LimitRow:
        row = await self._change(
            schema.limit_row(of, name), lambda found: run_limits.changed_limit(limit_of(found, of, name), change, now)
        )
        if row.concurrency is None:  # if it is limited again, those that run then are counted anew
            await self._tables.delete_many(Table.RECORDS, [schema.type_gate(name)] if of is LimitOf.TYPE else [])
        self._told_of(change)
        return row

    async def _change(self, key: Key, changed: Callable[[Item | None], AnyRow]) -> AnyRow:
        """Store what a row has changed to, unless it has been changed by others since it was read: then once more."""
        pk, sk = key
        for _ in range(CHANGE_ROUNDS):
            [found] = await self._tables.get(Table.RECORDS, [key])
            row = changed(found)
            condition = equals("nonce", None if found is None else found.get("nonce"))
            try:
                if not run_limits.says_nothing(row):
                    item = {"pk": pk, "sk": sk, "nonce": secrets.token_hex(8), **fields_of(row)}
                    item["wid"] = item["nonce"]
                    await self._tables.update(put(Table.RECORDS, item, condition))
                elif found is not None:
                    await self._tables.update(delete(Table.RECORDS, key, condition))
            except Failed:
                continue
            self._state = None
            return row
        raise StoreBusy(f"{self._tables.shown}: other processes keep changing {sk}: try again")

    def _told_of(self, change: QueueChange | LimitChange) -> None:
        signals = {Signal.READY} if change.paused is False else set()
        self.committed(signals | ({Signal.DUE} if change.until is not None else set()))

    async def end_pauses(self, now: Instant) -> Instant | None:
        """End the pauses whose time is over; return when the next one is."""
        state = await self.read(fresh=True)
        following: list[Instant] = []
        rows: list[QueueRow | LimitRow] = [*state.queues.values(), *state.limits.values()]
        for row in rows:
            if row.paused_until is not None and not run_limits.is_over(row, now):
                following.append(row.paused_until)
            elif row.paused_until is not None:
                await self._end_pause(row, now)
        return min(following, default=None)

    async def _end_pause(self, row: QueueRow | LimitRow, now: Instant) -> None:
        def ended(current: AnyRow) -> AnyRow:
            return run_limits.resumed(current) if run_limits.is_over(current, now) else current

        name = row.name
        if isinstance(row, LimitRow):
            of = row.of
            await self._change(schema.limit_row(of, name), lambda found: ended(limit_of(found, of, name)))
        else:
            await self._change(schema.queue_row(name), lambda found: ended(queue_of(found, name)))
        self.committed({Signal.READY})

    async def queues(self) -> list[QueueRow]:
        state = await self.read(fresh=True)
        return [state.queues[name] for name in sorted(state.queues)]

    async def limits(self) -> list[LimitRow]:
        state = await self.read(fresh=True)
        return sorted(state.limits.values(), key=lambda row: (row.of, row.name))

    # Signals

    def committed(self, signals: Iterable[Signal]) -> None:
        """Wake local listeners after a commit, and signal other processes."""
        given = set(signals)
        if not given:
            return
        self._hear(given)
        if not self._wake or self._closing:
            return
        self._told |= given
        self._stir.set()
        if self._teller is None or self._teller.done():
            self._teller = asyncio.get_running_loop().create_task(self._tell())

    def listen(self, signals: frozenset[Signal], listener: Listener) -> Callable[[], None]:
        entry = (signals, listener)
        self._listeners.append(entry)
        if self._wake and (self._poller is None or self._poller.done()):
            self._poller = asyncio.get_running_loop().create_task(self._poll())

        def stop() -> None:
            if entry in self._listeners:
                self._listeners.remove(entry)
            if not self._listeners and self._poller is not None:
                self._poller.cancel()
                self._stopped.append(self._poller)
                self._poller = None

        return stop

    def again_if_new(self, signal: Signal) -> bool:
        """Repeat a signal for a worker that was woken and found nothing, because an index may lag behind the signal:
        later each time, until it is old. Return whether it will be repeated."""
        loop = asyncio.get_running_loop()
        age = loop.time() - self.heard_at.get(signal, float("-inf"))
        is_new = age < ECHO_SECONDS and not self._closing
        if is_new and signal not in self._echoes:
            self._echoes[signal] = loop.call_later(max(age, POLL_SECONDS), self._echo, signal)
        return is_new

    def _echo(self, signal: Signal) -> None:
        del self._echoes[signal]
        self._call({signal})

    def _hear(self, signals: set[Signal]) -> None:
        now = asyncio.get_running_loop().time()
        self.heard_at.update(dict.fromkeys(signals, now))
        self._call(signals)

    def _call(self, signals: set[Signal]) -> None:
        for wanted, listener in tuple(self._listeners):
            for signal in wanted & signals:
                listener(signal)

    async def _tell(self) -> None:
        """Send the first signal at once, then those of each half second together. Sending a signal twice is
        harmless."""
        while self._told:
            signals, self._told = self._told, set()
            try:
                await self._add(signals)
            except BackstayError as error:  # waiting callers also read the store, and report the error
                log.debug("could not publish signals, others will notice when they poll: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TELL_SECONDS):
                    await self._ended.wait()

    async def _add(self, signals: set[Signal]) -> None:
        write = update(Table.RECORDS, schema.SIGNALS_KEY, adds={each.value: 1 for each in signals})
        reply = await self._tables.send(write, returning="UPDATED_NEW")
        for name, value in reply.items():
            signal = Signal(name)
            # no signal of another process in between: do not react to our own
            if value == self._seen.get(signal, 0) + 1:
                self._seen[signal] = value

    async def _poll(self) -> None:
        pause = POLL_SECONDS
        while True:
            self._stir.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stir.wait()
                    pause = POLL_SECONDS
                    await asyncio.sleep(pause)
            try:
                moved = await self._moved()
            except StoreGone:
                moved = set(Signal)  # listeners find out at once
            except BackstayError as error:
                log.debug("could not read signals, workers will find jobs when they poll: %s", error)
                moved = set()
            except Exception:  # an error in one read must not end the loop
                log.exception("could not read signals, workers will find jobs when they poll")
                moved = set()
            pause = POLL_SECONDS if moved else min(pause * POLL_GROWTH, self.ceiling_seconds)
            self._hear(moved)

    async def _moved(self) -> set[Signal]:
        items = [item async for item in self._tables.ask(_ALL, lane=Lane.IDLE)]
        found = self._noticed(items).signals
        moved = {signal for signal, value in found.items() if value > self._seen.get(signal, 0)}
        for signal in moved:
            self._seen[signal] = found[signal]
        return moved

    async def close(self) -> None:
        """Send the remaining signals; a lost signal costs a poll interval, never a job."""
        self._closing = True
        for echo in self._echoes.values():
            echo.cancel()
        self._echoes.clear()
        self._ended.set()
        if self._teller is not None:
            await asyncio.wait([self._teller], timeout=CLOSE_SECONDS)
        tasks = [task for task in (self._teller, self._poller, *self._stopped) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def state_of(items: list[Item]) -> BoardState:
    signals: dict[Signal, int] = {}
    queues: dict[str, QueueRow] = {}
    limits: dict[tuple[LimitOf, str], LimitRow] = {}
    fair = set()
    move: MoveState | None = None
    place, shards = None, 1
    for item in items:
        kind = item["sk"].partition("|")[0]
        if kind == "signals":
            signals = {signal: item[signal.value] for signal in Signal if signal.value in item}
        elif kind == "queue":
            queues[item["name"]] = queue_of(item, item["name"])
        elif kind == "limit":
            of = LimitOf(item["of"])
            limits[of, item["name"]] = limit_of(item, of, item["name"])
        elif kind == "fair":
            fair.add((item["queue"], item["job_type"]))
        elif kind == "move":
            move = msgspec.json.decode(item["state"], type=MoveState)
        elif kind == "place":
            place, shards = item["place"], item["shards"]
    return BoardState(signals, queues, limits, frozenset(fair), move, place, shards)


def queue_of(item: Item | None, name: str) -> QueueRow:
    fields: dict[str, Any] = {each: (item or {}).get(each) for each in QueueRow.__struct_fields__}
    return QueueRow(**{**fields, "name": name})


def limit_of(item: Item | None, of: LimitOf, name: str) -> LimitRow:
    fields: dict[str, Any] = {each: (item or {}).get(each) for each in LimitRow.__struct_fields__}
    return LimitRow(**{**fields, "of": of, "name": name})


def fields_of(row: QueueRow | LimitRow) -> Item:
    """Return the fields of a row as an item has them."""
    fields = msgspec.structs.asdict(row)
    return {**fields, "of": row.of.value} if isinstance(row, LimitRow) else fields
