"""The child processes of the crash test: fork, control and reap them, and what runs inside one.

Inside, the app starts anew on the trial's own file, and works until the job has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import apsw
import msgspec

from backstay import failpoints, sync
from backstay.app import Backstay
from backstay.clock import Instant, SystemClock
from backstay.core import waits
from backstay.core.dependencies import Awaits
from backstay.core.port import Store
from backstay.core.records import Transition, Verdict
from backstay.core.states import Event
from backstay.core.waits import EventWait, NewEvent, Sleep, StepKind
from backstay.errors import JobCancelled, JobFailed
from backstay.handlers import Handler
from backstay.job import Ended, Job, Waited
from backstay.limits import FIND_LIMIT_MAX
from backstay.ops.events import event_wait
from backstay.options import SubmitOptions
from backstay.outcomes import Discard
from backstay.testing.clock import throwaway_url
from backstay.testing.drainer import AtOnce, behind
from backstay.worker.channels import Children
from backstay.worker.keeper import die_with_parent
from backstay.worker.outputs import Outputs
from backstay.worker.run import Run
from backstay.worker.waits import Waits

# between checks of a child whose pipe a grandchild may keep open; otherwise its end is noticed at once
LOOK_SECONDS = 0.05
LAST_WORDS_BYTES = 4_000  # characters of a child's output in a message: a traceback, not a log
STOPS_MAX = 1_000  # tries to stop a child outside a transaction: it is inside one for a few milliseconds in a hundred
STOP_AGAIN_SECONDS = 0.005  # about the duration of a transaction
_RESTORED = ("SIGINT", "SIGTERM", "SIGALRM", "SIGCHLD", "SIGHUP")  # by name: not every system has all of them


class Link:
    """A child's ends of the pipes to its parent."""

    def __init__(self, says: int, waits: int) -> None:
        self._says = says
        self._waits = waits

    def say(self, line: bytes) -> None:
        os.write(self._says, line + b"\n")

    def wait(self) -> None:
        """Wait for the parent. Blocks this thread, even if it is that of the event loop."""
        os.read(self._waits, 1)


@contextmanager
def forked(program: Callable[[Link], None], output: Path, seconds: float) -> Iterator[Child]:
    """Fork a child that runs `program`. When the block ends, it and everything it started have been killed."""
    child = _fork(program, output, seconds)
    try:
        yield child
    finally:
        child.end()


def _fork(program: Callable[[Link], None], output: Path, seconds: float) -> Child:
    hears, says = os.pipe()
    waits, tells = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        # Newer Pythons warn about threads. Those of pytest and its plugins hold no lock that a child needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _become(program, Link(says, waits), output, parent)
    os.close(says)
    os.close(waits)
    with contextlib.suppress(OSError):  # the child does it too: one of the two is first
        os.setpgid(pid, pid)
    return Child(pid, hears, tells, output, seconds)


def _become(program: Callable[[Link], None], link: Link, output: Path, parent: int) -> NoReturn:
    """Run the program and exit. Never returns: the caller's frames belong to the parent."""
    code = 1
    try:
        gc.freeze()  # garbage collection would close sockets, event loops and databases that are shared with the parent
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for each in _RESTORED:
            signal.signal(signal.Signals[each], signal.SIG_DFL)
        _redirect(output)
        program(link)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _redirect(output: Path) -> None:
    """Redirect output, because captured output belongs to the parent; logs are included, for the message of a
    failure."""
    nothing = os.open(os.devnull, os.O_RDWR)
    file = os.open(output, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    for theirs, ours in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(theirs, ours)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  open until the process ends
    logging.getLogger().handlers[:] = [logging.StreamHandler(sys.stderr)]


class Child:
    """A child process and its group."""

    def __init__(self, pid: int, hears: int, tells: int, output: Path, seconds: float) -> None:
        self.pid = pid
        self._hears = hears
        self._tells = tells
        self._ear = select.poll()  # not select.select, which is limited to descriptors below 1,024
        self._ear.register(hears, select.POLLIN)
        self._output = output
        self._clock = SystemClock()
        self._seconds = seconds
        self._deadline = self._clock.monotonic() + seconds
        self._buffer = b""
        self._status: int | None = None

    def hear(self) -> bytes | None:
        """Return the next line; None if the child has ended. AssertionError on timeout."""
        while b"\n" not in self._buffer:
            left = self._deadline - self._clock.monotonic()
            if left <= 0:
                raise AssertionError(f"a worker did not end within {self._seconds:g} s.{self.last_words()}")
            if self._ear.poll(min(left, LOOK_SECONDS) * 1000):
                if not (chunk := os.read(self._hears, 65536)):
                    return None
                self._buffer += chunk
            elif self._has_ended():
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _has_ended(self) -> bool:
        """Return whether it has ended, without reaping it: while it is a zombie, no other process can get its id or
        group."""
        if self._status is not None:
            return True
        if not hasattr(os, "waitid"):
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def stop(self, database: Path) -> None:
        """Send SIGSTOP to the whole group, outside any transaction. A process stopped while it holds SQLite's write
        lock would stop all others: that is a limit of SQLite, and not what a stall is meant to test."""
        for _ in range(STOPS_MAX):
            os.killpg(self.pid, signal.SIGSTOP)
            _, status = os.waitpid(self.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self._status = status
                raise AssertionError(f"a worker died while it was being stopped ({self.death()}).{self.last_words()}")
            if _is_writable(database):
                return
            os.killpg(self.pid, signal.SIGCONT)
            time.sleep(STOP_AGAIN_SECONDS)
        raise AssertionError(f"a worker could not be stopped outside a transaction in {STOPS_MAX:,} tries")

    def go_on(self) -> None:
        self._deadline = self._clock.monotonic() + self._seconds
        os.write(self._tells, b"!")
        os.killpg(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill the group, then reap the child: until then its id cannot be reused."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            _, self._status = os.waitpid(self.pid, 0)
        for descriptor in (self._hears, self._tells):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def death(self) -> str:
        """Describe how it ended."""
        if self._status is None:
            return "it lives"
        code = os.waitstatus_to_exitcode(self._status)
        return f"exit status {code}" if code >= 0 else signal.Signals(-code).name

    def last_words(self) -> str:
        try:
            text = self._output.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return f" Its last output:\n{text}" if text else ""


def _is_writable(database: Path) -> bool:
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True


QUEUE = "crash-test"  # a separate queue: jobs that the handler submits are counted, and do not run
POLL_SECONDS = 0.1  # how soon an expired lease is found; polling this private file is cheap
REACHED = b"reached"


@dataclass(frozen=True, slots=True)
class Moment:
    """The nth time that a child reaches a point."""

    point: str
    nth: int


@dataclass(frozen=True, slots=True)
class Orders:
    """The job under test, the same in all trials."""

    app: Backstay | sync.Backstay
    handler: Handler
    payload: str
    options: SubmitOptions
    job_id: str
    grace_seconds: float
    events: Mapping[str, str] = field(default_factory=dict)  # payloads by name, as JSON


class ChildReport(msgspec.Struct, frozen=True):
    """A child's last line: the state of the job, and the points that the child reached."""

    status: str
    error: str | None
    attempts: int
    submitted: dict[str, int]  # jobs that the handler submitted, by type
    output: list[Any]  # what it streamed, as its readers find it
    passed: dict[str, int]


def make_queue(orders: Orders, folder: Path) -> None:
    """Create an empty queue with its schema."""

    async def run(app: Backstay) -> None:
        async with app:
            pass

    _anew(orders.app, folder)
    _run(orders.app, run)


def work(
    orders: Orders, folder: Path, lease: float, moment: Moment | None, deed: Callable[[], None], link: Link
) -> None:
    """Submit the job (a repeat has no effect), work until it has ended, and report. `deed` is called at `moment`."""
    points = _Points(moment, deed)
    points.watch()
    _refuse_waits()
    _refuse_unsent(orders.events)
    _anew(orders.app, folder)
    orders.handler.rate = None  # a second run would wait for it
    report = _run(orders.app, lambda app: _work(app, orders, lease, points))
    link.say(msgspec.json.encode(report))


def die() -> None:
    """Kill the whole group at once, as in a power loss."""
    os.killpg(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal is on its way; nothing after this line may happen


def pause(link: Link) -> None:
    """Wait here for the parent to stop and resume this process."""
    link.say(REACHED)
    link.wait()


class _Points:
    def __init__(self, moment: Moment | None, deed: Callable[[], None]) -> None:
        self._moment = moment
        self._deed = deed
        self.passed: Counter[str] = Counter()

    def hit(self, point: str) -> None:
        self.passed[point] += 1
        if self._moment == Moment(point, self.passed[point]):
            self._deed()

    def watch(self) -> None:
        """Patch the code to watch points. This process was forked for one run, so no other code sees the patches."""
        inner_hit, inner_say, inner_append = failpoints.hit, Run.say_progress, Outputs.append

        def hit(name: str) -> None:
            self.hit(name)
            inner_hit(name)

        def say_progress(run: Run, fraction: float, stage: str | None) -> None:
            inner_say(run, fraction, stage)
            self.hit("progress")

        async def append(outputs: Outputs, run: Run, entry: str) -> None:
            await inner_append(outputs, run, entry)
            self.hit("stream")

        failpoints.hit, failpoints.armed = hit, True
        Outputs.append = append  # type: ignore[method-assign, assignment]
        Run.say_progress = say_progress  # type: ignore[method-assign, assignment]


class Patient(AtOnce):
    """Makes waits short: a sleep is over when the handler comes back, an event comes as soon as the job waits for it,
    and one that was not given has timed out."""

    def __init__(self, store: Store, events: Mapping[str, str]) -> None:
        super().__init__(store, {Event.RETRY, Event.SNOOZE, Event.SLEEP})
        self._payloads = events

    async def step(self, job_id: str, name: str, kind: StepKind = StepKind.STEP) -> str | None:
        found = await self._store.step(job_id, name, kind)
        if found is None:
            return None
        if kind is StepKind.SLEEP:
            return waits.encoded(Sleep(0))
        if kind is StepKind.WAIT and (wait := EventWait.of(found)).name not in self._payloads:
            return msgspec.structs.replace(wait, until=0).stored
        return found

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        verdicts = await super().apply(transitions, now)
        for each in transitions:
            if isinstance(each.awaits, EventWait):
                await self._send(each.job_id, each.awaits, now)
        return verdicts

    def _hurried(self, transition: Transition, now: Instant) -> Transition:
        wait = transition.awaits
        if isinstance(wait, EventWait) and wait.name not in self._payloads:
            return msgspec.structs.replace(transition, awaits=msgspec.structs.replace(wait, until=now))
        return super()._hurried(transition, now)

    async def send_to(self, job: Job, now: Instant) -> None:
        """Send what a job waits for whose worker was killed before it was sent."""
        if (wait := event_wait(job.row)) is not None:
            await self._send(job.job_id, wait, now)

    async def _send(self, job_id: str, wait: EventWait, now: Instant) -> None:
        if (payload := self._payloads.get(wait.name)) is not None:
            to = {"job_id": job_id} if wait.key is None else {"key": wait.key}
            await self._store.send([NewEvent(f"crash-test {wait.wait}", wait.name, payload, **to)], now)


def _refuse_unsent(events: Mapping[str, str]) -> None:
    """Refuse a wait that would never end."""
    inner = Waits.wait_for_event

    async def wait_for_event(
        self: Waits, run: Run, name: str, key: str | None, timeout_micros: int | None, schema: str | None
    ) -> Waited:
        if name not in events and timeout_micros is None:
            raise Discard(f"the handler waits for the event {name!r}: pass crash_test(events={{{name!r}: payload}})")
        return await inner(self, run, name, key, timeout_micros, schema)

    Waits.wait_for_event = wait_for_event  # type: ignore[method-assign]


def _refuse_waits() -> None:
    """Refuse a wait for children: they do not run here, so their parent would wait forever."""
    inner = Children.ended

    async def ended(children: Children, run: Run, awaits: Awaits) -> Ended:
        if (found := await inner(children, run, awaits)) is None:
            raise Discard(
                "crash_test runs no children, so it cannot test a handler that waits for them: test its parts"
            )
        return found

    Children.ended = ended  # type: ignore[method-assign, assignment]


def _anew(app: Backstay | sync.Backstay, folder: Path) -> None:
    """Reset the app as after its import: not open, and on the trial's own file. The object is kept, because handlers
    that submit refer to it."""
    if isinstance(app, sync.Backstay):
        inner = app.inner
        _anew(inner, folder)
        sync.Backstay.__init__(app, inner.url)
        app.inner = inner
        return
    handlers, lifespans, layers = app.handlers, app.lifespans, app.layers
    Backstay.__init__(app, throwaway_url(folder), artifacts=(folder / "files").as_uri(), poll_interval=POLL_SECONDS)
    app.handlers, app.lifespans, app.layers = handlers, lifespans, layers


def _run(app: Backstay | sync.Backstay, program: Callable[[Backstay], Any]) -> Any:
    if isinstance(app, sync.Backstay):
        with app:
            return app._call(program(app.inner))
    return asyncio.run(program(app))


async def _work(app: Backstay, orders: Orders, lease: float, points: _Points) -> ChildReport:
    handler = orders.handler
    async with app:
        await app.submit(handler, handler.decode(orders.payload), **orders.options)
        patient = Patient(app.store, orders.events)
        await patient.send_to(await app.get(orders.job_id), app.clock.now())
        hurried = behind(app, patient)
        async with hurried.worker(
            concurrency=1, job_types=[handler.name], queues=[QUEUE], lease=lease, grace=orders.grace_seconds
        ):
            with suppress(JobFailed, JobCancelled):
                await app.result(orders.job_id)
        job = await app.get(orders.job_id)
        return ChildReport(
            job.status.value,
            job.last_error,
            job.attempt,
            await _submitted(app, orders.job_id),
            [entry.value async for entry in app.stream_output(orders.job_id)],
            points.passed,
        )


async def _submitted(app: Backstay, job_id: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    after: str | None = None
    while True:
        page = await app.find(after=after, limit=FIND_LIMIT_MAX)
        counts.update(job.job_type for job in page if job.job_id != job_id)
        if page.next is None:
            return dict(counts)
        after = page.next
