"""The parent side of process isolation: a pool of warm child processes, one job each at a time.

A child that must stop is killed, with all that it has started. Questions that its handler asks of the context are
answered through the channel of the job. A child goes back to the pool only if its call left nothing behind: no thread,
no process, no signal handler, no timer, no unread message. When a child disappears, the kernel's counter of
out-of-memory kills may tell why.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from backstay import codec
from backstay.clock import Clock, Instant, within
from backstay.context import ITEM
from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.lifecycle import (
    Cancelled,
    Discarded,
    Outcome,
    Raised,
    RetryAsked,
    Sleeping,
    Snoozed,
    WaitingForChildren,
    WaitingForEvent,
)
from backstay.core.records import ErrorEntry
from backstay.core.result_tables import ResultTable, RowPage, RowQuery
from backstay.core.step_values import packed, unpacked
from backstay.core.waits import EventWait
from backstay.errors import BackstayError, ClaimLost
from backstay.handlers import Handler
from backstay.limits import LIFESPAN_END_SECONDS, MIB, RESULT_BYTES_MAX
from backstay.options import SubmitOptions
from backstay.worker import errors, keeper, memory
from backstay.worker.channels import LoopChannel
from backstay.worker.errors import CallBroke
from backstay.worker.run import Call, Execution, Run
from backstay.worker.spool import sweep

log = logging.getLogger("backstay.worker")


async def served(message: list[Any], channel: LoopChannel) -> dict[str, Any] | None:
    """Do what a job in a child asks for. Return the answer, if the child waits for one."""
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
            try:
                return {"value": await _asked(question, channel)}
            except (BackstayError, OSError) as error:
                return _error(error)
    return None


def _error(error: Exception) -> dict[str, Any]:
    return {"error": str(error), "type": type(error).__name__}


async def _asked(question: list[Any], channel: LoopChannel) -> Any:
    match question:
        case ["artifact", name, content]:
            return await channel.artifact(name, base64.b64decode(content))
        case ["artifact_file", name, path]:
            return await channel.artifact(name, Path(path))
        case ["artifact_ref", name]:
            return await channel.artifact_ref(name)
        case ["read_artifact", reference]:
            return base64.b64encode(await channel.read_artifact(reference)).decode()
        case ["stream", entry]:
            return await channel.stream(entry)
        case ["step", name]:
            return await channel.step(name)
        case ["record_step", name, answer]:
            return await channel.record_step(name, answer)
        case ["sleep", name, micros]:
            return await channel.sleep(name, micros)
        case ["wait_for_event", name, key, timeout_micros, schema]:
            return await channel.wait_for_event(name, key, timeout_micros, schema)
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
            return await channel.ended(msgspec.convert(awaits, Awaits))
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


_CGROUP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def oom_kills() -> int | None:
    """Return the number of out-of-memory kills so far, or None if it is unknown."""
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


MESSAGE_BYTES_MAX = 2 * RESULT_BYTES_MAX + MIB  # a result of the largest size, escaped; beyond this it is rubbish
START_SECONDS = 60.0  # importing the user's program; beyond this it hangs
REAP_SECONDS = 10.0  # for a keeper to end what its child has left
OTHER_CALL = "messages of another call"
_KEEPER = "import runpy; runpy.run_path({path!r})['main']({pipe}, {control}, {worker})"
Answer = tuple[Any, ...]  # how a job ended, as its child says it


class Processes:
    """Idle children, by handler. A child that was killed is replaced when a job next needs one."""

    def __init__(self, memory_max: int | None = None) -> None:
        self._idle: dict[str, list[_Child]] = {}
        self._all: set[_Child] = set()
        self._said: set[str] = set()  # handlers that leave something behind
        self._memory_max = memory_max  # bytes of a child, beyond which it is replaced after its job
        self._retiring: set[asyncio.Task[None]] = set()

    async def run(
        self, run: Run, channel: LoopChannel, clock: Clock, begins: Callable[[Execution], None]
    ) -> Outcome | str:
        """Run one job; return its outcome, or the result as JSON text. If the child dies, that is a failure with its
        cause."""
        conversation = Conversation("job", [channel], partial(_hear, run))
        answers = await self._ask(run, run.handler, conversation, begins)
        return _outcome(answers[0] if isinstance(answers, list) else answers, run.job.attempt, clock.now())

    async def run_many(
        self, call: Call, channels: list[LoopChannel], clock: Clock, begins: Callable[[Execution], None]
    ) -> list[Outcome | str]:
        """Run the jobs of a batch; return an answer for each. Raises CallBroke if the call failed as a whole."""
        conversation = Conversation("batch", channels, partial(_hear, call))
        answers = await self._ask(call, call.handler, conversation, begins)
        if not isinstance(answers, list):
            if answers[0] == "raised":
                raise CallBroke(answers[2], partial(_of_all, answers))
            answers = [answers] * len(call.firsts)
        now = clock.now()
        return [_outcome(one, item.job.attempt, now) for one, item in zip(answers, call.firsts, strict=True)]

    async def _ask(
        self,
        execution: Execution,
        handler: Handler,
        conversation: Conversation,
        begins: Callable[[Execution], None],
    ) -> list[Answer] | Answer:
        """Return a child's answers, or one answer for the whole call. The death of a child counts as an exception of
        the call."""
        child = await self._child(handler)
        if isinstance(child, str):
            return ("raised", "ChildNotStarted", child, "")
        is_clean = may_stay = False
        try:
            begins(execution)  # starting a child and importing the user's program does not count
            execution.kill = child.kill
            if execution.is_stopped:
                child.kill()
            answers = await conversation.hold(child)
            if answers is None:
                return ("raised", *child.reason(), "")
            is_clean = conversation.left is None and child.is_silent
            may_stay = is_clean and not self._is_too_large(child)
        finally:
            execution.kill = None
            if not is_clean:  # it died, it bears traces of this call, or something raised here: no one else may have it
                child.kill()
                self._all.discard(child)
        if conversation.left is not None:
            self._say_left(handler, conversation.left)
        if may_stay:
            self._idle.setdefault(handler.name, []).append(child)
        elif is_clean:
            task = asyncio.ensure_future(self._retire(child))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        return answers

    def _is_too_large(self, child: _Child) -> bool:
        if self._memory_max is None or child.pid is None:
            return False
        used = memory.resident_bytes(child.pid)
        if used > self._memory_max:
            log.info(
                "the process of %s uses %s, more than %s (max_memory): the next job gets a new one",
                child.handler.name,
                memory.shown(used),
                memory.shown(self._memory_max),
            )
        return used > self._memory_max

    async def _retire(self, child: _Child) -> None:
        """End a child that runs no job: it may end what its lifespan has made, in bounded time."""
        try:
            if child.has_lifespan and child.alive:
                await child.send(("end", ""))
                await within(LIFESPAN_END_SECONDS, child.gone())
        finally:
            child.kill()
            self._all.discard(child)

    async def end(self) -> None:
        """End the children that run no job."""
        idle = [child for children in self._idle.values() for child in children if child.has_lifespan]
        self._idle.clear()
        await asyncio.gather(*self._retiring, *map(self._retire, idle), return_exceptions=True)

    def _say_left(self, handler: Handler, left: str) -> None:
        if handler.name not in self._said:
            self._said.add(handler.name)
            log.warning(
                "%s returned and left %s behind: its process is not used again, and each such job waits for a new one",
                handler.name,
                left,
            )

    async def _child(self, handler: Handler) -> _Child | str:
        idle = self._idle.get(handler.name, [])
        while idle:
            child = idle.pop()
            if child.alive and child.is_silent:
                return child
            child.kill()
            self._all.discard(child)
        child = _Child(handler)
        self._all.add(child)
        try:
            async with asyncio.timeout(START_SECONDS):
                reason = await child.start()
        except TimeoutError:
            reason = f"it did not start within {START_SECONDS:.0f} s{keeper.GUARD_HINT}"
        except BaseException:  # the job was cancelled meanwhile: no one else would use or end this child
            child.kill()
            self._all.discard(child)
            raise
        if reason is None:
            return child
        child.kill()
        self._all.discard(child)
        log.error("a process for %s could not be started: %s", handler.name, reason)
        return reason

    def close(self) -> None:
        for child in self._all:
            child.kill()
        self._all.clear()
        self._idle.clear()


class Conversation:
    """One call of a handler in a child. Every message names the call, by a random number, and the job and attempt that
    it is about. If one names another call it is refused, and the child is not used again."""

    def __init__(self, kind: str, channels: Sequence[LoopChannel], say_log: Callable[..., None]) -> None:
        self.call = secrets.token_hex(8)
        self.left: str | None = None  # what the handler has left behind in the child
        self._kind = kind
        self._channels = {(channel.job.job_id, channel.job.attempt): channel for channel in channels}
        self._jobs = [channel.job for channel in channels]
        self._answers: list[Answer] = []
        self._broken: Answer | None = None  # instead of an answer for each
        self._say_log = say_log

    async def hold(self, child: Talks) -> list[Answer] | Answer | None:
        """Serve the child until it has finished. Returns None if it died."""
        await child.send((self._kind, self.call, self._jobs))
        while (message := await child.receive()) is not None:
            match message:
                case ("log", self.call, *line):
                    self._say_log(*line)
                case ("say", self.call, question, job_id, attempt, *said) if (job_id, attempt) in self._channels:
                    answer = await served(said, self._channels[job_id, attempt])
                    if question is not None:
                        await child.send(("reply", self.call, question, answer))
                case ("answer", self.call, answer):
                    self._answers.append(tuple(answer))
                case ("broke", self.call, answer):
                    self._broken = tuple(answer)
                case ("done", self.call, left):
                    self.left = self.left or left
                    return self._end()
                case ("say", call, question, *_) if question is not None:
                    self.left = OTHER_CALL
                    refused = ClaimLost(f"call {call!r:.40} has ended: its context cannot be used any more")
                    await child.send(("reply", call, question, _error(refused)))
                case _:
                    self.left = OTHER_CALL
        return None

    def _end(self) -> list[Answer] | Answer:
        if self._broken is not None:
            return self._broken
        if len(self._answers) != len(self._jobs):
            return _invalid((f"{len(self._answers)} answers for {len(self._jobs)} jobs",))
        return self._answers


def _invalid(message: Answer) -> Answer:
    return ("raised", "ProcessDied", f"it sent an invalid answer: {message!r:.200}", "")


def _hear(
    run: Run | Call, number: int | None, created: float, level: str, text: str, logger: str, levelno: int
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


def _of_all(answer: Answer, attempt: int, now: Instant) -> Outcome:
    """Return what the answer to a call as a whole is for one of its jobs."""
    found = _outcome(answer, attempt, now)
    return Raised(ErrorEntry(attempt, now, *answer[1:4])) if isinstance(found, str) else found


def _outcome(answer: tuple[Any, ...], attempt: int, now: Instant) -> Outcome | str:
    match answer:
        case ("completed", result):
            return str(result)
        case ("too_large", size):
            return Discarded(ErrorEntry(attempt, now, "ResultTooLarge", errors.result_limit(size)))
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
        case ("sleep", name, until):
            return Sleeping(name, until)
        case ("wait_for_event", wait, seen):
            return WaitingForEvent(EventWait.of(wait), seen)
        case ("discard", kind, message, trace):
            return Discarded(ErrorEntry(attempt, now, kind, message, trace))
        case _:
            return Raised(ErrorEntry(attempt, now, "ProcessDied", f"it sent an invalid answer: {answer!r:.200}"))


class Talks(Protocol):
    async def send(self, message: tuple[Any, ...]) -> None: ...

    async def receive(self) -> tuple[Any, ...] | None: ...


class _Child:
    """One child process, its keeper and its pipe. The pipe is read in a thread, so that a child that stops in the
    middle of a message, or writes garbage, cannot block the event loop."""

    def __init__(self, handler: Handler) -> None:
        # Here: a worker without such handlers spares itself the memory.
        import pickle
        from multiprocessing import Pipe, spawn

        self.alive = True  # until it is dead, with everything it had started
        self.handler = handler
        self.pid: int | None = None
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
        self._killed = False
        self._code = 0
        self._ooms = oom_kills()
        preparation = spawn.get_preparation_data("backstay-child")
        preparation["authkey"] = bytes(preparation["authkey"])  # the wrapped one refuses to be pickled
        names = (handler.name, handler.module, handler.qualname, handler.registered_in, handler.factory)
        self._start = pickle.dumps({"preparation": preparation, "handler": names})
        self._mark = secrets.token_hex(16)
        self._pipe, theirs = Pipe()
        ordered, self._order = Pipe(duplex=False)
        program = _KEEPER.format(
            path=keeper.__file__, pipe=theirs.fileno(), control=ordered.fileno(), worker=os.getpid()
        )
        with theirs, ordered:
            self._process = subprocess.Popen(
                [*spawn.get_command_line()[:-2], program],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), ordered.fileno()),
                env={**os.environ, keeper.MARK: self._mark},
                process_group=0,  # Ctrl-C is for the worker, which lets running jobs finish
            )
        threading.Thread(target=self._read, name="backstay-child-pipe", daemon=True).start()

    async def start(self) -> str | None:
        """Have the child import the user's program. Return why that failed, if it did."""
        await self._send(self._start)
        match await self.receive():
            case ("ready", int() as pid):
                self.pid = pid
                return None
            case ("broken", reason):
                return str(reason)
            case None:
                hint = keeper.GUARD_HINT if self.handler.module == "__main__" else ""
                return self.reason("before it was ready")[1] + hint
            case message:
                return f"it sent an invalid message: {message!r:.200}"

    @property
    def is_silent(self) -> bool:
        """Return whether all its messages have been read."""
        return self._messages.empty()

    async def send(self, message: tuple[Any, ...]) -> None:
        """Send a message. If the child is gone, `receive` reports it."""
        await self._send(codec.encode(message))

    async def _send(self, encoded: bytes) -> None:
        """Write to the pipe, in a thread: a stopped child does not read from it."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._pipe.send_bytes, encoded)

    async def receive(self) -> tuple[Any, ...] | None:
        """Return the next message, or None if the child is gone."""
        return await self._messages.get()

    @property
    def has_lifespan(self) -> bool:
        return self.handler.lifespans is not None and self.handler.lifespans.lifespan is not None

    async def gone(self) -> None:
        """Wait for its end."""
        while await self.receive() is not None:
            pass

    def _read(self) -> None:
        while True:
            try:
                message = tuple(codec.decode(self._pipe.recv_bytes(MESSAGE_BYTES_MAX)))
            except (EOFError, OSError, ValueError, TypeError, RecursionError):  # gone, or it wrote no message
                break
            self._post(message)
        self.kill()  # so that its keeper leaves, which takes all with it that could hold the pipe open
        self._end()
        sweep(self.pid)
        self.alive = False
        self._post(None)

    def _end(self) -> None:
        """Wait for the end of the keeper, and end what a keeper that was killed has left."""
        impatient = threading.Timer(REAP_SECONDS, self._process.kill)
        impatient.daemon = True
        impatient.start()
        if keeper.IS_USED:
            with contextlib.suppress(ChildProcessError):  # the user's program ignores SIGCHLD
                how = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
                if how is not None and how.si_code != os.CLD_EXITED and how.si_status == signal.SIGKILL:
                    keeper.end_orphans(self._process.pid, self._mark)
        self._code = self._process.wait()
        impatient.cancel()

    def _post(self, message: tuple[Any, ...] | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._messages.put_nowait, message)

    def kill(self) -> None:
        """Kill the child with everything that was started in it, which its keeper does."""
        if self._killed:
            return
        self._killed = True
        if keeper.IS_USED:
            with contextlib.suppress(OSError):  # it is gone
                self._order.send_bytes(b"end")
        else:
            self._process.kill()

    def reason(self, when: str = "in the middle of the job") -> tuple[str, str]:
        """Return how the child ended: the error type and a description."""
        code = self._code
        if code >= 0:
            return "ProcessDied", f"it exited with status {code} {when}"
        if -code == signal.SIGKILL and self._ooms is not None and (oom_kills() or 0) > self._ooms:
            return "OutOfMemory", "the kernel killed it (SIGKILL): this control group is out of memory"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (out of memory, or killed by hand)" if -code == signal.SIGKILL else ""
        return "ProcessDied", f"it was killed by {name}{hint}"
