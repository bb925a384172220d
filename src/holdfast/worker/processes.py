"""The parent side of process isolation: warm children, one job each at a time, killed when they must stop."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from holdfast import codec
from holdfast.clock import Clock, Instant
from holdfast.handlers import Handler
from holdfast.lifecycle import (
    Cancelled,
    Discarded,
    ErrorEntry,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
    WaitingForChildren,
)
from holdfast.trees import Awaits, TriggerRule
from holdfast.worker import memory
from holdfast.worker.channels import LoopChannel
from holdfast.worker.execution import Execution
from holdfast.worker.items import Call
from holdfast.worker.run import Run
from holdfast.worker.serving import served
from holdfast.worker.spool import sweep

LAST_WORDS_SECONDS = 0.2  # for messages that a child sent before it ended
MESSAGE_BYTES_MAX = 128 * 1024 * 1024  # a result of the largest size; beyond this it is rubbish
GUARD_HINT = ' (a script that uses process isolation starts its work under `if __name__ == "__main__":`)'
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
        self._context = multiprocessing.get_context("spawn")
        self._idle: dict[str, list[_Child]] = {}
        self._all: set[_Child] = set()

    async def run(
        self, run: Run, channel: LoopChannel, clock: Clock, begins: Callable[[Execution], None]
    ) -> Outcome | str:
        """The outcome, or the result as JSON text. A child that dies is a failure with its cause."""
        answer = await self._ask(run, run.handler, ("job", run.job), [channel], run.say_log, begins)
        return _outcome(answer, run.job.attempt, clock.now())

    async def run_many(
        self, call: Call, channels: list[LoopChannel], clock: Clock, begins: Callable[[Execution], None]
    ) -> list[Outcome | str]:
        """The same for each job of a batch. CallBroke where the call came to nothing as a whole."""
        request = ("batch", [item.job for item in call.firsts])
        answer = await self._ask(call, call.handler, request, channels, call.say_log, begins)
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
        begins(execution)  # starting a child and importing the user's program does not count
        execution.kill = child.kill
        if execution.is_stopped:
            child.kill()
        try:
            answer = await _converse(child, request, channels, say_log)
        finally:
            execution.kill = None
        if answer is None:
            self._all.discard(child)
            return ("raised", *await child.reason(), "")
        self._idle.setdefault(handler.name, []).append(child)
        return answer

    async def _child(self, handler: Handler) -> _Child | str:
        idle = self._idle.get(handler.name, [])
        while idle:
            child = idle.pop()
            if child.alive:
                return child
            self._all.discard(child)
        child = _Child(self._context, handler)
        self._all.add(child)
        try:
            async with asyncio.timeout(START_SECONDS):
                first = await child.receive()
        except TimeoutError:
            first = ("broken", f"it did not start within {START_SECONDS:.0f} s{GUARD_HINT}")
        except BaseException:  # the job was cancelled meanwhile: nobody would ever use or end this child
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
            case ("log", created, level, text, number):
                say_log(created, level, text, number)
            case (int() as number, *rest) if 0 <= number < len(channels):
                if (answer := await served(rest, channels[number])) is not None:
                    await child.send(("answer", answer))
            case _:
                return message
    return None


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
            return Raised(ErrorEntry(attempt, now, "ProcessDied", f"its answer makes no sense: {answer!r:.200}"))


class _Child:
    """One child process and its pipe. A thread reads the pipe: a child that stops in the middle of a message, or writes
    rubbish, must not stop the event loop."""

    def __init__(self, context: multiprocessing.context.SpawnContext, handler: Handler) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
        self._pipe: Connection
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_child_main,
            args=(theirs, os.getpid(), handler.name, handler.module, handler.qualname, handler.registered_in),
            daemon=True,
        )
        self._ooms = memory.oom_kills()
        self._process.start()
        theirs.close()
        # A forked grandchild may keep the pipe open: the end of the process itself counts, too.
        self._loop.add_reader(self._process.sentinel, self._exited)
        threading.Thread(target=self._read, name="holdfast-child-pipe", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    async def send(self, message: tuple[str, Any]) -> bool:
        """False when the child is gone. In a thread: a stopped child does not empty its pipe."""
        try:
            await asyncio.to_thread(self._pipe.send_bytes, codec.encode(message))
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
            except (EOFError, OSError, ValueError, TypeError):  # gone, or it wrote what is no message
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
        if -code == signal.SIGKILL and self._ooms is not None and (memory.oom_kills() or 0) > self._ooms:
            return "OutOfMemory", "the kernel killed it (SIGKILL): the memory of this control group is used up"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (out of memory, or killed by hand)" if -code == signal.SIGKILL else ""
        return "ProcessDied", f"it was killed by {name}{hint}"


def _child_main(pipe: Connection, *handler: Any) -> None:
    from holdfast.worker.child import main

    main(pipe, *handler)
    os._exit(0)
