"""Long-running commands: logging to stderr, signals, waiting for the store, and --processes N.

`--processes N` keeps N processes of the same command alive, and ends with them. Each child reads a pipe whose other end
only the parent holds: when the parent dies, however it dies, the pipe closes and the child stops as if it had been told
to. Children have process groups of their own, so that a Ctrl-C in the terminal reaches them once, through the parent.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from backstay import posix, settings
from backstay.cli import output
from backstay.cli.output import Exit, safe_lines
from backstay.clock import within
from backstay.context import ITEM
from backstay.core.records import ClaimedJob
from backstay.errors import BackstayError, ConfigurationError, StoreUnavailable
from backstay.worker import errors
from backstay.worker.run import Call, Report
from backstay.worker.stop import ABANDON_SECONDS, PULSE_SECONDS, SAME_SIGNAL_SECONDS, STOP_SECONDS, Stop

log = logging.getLogger("backstay.worker")

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error", "critical")

_NAMED_MAX = 3  # jobs of a batch in a line of text; JSON has them all
_worker_id: str | None = None


def level(given: str | None) -> str:
    return _one_of("log_level", given, LEVELS, "info")


def style(given: str | None) -> str:
    return _one_of("log_format", given, FORMATS, "text")


def configure(level: str, style: str) -> None:
    """Set up the log on stderr. Lines below the level are not printed, but a job still keeps what its handler logs."""
    output.leave_to_others()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Text())
    handler.setLevel(level.upper())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(min(logging.INFO, logging.getLevelNamesMapping()[level.upper()]))


def name_worker(worker_id: str) -> None:
    global _worker_id
    _worker_id = worker_id


def _one_of(name: str, given: str | None, allowed: tuple[str, ...], default: str) -> str:
    value = settings.setting(name, given, str, default).lower()
    if value not in allowed:
        raise ConfigurationError(f"--{name.replace('_', '-')} {value}: use {', '.join(allowed)}")
    return value


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _jobs(record: logging.LogRecord) -> list[ClaimedJob]:
    """Return the jobs whose handler logged the line: one, or those of a batch."""
    run = errors.current.get()
    if not isinstance(run, Call):
        return [run.job] if isinstance(run, Report) else []
    item: int | None = getattr(record, ITEM, None)
    return [each.job for each in (run.items if item is None else run.firsts[item : item + 1])]


def _named(jobs: list[ClaimedJob]) -> str:
    if len(jobs) == 1:
        return f"{jobs[0].job_type} {jobs[0].job_id} attempt {jobs[0].attempt}"
    more = f" and {len(jobs) - _NAMED_MAX} more" if len(jobs) > _NAMED_MAX else ""
    ids = ", ".join(each.job_id for each in jobs[:_NAMED_MAX])
    return f"{jobs[0].job_type} batch of {len(jobs)}: {ids}{more}"


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        jobs = _jobs(record)
        own = record.name == "backstay.worker"  # says itself which job it means
        inside = "" if not jobs or own else f" [{_named(jobs)}]"
        line = f"{_at(record)} {record.levelname:<7} {record.name}{inside}: {record.getMessage()}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return safe_lines(line)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": _at(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _clean(record.getMessage()),
        }
        match _jobs(record):
            case [job]:
                line |= {"job_id": job.job_id, "job_type": job.job_type, "attempt": job.attempt}
            case [job, *_] as jobs:
                line |= {"job_ids": [each.job_id for each in jobs], "job_type": job.job_type}
        line |= getattr(record, "fields", {})  # of a request that was answered
        if _worker_id is not None:
            line["worker_id"] = _worker_id
        if record.exc_info:
            line["exception"] = _clean(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()


def _clean(text: str) -> str:
    """Replace lone surrogates, so that a message that has one is still printed."""
    return text.encode("utf-8", "backslashreplace").decode()


supervisor_log = logging.getLogger("backstay.supervisor")
_PIPE = "BACKSTAY_SUPERVISOR_PIPE"
_PULSE = "BACKSTAY_SUPERVISOR_PULSE"
PAUSE_SECONDS = 0.5  # before the first restart; doubles with each that follows soon
PAUSE_SECONDS_MAX = 30.0
HEALTHY_SECONDS = 60.0  # a child that lived so long did not die of its start
ORPHAN_SECONDS = 15.0  # beyond the grace, before an orphan that cannot stop is ended


REPLACE = 75  # exit status of a child that has done its share, as max_jobs and max_memory say


def supervise(count: int, arguments: list[str], grace_seconds: float, *, ends_when_done: bool = False) -> Exit:
    check_supervision()
    return asyncio.run(Supervisor(arguments, grace_seconds, ends_when_done=ends_when_done).run(count))


def check_supervision() -> None:
    if not posix.HAS_PROCESSES:
        raise ConfigurationError(f"--processes and --reload: a parent of workers {posix.ONLY_HERE}; leave them out")


class _Pulse:
    """The signs of life of a child: each says how long the silence after it may last."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        os.set_blocking(pipe, False)
        self._heard_at = time.monotonic()
        self._patience_seconds = float("inf")  # it may take as long as it likes to start

    def listen(self) -> None:
        with suppress(OSError, ValueError):
            if said := os.read(self._pipe, 65_536):
                self._heard_at, self._patience_seconds = time.monotonic(), float(said.split()[-1])

    def excuse(self, seconds: float) -> None:
        """Do not count a time in which this process did not run either: the host or the container was paused."""
        self._heard_at += seconds

    @property
    def has_beaten(self) -> bool:
        """Whether the child has started its work."""
        return self._patience_seconds != float("inf")

    @property
    def silent_seconds(self) -> float:
        return time.monotonic() - self._heard_at

    @property
    def is_over(self) -> bool:
        return self.silent_seconds > self._patience_seconds


class Supervisor:
    """Keeps processes of a command alive. `ends_when_done`: one that ends with status 0 has nothing more to do."""

    def __init__(self, arguments: list[str], grace_seconds: float, *, ends_when_done: bool = False) -> None:
        self._ends_when_done = ends_when_done
        self._command = [sys.executable, "-m", "backstay", *arguments]
        self._grace_seconds = grace_seconds
        self._signalled_at = float("-inf")
        self._ends_at = float("inf")  # the children that stop
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._code = Exit.OK

    async def run(self, count: int) -> Exit:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        theirs, ours = os.pipe()
        try:
            await asyncio.gather(*(self._keep(index, theirs) for index in range(1, count + 1)))
        finally:
            os.close(theirs)
            os.close(ours)
        return self._code

    async def _keep(self, index: int, pipe: int) -> None:
        pause = PAUSE_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            code: int | None = None
            try:
                code = await self._live(index, pipe)
                how = _ending(code)
            except OSError as error:  # no process, memory or descriptor is left: later there may be
                how = f"could not be started: {error}"
            if self._stopping.is_set():
                break
            if code == 0 and self._ends_when_done:
                supervisor_log.info("worker process %d has nothing more to do", index)
                break
            if code == REPLACE:
                supervisor_log.info("worker process %d has done its share: starting another", index)
                pause = PAUSE_SECONDS
                continue
            if time.monotonic() - started > HEALTHY_SECONDS:
                pause = PAUSE_SECONDS
            supervisor_log.error("worker process %d %s: restarting it in %g s", index, how, pause)
            await self._rest(pause)
            pause = min(PAUSE_SECONDS_MAX, pause * 2)

    async def _live(self, index: int, pipe: int) -> int:
        """Run one child from its start to its end; return its exit status, or minus the signal that ended it."""
        ours, theirs = os.pipe()
        pulse = _Pulse(ours)
        try:
            try:
                child = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(pipe, theirs),
                    env={**os.environ, _PIPE: str(pipe), _PULSE: str(theirs)},
                    process_group=0,
                )
            finally:
                os.close(theirs)
            self._children[index] = child
            watch = asyncio.ensure_future(self._watch(index, child, pulse))
            supervisor_log.info("worker process %d is pid %d", index, child.pid)
            if self._stopping.is_set():  # told to stop between the decision and the start
                child.send_signal(signal.SIGTERM)
            code = await child.wait()
            watch.cancel()
            pulse.listen()
        finally:
            os.close(ours)
        del self._children[index]
        self._judge(index, code, pulse)
        return code

    def _judge(self, index: int, code: int, pulse: _Pulse) -> None:
        """Decide what the end of a child means for the exit status and for the other children."""
        well = code in (
            0,
            REPLACE,
            -signal.SIGTERM,
            -signal.SIGINT,
        )  # a signal in the middle of its start ends it, rightly
        if self._stopping.is_set():
            if not well and self._code is Exit.OK:
                supervisor_log.error("worker process %d %s", index, _ending(code))
                self._code = Exit.FAILED
        elif code == Exit.USAGE and not pulse.has_beaten:  # it said why; another try would say the same
            self._code = Exit.USAGE
            self._stop(signal.SIGTERM)

    async def _watch(self, index: int, child: asyncio.subprocess.Process, pulse: _Pulse) -> None:
        """Kill a child that cannot even end itself because none of its threads runs."""
        while child.returncode is None:
            slept_at = time.monotonic()
            await asyncio.sleep(PULSE_SECONDS)
            pulse.excuse(max(0.0, time.monotonic() - slept_at - PULSE_SECONDS))
            pulse.listen()
            if pulse.is_over or time.monotonic() > self._ends_at:
                supervisor_log.error(
                    "worker process %d %s: killing it",
                    index,
                    f"has not been heard from for {pulse.silent_seconds:.1f} s" if pulse.is_over else "does not end",
                )
                child.kill()
                return

    async def _rest(self, seconds: float) -> None:
        await within(seconds, self._stopping.wait())

    def _signalled(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if now - self._signalled_at < SAME_SIGNAL_SECONDS:  # as the children count them
            return
        self._signalled_at = now
        supervisor_log.info("%s: forwarded to %d worker processes", number.name, len(self._children))
        self._stop(number)

    def _stop(self, number: signal.Signals) -> None:
        grace = 0.0 if self._stopping.is_set() else self._grace_seconds
        self._ends_at = time.monotonic() + grace + STOP_SECONDS + 2 * ABANDON_SECONDS
        self._stopping.set()
        for child in self._children.values():
            if child.returncode is None:
                child.send_signal(number)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}"


# In the child


def is_child() -> bool:
    return _PIPE in os.environ


def hear(grace_seconds: float) -> Stop:
    """Return a `Stop` that receives signals and notices the end of a supervisor."""
    stop = Stop(grace_seconds, _pulse_pipe())
    _watch_parent(stop.parent_is_gone, grace_seconds)
    return stop


def _pulse_pipe() -> int | None:
    given = os.environ.pop(_PULSE, None)
    if given is None:
        return None
    os.set_inheritable(int(given), False)
    os.set_blocking(int(given), False)
    return int(given)


def _watch_parent(stop: Callable[[], object], grace_seconds: float) -> None:
    """Stop when the parent is gone; exit if even stopping does not work."""
    given = os.environ.pop(_PIPE, None)
    if given is None:
        return
    pipe = int(given)
    os.set_inheritable(pipe, False)

    def watch() -> None:
        os.read(pipe, 1)  # nothing is ever written: it returns when the last writer is gone
        supervisor_log.warning("the supervisor is gone: stopping this worker")
        stop()
        time.sleep(grace_seconds + ORPHAN_SECONDS)
        os._exit(Exit.FAILED)

    threading.Thread(target=watch, name="backstay-supervisor", daemon=True).start()


LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def loop_for_sockets() -> LoopFactory | None:
    """Return uvloop's loop, if it is installed: with a server at the other end, it runs a tenth more jobs per second. A
    worker on a file has no sockets, and no use for the megabyte that it takes."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def first_of(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    waits = asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waits}, return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()


def leave_within(seconds: float, code: int) -> None:
    """Exit in time: a handler that ignores its cancellation, or a thread that hangs, must not keep a stopped worker
    alive."""

    def leave() -> None:
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()


T = TypeVar("T")
_M_ARENA_MAX = -8  # of malloc.h
START_AGAIN_SECONDS = 1.0
LEAVE_SECONDS = 10.0  # once all has stopped, what user code left behind may hold up the exit this long


def run(
    work: Callable[[], Coroutine[Any, Any, int]],
    log_style: str,
    log: logging.Logger,
    loop_factory: LoopFactory | None = None,
) -> int:
    """Run a command and return the exit code. With --json, stdout has only JSON, so an error is a line of the log."""
    try:
        _tune()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            code = _run_to_its_end(runner.get_loop(), work())
            leave_within(LEAVE_SECONDS, code)
        return code
    except BackstayError as error:
        if log_style != "json":
            raise
        log.critical("%s", error)
        return output.of_error(error)
    finally:
        if Stop.current is not None:
            Stop.current.close()


def _run_to_its_end(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, int]) -> int:
    """Run until the work has ended. The loop belongs to the worker: a handler that calls `loop.stop()`, or a task of it
    that exits, does not stop it."""
    task = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(task)
        except (RuntimeError, SystemExit) as error:
            if task.done():
                raise
            if isinstance(error, SystemExit):  # its job fails with it
                log.error("a task of a handler called sys.exit(%r), which ends no worker: it continues", error.code)
            else:
                log.error("something called stop() on the event loop, which belongs to the worker: it continues")
            if Stop.current is not None:
                loop.call_soon(Stop.current.listen)


def _tune() -> None:
    """This process is ours alone. The store's thread gets the GIL sooner than Python's 5 ms when a burst of short jobs
    or requests comes, and what was loaded at the start is not searched for garbage again and again."""
    sys.setswitchinterval(0.0002)
    _share_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _share_memory() -> None:
    """Use one heap for all threads. Threads of a worker mostly wait for the interpreter's lock, so a heap for each,
    which is the default of the C library on Linux, would cost more than a megabyte and gain nothing."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


async def begun(
    start: Callable[[AsyncExitStack], Awaitable[T]], opened: AsyncExitStack, stop: Stop, log: logging.Logger
) -> T | None:
    """Return what `start` has opened in `opened`, or None if the command is told to stop before the store is
    available."""
    starting = asyncio.ensure_future(_when_the_store_is_there(start, opened, log))
    await first_of(starting, stop.asked)
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.wait({starting})
    return None


async def _when_the_store_is_there(
    start: Callable[[AsyncExitStack], Awaitable[T]], opened: AsyncExitStack, log: logging.Logger
) -> T:
    """Start as soon as the store is available: machines start in any order, and a worker should not need watching."""
    warned = False
    while True:
        async with AsyncExitStack() as tried:
            try:
                found = await start(tried)
            except StoreUnavailable as error:
                if not warned:
                    log.warning("waiting for the store: %s", error)
                warned = True
            else:
                await opened.enter_async_context(tried.pop_all())
                return found
        await asyncio.sleep(START_AGAIN_SECONDS)
