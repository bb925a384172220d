"""Long-running commands: logging to stderr, signals, waiting for the store, and --processes N.

`--processes N` keeps N processes of the same command alive, and ends with them. Each child reads a pipe whose other end
only the parent holds: when the parent dies, however it dies, the pipe closes and the child stops as if it had been told
to. Children have process groups of their own, so that a Ctrl-C in the terminal reaches them once, through the parent.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from backstay import settings
from backstay.app import Backstay
from backstay.cli import output
from backstay.cli.output import Exit, safe_lines
from backstay.clock import within
from backstay.context import ITEM
from backstay.core.checks import count, span
from backstay.core.records import ClaimedJob, WorkerRow
from backstay.errors import BackstayError, ConfigurationError, StoreUnavailable
from backstay.worker import errors
from backstay.worker.run import Call, Report

log = logging.getLogger("backstay.worker")
MINUTE_SECONDS = 60.0

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error", "critical")

_NAMED_MAX = 3  # jobs of a batch in a line of text; JSON has them all
_worker_id: str | None = None


def level(given: str | None) -> str:
    return _one_of("log_level", given, LEVELS, "info")


def style(given: str | None) -> str:
    return _one_of("log_format", given, FORMATS, "text")


def configure(level: str, style: str) -> None:
    """Lines below the level are not printed; a job still keeps what its handler logs."""
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


async def sum_up_minutes(app: Backstay, worker_id: str) -> None:
    """A line a minute in which something ended: at thousands of jobs a second, a line for each is for --log-level
    debug. The figures are those of the last heartbeat."""
    before: WorkerRow | None = None
    while True:
        try:
            now = next((row for row in await app.workers() if row.worker_id == worker_id), None)
        except BackstayError as error:  # a busy store must not end the reports
            log.debug("could not read the statistics of the last minute: %s", error)
            now = None
        if now is not None:
            if line := minute(before, now):
                log.info("%s", line)
            before = now
        await asyncio.sleep(MINUTE_SECONDS)


def minute(before: WorkerRow | None, now: WorkerRow) -> str | None:
    """What a worker did between two heartbeats, in a line; None where nothing ended."""
    ended = now.ended - (0 if before is None else before.ended)
    if not ended:
        return None
    failed = now.failed - (0 if before is None else before.failed)
    busy = now.busy_micros - (0 if before is None else before.busy_micros)
    minutes = 1 if before is None else round((now.heartbeat_at - before.heartbeat_at) / 60e6)  # no news in an outage
    since = "minute" if minutes <= 1 else f"{minutes} minutes"
    return (
        f"in the last {since}, {count(ended, 'attempt')} ended and {failed:,} of them failed; average duration"
        f" {span(busy / ended / 1e6)}; {count(len(now.running), 'job')} running now"
    )


def _one_of(name: str, given: str | None, allowed: tuple[str, ...], default: str) -> str:
    value = settings.setting(name, given, str, default).lower()
    if value not in allowed:
        raise ConfigurationError(f"--{name.replace('_', '-')} {value}: use {', '.join(allowed)}")
    return value


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _jobs(record: logging.LogRecord) -> list[ClaimedJob]:
    """The jobs whose handler logged the line: one, or those of a batch."""
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
    """A lone surrogate in a message must not cost the line."""
    return text.encode("utf-8", "backslashreplace").decode()


supervisor_log = logging.getLogger("backstay.supervisor")
_PIPE = "BACKSTAY_SUPERVISOR_PIPE"
PAUSE_SECONDS = 0.5  # before the first restart; doubles with each that follows soon
PAUSE_SECONDS_MAX = 30.0
HEALTHY_SECONDS = 60.0  # a child that lived so long did not die of its start
ORPHAN_SECONDS = 15.0  # beyond the grace, before an orphan that cannot stop is ended


def supervise(count: int, arguments: list[str]) -> Exit:
    return asyncio.run(_Supervisor(arguments).run(count))


class _Supervisor:
    def __init__(self, arguments: list[str]) -> None:
        self._command = [sys.executable, "-m", "backstay", *arguments]
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
            code = await self._live(index, pipe)
            if self._stopping.is_set():
                break
            if code == Exit.USAGE:  # it said why; another try would say the same
                self._code = Exit.USAGE
                self._stop(signal.SIGTERM)
                break
            if time.monotonic() - started > HEALTHY_SECONDS:
                pause = PAUSE_SECONDS
            supervisor_log.error("worker process %d %s: restarting it in %g s", index, _ending(code), pause)
            await self._rest(pause)
            pause = min(PAUSE_SECONDS_MAX, pause * 2)

    async def _live(self, index: int, pipe: int) -> int:
        """One child, from its start to its end."""
        child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(pipe,),
            env={**os.environ, _PIPE: str(pipe)},
            process_group=0,
        )
        self._children[index] = child
        supervisor_log.info("worker process %d is pid %d", index, child.pid)
        if self._stopping.is_set():  # told to stop between the decision and the start
            child.send_signal(signal.SIGTERM)
        code = await child.wait()
        del self._children[index]
        well = code in (0, -signal.SIGTERM, -signal.SIGINT)  # a signal in the middle of its start ends it, rightly
        if self._stopping.is_set() and not well and self._code is Exit.OK:
            supervisor_log.error("worker process %d %s", index, _ending(code))
            self._code = Exit.FAILED
        return code

    async def _rest(self, seconds: float) -> None:
        await within(seconds, self._stopping.wait())

    def _signalled(self, number: signal.Signals) -> None:
        supervisor_log.info("%s: forwarded to %d worker processes", number.name, len(self._children))
        self._stop(number)

    def _stop(self, number: signal.Signals) -> None:
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


def watch_parent(stop: Callable[[], object], grace_seconds: float) -> None:
    """Stop when the parent is gone; end where even stopping does not work."""
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


SAME_SIGNAL_SECONDS = 0.5  # a service manager tells the whole group, and a parent passes it on: that is one signal


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: a tenth more jobs per second."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def first_of(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    waits = asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waits}, return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()


_STOPPING = (signal.SIGTERM, signal.SIGINT)
_unmasked = threading.local()


@functools.cache  # once in a process: a second pair would find the signals masked, and leave them so
def _let_children_have_their_own_signals() -> None:
    """A child that a handler forks shares the pipe that tells this process of signals: one sent to the child would stop
    the worker. It gets the usual ones back, and until then hears none."""

    def mask() -> None:
        _unmasked.signals = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)

    def unmask() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _unmasked.signals)

    def forget() -> None:
        signal.set_wakeup_fd(-1)
        for number in _STOPPING:
            signal.signal(number, signal.SIG_DFL)
        unmask()

    os.register_at_fork(before=mask, after_in_parent=unmask, after_in_child=forget)


class Stop:
    """Counts the signals, and takes the end of a supervising parent for the first one."""

    def __init__(self, grace_seconds: float) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._last_at = float("-inf")
        loop = asyncio.get_running_loop()
        for number in _STOPPING:
            loop.add_signal_handler(number, self._signalled, number)
        _let_children_have_their_own_signals()
        watch_parent(lambda: loop.call_soon_threadsafe(self.asked.set), grace_seconds)

    def _signalled(self, number: signal.Signals) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last_at < SAME_SIGNAL_SECONDS:
            return
        self._last_at = now
        if not self.asked.is_set():
            log.info("%s: taking no new jobs; running jobs may finish. Send it again to stop them now", number.name)
            self.asked.set()
        elif not self.hurried.is_set():
            log.warning("%s: stopping running jobs and giving them back", number.name)
            self.hurried.set()
        else:
            os._exit(Exit.FAILED)


def leave_within(seconds: float, code: int) -> None:
    """A handler that ignores its cancellation, or a thread that hangs, must not keep a stopped worker alive."""

    def leave() -> None:
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()


T = TypeVar("T")
START_AGAIN_SECONDS = 1.0
LEAVE_SECONDS = 10.0  # once all has stopped, what user code left behind may hold up the exit this long


def run(work: Callable[[], Coroutine[Any, Any, Exit]], log_style: str, log: logging.Logger) -> int:
    """The exit code. Who reads JSON reads only that: an error is a line of the log then."""
    try:
        _tune()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(work())
            leave_within(LEAVE_SECONDS, code)
        return code
    except BackstayError as error:
        if log_style != "json":
            raise
        log.critical("%s", error)
        return output.of_error(error)


def _tune() -> None:
    """This process is ours alone. The store's thread gets the GIL sooner than Python's 5 ms when a burst of short jobs
    or requests comes, and what was loaded at the start is not searched for garbage again and again."""
    sys.setswitchinterval(0.0002)
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


async def begun(
    start: Callable[[AsyncExitStack], Awaitable[T]], opened: AsyncExitStack, stop: Stop, log: logging.Logger
) -> T | None:
    """What `start` has begun, open in `opened`; None where the command is told to stop before the store is there."""
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
    """Machines start in any order, and a worker of all things need not be watched."""
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
