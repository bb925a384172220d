"""Runs a handler as a coroutine, in a thread or in a child process, and turns its end into an outcome.

Blocking handlers run on daemon threads: the standard pool would make an exiting process wait for a stuck handler.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterable
from functools import cached_property
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from backstay import codec, failpoints
from backstay.clock import MICROS, Instant
from backstay.context import BlockingContext, Context
from backstay.core.lifecycle import Completed, Discarded, Outcome, Raised
from backstay.core.records import ErrorEntry
from backstay.files.local import Files
from backstay.limits import RESULT_BYTES_MAX, RESULT_INLINE_BYTES_MAX
from backstay.worker import errors
from backstay.worker.channels import LoopChannel, Services, ThreadChannel
from backstay.worker.encoder import Unencoded, at_once, encoded
from backstay.worker.errors import entry, outcome_of
from backstay.worker.pulse import Pulse
from backstay.worker.run import TIMED_OUT, Execution, Run

if TYPE_CHECKING:
    from backstay.worker.process import Processes

_SURELY_INLINE = RESULT_INLINE_BYTES_MAX // 4  # characters: one takes one to four bytes
_Work = tuple[contextvars.Context, Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]


class Threads:
    def __init__(self) -> None:
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = 0
        self._count = 0
        self._lock = threading.Lock()

    def run(self, context: contextvars.Context, call: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._idle == 0:
                self._count += 1
                threading.Thread(target=self._work, name=f"backstay-job-{self._count}", daemon=True).start()
            else:
                self._idle -= 1
        self._queue.put((context, call, future, loop))
        return future

    def close(self) -> None:
        for _ in range(self._count):
            self._queue.put(None)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            context, call, future, loop = work
            try:
                value, error = context.run(call), None
            except BaseException as raised:
                value, error = None, raised
            with self._lock:
                self._idle += 1
            try:
                loop.call_soon_threadsafe(_resolve, future, value, error)
            except RuntimeError:
                return  # the loop is gone
            del work, context, call, future, value, error


def _resolve(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif issubclass(kind := type(error), StopIteration | GeneratorExit):  # a coroutine cannot receive these
        future.set_exception(RuntimeError(f"the handler raised {kind.__name__}"))
    else:
        future.set_exception(error)


class Deadlines:
    """One timer for the timeouts of all runs: a timer per job would cost more than a short job itself."""

    def __init__(
        self, executions: Callable[[], Iterable[Execution]], stop: Callable[[Execution, str], None], pulse: Pulse
    ) -> None:
        self._executions = executions
        self._stop = stop
        self._pulse = pulse
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._next = float("inf")

    def watch(self, execution: Execution) -> None:
        """Start the timeout of a run."""
        execution.deadline = self._loop.time() + execution.timeout_micros / MICROS
        if execution.deadline < self._next:
            self._arm(execution.deadline)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, when: float) -> None:
        self.close()
        self._next = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """Stop runs that are overdue, then wait for the next deadline. The timer may have been set for a run that has
        ended."""
        self._next = float("inf")
        self._pulse.check()  # a job must not time out because another handler blocked the loop
        now = self._loop.time()
        waiting = []
        for execution in self._executions():
            if execution.deadline <= now:
                self._stop(execution, TIMED_OUT)
            elif not execution.is_stopped:
                waiting.append(execution.deadline)
        if waiting:
            self._arm(min(waiting))


async def completion(job_id: str, attempt: int, result: str, files: Files | None, now: Instant) -> Outcome:
    raw = result.encode()
    if len(raw) <= RESULT_INLINE_BYTES_MAX:
        return Completed(result)
    if files is None or len(raw) > min(RESULT_BYTES_MAX, files.size_max):
        return Discarded(ErrorEntry(attempt, now, "ResultTooLarge", _limit(len(raw), files)))
    # Written before the completion commits, and named in it.
    stored = await asyncio.to_thread(files.write, job_id, attempt, ".result.json", raw)
    return Completed(None, codec.encode(stored).decode())


def _limit(size: int, files: Files | None) -> str:
    if files is not None and size <= RESULT_BYTES_MAX:
        return f"the result has {size:,} bytes; the limit is {files.size_max:,}{files.instead}"
    return errors.result_limit(size)


class Executor:
    def __init__(self, services: Services, deadlines: Deadlines, memory_max: int | None = None) -> None:
        self.services = services
        self._clock = services.clock
        self._files = services.files
        self.deadlines = deadlines
        self.threads = Threads()
        self._memory_max = memory_max

    @cached_property
    def processes(self) -> Processes:
        """The child processes, made when a job first needs one: a worker is measured by its memory."""
        from backstay.worker.process import Processes

        return Processes(self._memory_max)

    async def end(self) -> None:
        """Let child processes end what their lifespan has made."""
        if "processes" in self.__dict__:
            await self.processes.end()

    def close(self) -> None:
        self.threads.close()
        if "processes" in self.__dict__:
            self.processes.close()

    async def run(self, run: Run) -> Outcome:
        """Run a handler and return its outcome. Never raises."""
        run.begun = True
        if _stop_asked(run):
            return run.stopped(run.job.attempt, self._clock.now())
        try:
            if run.job.children:
                await self.services.children.load(run)
            if failpoints.armed:
                failpoints.hit("handler.before")
            match run.handler.isolation:
                case "async":  # inline, which saves a coroutine per job
                    self.deadlines.watch(run)
                    errors.current.set(run)  # the task's own context: nothing to reset
                    job, handler = run.job, run.handler
                    payload = handler.decode(job.payload, job.payload_version)
                    function, takes_context = handler.entry(job.join)
                    if takes_context:
                        try:
                            answer = await function(payload, Context(LoopChannel(run, self.services, run)))
                        finally:
                            run.ended = True
                    else:
                        answer = await function(payload)
                    text = codec.flat_json(answer)
                    value: Outcome | str = await encoded(answer) if text is None else text
                case "thread":
                    value = await self._in_thread(run)
                case "process":
                    value = await self._in_process(run)
            if failpoints.armed:
                failpoints.hit("handler.after")
            if _stop_asked(run):
                return run.stopped(run.job.attempt, self._clock.now())
            if not isinstance(value, str):
                if run.output is not None:
                    await self.services.outputs.flush_quietly(run)
                return value  # an outcome that a child process has already named
            if run.handler.encrypted_result:
                value = run.handler.stored_result(value)
            if run.rows_refused is not None:
                raise run.rows_refused
            if run.family:
                await self.services.children.flush(run)
            if run.output is not None:
                await self.services.outputs.flush(run)
            return await self.completed(run, value) if len(value) > _SURELY_INLINE else Completed(value)
        except asyncio.CancelledError as error:
            # We cancel a run only with a reason: without one the handler did it, and that is a failure like any other.
            if _stop_asked(run):
                return run.stopped(run.job.attempt, self._clock.now())
            return Raised(entry(error, run.job.attempt, self._clock.now()))
        except BaseException as error:
            if _stop_asked(run):
                return run.stopped(run.job.attempt, self._clock.now())
            if run.output is not None:
                await self.services.outputs.flush_quietly(run)
            return outcome_of(error, run.job, self._clock.now(), run.handler.rules)

    # Each returns the result as JSON text

    async def _in_process(self, run: Run) -> Outcome | str:
        channel = LoopChannel(run, self.services, run)
        try:
            return await self.processes.run(run, channel, self._clock, self.deadlines.watch)
        finally:
            run.ended = True

    async def _in_thread(self, run: Run) -> str:
        self.deadlines.watch(run)
        handler = run.handler
        context = BlockingContext(ThreadChannel(run, self.services, run))

        def call() -> str | Unencoded:
            errors.current.set(run)
            try:
                payload = handler.decode(run.job.payload, run.job.payload_version)
                function, takes_context = handler.entry(run.job.join)
                value: Any = function(payload, context) if takes_context else function(payload)
            finally:
                run.ended = True
            return at_once(value)

        found: str | Unencoded = await self.threads.run(contextvars.copy_context(), call)
        return found if isinstance(found, str) else await encoded(found)

    async def completed(self, run: Run, result: str) -> Outcome:
        if len(result) <= _SURELY_INLINE:
            return Completed(result)
        return await completion(run.job.job_id, run.job.attempt, result, self._files, self._clock.now())


def _stop_asked(run: Run) -> bool:
    """Return whether a stop was requested. A function, because this can change at every await, and in a thread at any
    time."""
    return run.stop_reason is not None
