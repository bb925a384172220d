"""The parent side of process isolation: a pool of warm child processes, one job each at a time.

A child that must stop is killed. Questions that its handler asks of the context are answered through the channel of the
job. When a child disappears, the kernel's counter of out-of-memory kills may tell why.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from backstay import codec
from backstay.clock import Clock, Instant
from backstay.context import ITEM
from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.lifecycle import Cancelled, Discarded, Outcome, Raised, RetryAsked, Snoozed, WaitingForChildren
from backstay.core.records import ErrorEntry
from backstay.core.result_tables import ResultTable, RowPage, RowQuery
from backstay.core.step_values import packed, unpacked
from backstay.errors import BackstayError
from backstay.handlers import Handler
from backstay.options import SubmitOptions
from backstay.worker import errors
from backstay.worker.channels import LoopChannel
from backstay.worker.run import Call, Execution, Run
from backstay.worker.spool import sweep

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext
    from multiprocessing.process import BaseProcess


async def served(message: list[Any], channel: LoopChannel) -> dict[str, Any] | None:
    """Do what a job in a child asks for; the answer, if it waits for one."""
    match message:
        case ["progress", fraction, stage]:
            channel.progress(float(fraction), stage)
        case ["metric", name, value]:
            channel.metric(name, float(value))
        case ["effects", statements]:
            channel.effects([(statement, tuple(map(unpacked, values))) for statement, values in statements])
        case ["refuse_rows", reason]:
            channel.refuse_rows(reason)
        case question:
            return await _answer(_asked(question, channel))
    return None


async def _asked(question: list[Any], channel: LoopChannel) -> Any:
    match question:
        case ["artifact", name, content]:
            return await channel.artifact(name, base64.b64decode(content))
        case ["artifact_file", name, path]:
            return await channel.artifact(name, Path(path))
        case ["step", name]:
            return await channel.step(name)
        case ["record_step", name, answer]:
            return await channel.record_step(name, answer)
        case ["submit", name, payload, key, at_once, options]:
            plain = cast(SubmitOptions, {option: unpacked(value) for option, value in options.items()})
            return await channel.submit(name, codec.decode(payload), key, at_once, plain)
        case ["loaded_children"]:
            return channel.loaded_children()
        case ["large_result", job_id]:
            return await _large_result(channel, job_id)
        case ["children", after, named]:
            return await channel.children(after, named)
        case ["ended", awaits]:
            return await channel.ended(Awaits.parse(awaits))
        case ["upstream"]:
            return await channel.upstream()
        case _:
            return await _asked_of_tables(question, channel)


async def _large_result(channel: LoopChannel, job_id: str) -> str | None:
    record = await channel.record(job_id)
    return None if record is None else await asyncio.to_thread(channel.large_result, record)


async def _asked_of_tables(question: list[Any], channel: LoopChannel) -> Any:
    match question:
        case ["put_rows", table, rows]:
            values = cast(Any, [tuple(map(unpacked, row)) for row in rows])
            return await channel.put_rows(_table(table), values)
        case ["rows", table, ask, key, after]:
            asked = RowQuery(**(ask | {"key": unpacked(key), "after": unpacked(after)}))
            return _packed_page(await channel.rows(_table(table), asked))
        case ["rows_by_subject", table, subject, after, limit]:
            return _packed_page(await channel.rows_by_subject(_table(table), subject, after, limit))
        case ["latest", subject, job_type]:
            return await channel.latest(subject, job_type)
        case _:
            raise BackstayError(f"an invalid request: {question!r:.200}")


def _table(plain: Any) -> ResultTable:
    return msgspec.convert(plain, ResultTable)


def _packed_page(page: RowPage) -> dict[str, Any]:
    items = [{**msgspec.to_builtins(row), "values": [packed(value) for value in row.values]} for row in page.items]
    return {"items": items, "attempt": page.attempt, "next": packed(page.next)}


async def _answer(call: Awaitable[Any]) -> dict[str, Any]:
    try:
        return {"value": await call}
    except (BackstayError, OSError) as error:
        return {"error": str(error), "type": type(error).__name__}


_CGROUP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def oom_kills() -> int | None:
    """How many, so far; None where that is not known."""
    try:
        own = _CGROUP.read_text().splitlines()[-1].rpartition(":")[2].lstrip("/")
        for folder in (_MOUNT / own, _MOUNT):
            events = folder / "memory.events"
            if events.exists():
                counts = dict(line.split() for line in events.read_text().splitlines())
                return int(counts["oom_kill"])
    except (OSError, ValueError, KeyError, IndexError):
        pass
    return None


LAST_WORDS_SECONDS = 0.2  # for messages that a child sent before it ended
MESSAGE_BYTES_MAX = 128 * 1024 * 1024  # a result of the largest size; beyond this it is rubbish
GUARD_HINT = ' (a script that uses process isolation must start its work under `if __name__ == "__main__":`)'
START_SECONDS = 60.0  # importing the user's program; beyond this it hangs


class CallBroke(Exception):
    """A call for many jobs that raised in its child, or whose child died: as text, as it came over the pipe."""

    def __init__(self, answer: tuple[Any, ...]) -> None:
        super().__init__(answer[2])
        self._answer = answer

    def outcome(self, attempt: int, now: Instant) -> Outcome:
        _, kind, message, trace = self._answer
        return Raised(ErrorEntry(attempt, now, kind, message, trace))


class Processes:
    """Idle children by handler. A child that was killed is replaced by the next job that needs one."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_Child]] = {}
        self._all: set[_Child] = set()

    async def run(
        self, run: Run, channel: LoopChannel, clock: Clock, begins: Callable[[Execution], None]
    ) -> Outcome | str:
        """The outcome, or the result as JSON text. A child that dies is a failure with its cause."""
        answer = await self._ask(run, run.handler, ("job", run.job), [channel], partial(_hear, run), begins)
        return _outcome(answer, run.job.attempt, clock.now())

    async def run_many(
        self, call: Call, channels: list[LoopChannel], clock: Clock, begins: Callable[[Execution], None]
    ) -> list[Outcome | str]:
        """The same for each job of a batch. CallBroke where the call came to nothing as a whole."""
        request = ("batch", [item.job for item in call.firsts])
        answer = await self._ask(call, call.handler, request, channels, partial(_hear, call), begins)
        if answer[0] == "raised":
            raise CallBroke(answer)
        each = answer[1] if answer[0] == "answers" else [answer] * len(call.firsts)
        now = clock.now()
        return [_outcome(tuple(one), item.job.attempt, now) for one, item in zip(each, call.firsts, strict=True)]

    async def _ask(
        self,
        execution: Execution,
        handler: Handler,
        request: tuple[str, Any],
        channels: list[LoopChannel],
        say_log: Callable[..., None],
        begins: Callable[[Execution], None],
    ) -> tuple[Any, ...]:
        """What a child says to a request in the end; how it died, as if it had raised that."""
        child = await self._child(handler)
        if isinstance(child, str):
            return ("raised", "ChildNotStarted", child, "")
        answer = None
        try:
            begins(execution)  # starting a child and importing the user's program does not count
            execution.kill = child.kill
            if execution.is_stopped:
                child.kill()
            answer = await _converse(child, request, channels, say_log)
            if answer is None:
                return ("raised", *await child.reason(), "")
        finally:
            execution.kill = None
            if answer is None:  # it died, or something raised here: then no one would listen to it any more
                child.kill()
                self._all.discard(child)
        self._idle.setdefault(handler.name, []).append(child)
        return answer

    async def _child(self, handler: Handler) -> _Child | str:
        idle = self._idle.get(handler.name, [])
        while idle:
            child = idle.pop()
            if child.alive:
                return child
            self._all.discard(child)
        from multiprocessing import get_context  # here: a worker without such handlers spares itself its memory

        child = _Child(get_context("spawn"), handler)
        self._all.add(child)
        try:
            async with asyncio.timeout(START_SECONDS):
                first = await child.receive()
        except TimeoutError:
            first = ("broken", f"it did not start within {START_SECONDS:.0f} s{GUARD_HINT}")
        except BaseException:  # the job was cancelled meanwhile: no one else would use or end this child
            child.kill()
            self._all.discard(child)
            raise
        if first is not None and first[0] == "ready":
            return child
        child.kill()
        self._all.discard(child)
        if first is not None:
            return str(first[1])
        _, reason = await child.reason("before it was ready")
        return reason + (GUARD_HINT if handler.module == "__main__" else "")

    def close(self) -> None:
        for child in self._all:
            child.kill()
        self._all.clear()
        self._idle.clear()


async def _converse(
    child: _Child, request: tuple[str, Any], channels: list[LoopChannel], say_log: Callable[..., None]
) -> tuple[Any, ...] | None:
    """Serve the child until it answers; None when it died. A message begins with the number of the job it is about."""
    if not await child.send(request):
        return None
    while (message := await child.receive()) is not None:
        match message:
            case ("log", created, level, text, number, logger, levelno):
                say_log(created, level, text, number, logger, levelno)
            case (int() as number, *rest) if 0 <= number < len(channels):
                if (answer := await served(rest, channels[number])) is not None:
                    await child.send(("answer", answer))
            case _:
                return message
    return None


def _hear(
    run: Run | Call, created: float, level: str, text: str, number: int | None, logger: str, levelno: int
) -> None:
    """Store a line that a child logged, and write it to the log of this process as if it had been logged here.

    A logging handler that raises costs the line, not the job.
    """
    fields = {"name": logger, "levelno": levelno, "levelname": level, "msg": text, ITEM: number, errors.STORED: True}
    record = logging.makeLogRecord(fields)
    token = errors.current.set(run)
    try:
        run.say_log(created, level, text, number)
        record.created, record.msecs = created, created % 1 * 1000
        if logging.getLogger(logger).isEnabledFor(levelno):
            logging.getLogger(logger).handle(record)
    except Exception:
        with contextlib.suppress(Exception):  # standard error may be closed
            logging.Handler().handleError(record)
    finally:
        errors.current.reset(token)


def _outcome(answer: tuple[Any, ...], attempt: int, now: Instant) -> Outcome | str:
    match answer:
        case ("completed", result, _):
            return str(result)
        case ("raised", kind, message, trace):
            return Raised(ErrorEntry(attempt, now, kind, message, trace))
        case ("retry", kind, message, trace, after_micros):
            return RetryAsked(ErrorEntry(attempt, now, kind, message, trace), after_micros)
        case ("snooze", for_micros, reason):
            return Snoozed(for_micros, reason)
        case ("cancel", reason):
            return Cancelled(reason)
        case ("wait", rule, on_failure, join):
            return WaitingForChildren(Awaits(TriggerRule(rule), on_failure), join)
        case ("discard", kind, message, trace):
            return Discarded(ErrorEntry(attempt, now, kind, message, trace))
        case _:
            return Raised(ErrorEntry(attempt, now, "ProcessDied", f"it sent an invalid answer: {answer!r:.200}"))


class _Child:
    """One child process and its pipe. A thread reads the pipe: a child that stops in the middle of a message, or writes
    rubbish, must not stop the event loop."""

    def __init__(self, context: SpawnContext, handler: Handler) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
        self._pipe: Connection
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_child_main,
            args=(theirs, os.getpid(), handler.name, handler.module, handler.qualname, handler.registered_in),
            daemon=True,
        )
        self._ooms = oom_kills()
        self._process.start()
        theirs.close()
        # A forked grandchild may keep the pipe open: the end of the process itself counts, too.
        self._loop.add_reader(self._process.sentinel, self._exited)
        threading.Thread(target=self._read, name="backstay-child-pipe", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    async def send(self, message: tuple[str, Any]) -> bool:
        """False when the child is gone. In a thread: a stopped child does not empty its pipe."""
        encoded = codec.encode(message)  # what cannot be encoded says nothing about the child
        try:
            await asyncio.to_thread(self._pipe.send_bytes, encoded)
        except (OSError, ValueError):
            return False
        return True

    async def receive(self) -> tuple[Any, ...] | None:
        """The next message; None when the child is gone."""
        return await self._messages.get()

    def _read(self) -> None:
        message: tuple[Any, ...] | None = ()
        while message is not None:
            try:
                message = tuple(codec.decode(self._pipe.recv_bytes(MESSAGE_BYTES_MAX)))
            except (EOFError, OSError, ValueError, TypeError):  # gone, or it wrote something else than a message
                message = None
                self.kill()
            try:
                self._loop.call_soon_threadsafe(self._messages.put_nowait, message)
            except RuntimeError:
                return  # the loop is closed

    def _exited(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        sweep(self._process.pid)
        self._loop.call_later(LAST_WORDS_SECONDS, self._messages.put_nowait, None)  # what it sent before comes first

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()

    async def reason(self, when: str = "in the middle of the job") -> tuple[str, str]:
        """How the child ended: the type of error it is, and words."""
        await self._loop.run_in_executor(None, self._process.join, 5)
        code = self._process.exitcode
        if code is None:
            return "ProcessDied", "it closed its pipe but did not exit"
        if code >= 0:
            return "ProcessDied", f"it exited with status {code} {when}"
        if -code == signal.SIGKILL and self._ooms is not None and (oom_kills() or 0) > self._ooms:
            return "OutOfMemory", "the kernel killed it (SIGKILL): this control group is out of memory"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (out of memory, or killed by hand)" if -code == signal.SIGKILL else ""
        return "ProcessDied", f"it was killed by {name}{hint}"


def _child_main(pipe: Connection, *handler: Any) -> None:
    from backstay.worker.process_child import main

    main(pipe, *handler)
    os._exit(0)
