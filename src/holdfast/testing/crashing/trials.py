"""Which disturbances there are, how each is done, and whether it made a difference."""

from __future__ import annotations

import functools
import inspect
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast import ids, submission, sync
from holdfast.app import BoundHandler
from holdfast.clock import MICROS, SystemClock, micros
from holdfast.errors import ConfigurationError, InvalidOption
from holdfast.limits import LEASE_SECONDS
from holdfast.submission import SubmitOptions
from holdfast.testing.crashing.child import QUEUE, REACHED, Moment, Orders, Told, die, make_queue, pause, work
from holdfast.testing.crashing.children import Child, Link, forked
from holdfast.testing.crashing.report import CrashReport, Trial

KILLS_MAX = 50  # progress calls at which a worker is killed; of more, so many spread evenly, the first and the last too
STALLS_MAX = 3  # progress calls at which one is stopped: each costs a lease
STALL_LEASE_SECONDS = 0.5  # long enough to be kept on a busy machine, and short enough to wait for
CHILD_SECONDS = 30.0  # how long one worker may take for the job; beyond this something hangs
ATTEMPTS_MIN = 5  # enough for every disturbance: a handler with one attempt runs again too, when someone retries it
_FIXED = frozenset({"job_id", "queue", "run_at", "delay", "depends_on", "parent", "reuse", "rate_key", "connection"})

Outside = Callable[..., Any]  # takes nothing, or the path of the trial's queue


def crash_test(
    handler: BoundHandler | sync.BoundHandler,
    payload: Any = None,
    *,
    effect: Outside,
    reset: Outside | None = None,
    options: SubmitOptions | None = None,
    lease: float | timedelta = STALL_LEASE_SECONDS,
    timeout: float | timedelta = CHILD_SECONDS,
) -> CrashReport:
    """Assert that a handler leaves the same outside effect whatever happens to its worker.

    `effect()` reads what the handler left outside (a file, a table, a service), in this process; what it returns is
    compared with ==. `reset()` puts the outside back as it was, before every run. Both may take one argument: the path
    of the run's queue, a new SQLite file each time. `options` are those of submit. `timeout` bounds each worker.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    if inspect.iscoroutinefunction(effect) or inspect.iscoroutinefunction(reset):
        raise ConfigurationError("effect and reset are called without await: write a plain `def`")
    lease_seconds, child_seconds = _seconds("lease", lease), _seconds("timeout", timeout)
    orders = _orders(handler, payload, options or {}, child_seconds)
    with tempfile.TemporaryDirectory(prefix="holdfast-crash-", ignore_cleanup_errors=True) as folder:
        return _Bench(Path(folder), orders, effect, reset, lease_seconds, child_seconds).run()


def _seconds(name: str, span: float | timedelta) -> float:
    try:
        found = micros(span)
    except (TypeError, ValueError, OverflowError):
        found = 0
    if found <= 0:
        raise InvalidOption(f"{name}={span!r:.80}: use seconds or a timedelta, above 0")
    return found / MICROS


def _orders(handler: BoundHandler | sync.BoundHandler, payload: Any, options: SubmitOptions, timeout: float) -> Orders:
    app = getattr(handler, "app", None)
    inner = handler.handler if isinstance(handler, sync.BoundHandler) else handler
    if app is None or not isinstance(inner, BoundHandler):
        raise ConfigurationError(f"crash_test takes a handler that was registered with @app.job, not {handler!r:.100}")
    if fixed := _FIXED & options.keys():
        raise InvalidOption(
            f"crash_test takes no {', '.join(sorted(fixed))}: the job runs alone, at once, on its own file"
        )
    now = SystemClock().now()
    job_id = ids.new_id(now)  # the same in all trials: ctx.idempotency_key may be part of the effect
    job = submission.build(inner, payload, job_id, now, options)  # what submit would refuse is refused here, at once
    attempts = max(ATTEMPTS_MIN, inner.max_attempts, job.max_attempts)
    filled: SubmitOptions = {**options, "job_id": job_id, "queue": QUEUE, "max_attempts": attempts}
    return Orders(app, inner, job.payload, filled, job_id, timeout)


class _Bench:
    """One handler, one payload; a folder with a queue for each trial."""

    def __init__(
        self, folder: Path, orders: Orders, effect: Outside, reset: Outside | None, lease: float, timeout: float
    ) -> None:
        self._folder = folder
        self._orders = orders
        self._effect = effect
        self._reset = reset
        self._lease = lease
        self._timeout = timeout
        self._trials = 0

    def run(self) -> CrashReport:
        __tracebackhide__ = True
        self._make_template()
        expected, passed = self._undisturbed()
        self._check_repeatable(expected)
        calls = passed.get("progress", 0)
        trials = [self._killed(moment, calls) for moment in kills(passed)]
        trials += [self._stalled(moment, calls) for moment in stalls(passed)]
        report = CrashReport(self._orders.handler.name, expected, calls, tuple(trials))
        if report.different:
            raise AssertionError(report.complaint())
        return report

    # Runs

    def _undisturbed(self) -> tuple[Trial, dict[str, int]]:
        folder = self._new_queue()
        told = self._finish(folder)
        if told.status == "failed":
            raise AssertionError(f"{self._orders.handler.name} fails even undisturbed: {told.error}")
        return self._judge(folder, "undisturbed", told), told.passed

    def _check_repeatable(self, expected: Trial) -> None:
        again, _ = self._undisturbed()
        if not again.same_as(expected):
            raise AssertionError(
                f"two undisturbed runs of {self._orders.handler.name}, one after the other, do not leave the same:\n"
                f"  first   {expected.effect!r:.1000}\n  second  {again.effect!r:.1000}\n"
                "Give reset=, which puts the outside back as it was before each run, and let effect() leave out what"
                " differs each time (times, random ids)."
            )

    def _killed(self, moment: Moment, calls: int) -> Trial:
        """The first worker dies at the moment; the second finishes."""
        folder = self._new_queue()
        with self._child(folder, LEASE_SECONDS if _deaths_show() else self._lease, moment, die) as first:
            line = first.hear()
            first.end()
        if line is not None:
            told, reached = _told(line), False
        elif first.death() == "SIGKILL":
            told, reached = self._finish(folder), True
        else:
            raise AssertionError(f"a worker died by itself ({first.death()}).{first.last_words()}")
        return self._judge(folder, _killed_at(moment, calls), told, reached)

    def _stalled(self, moment: Moment, calls: int) -> Trial:
        """The first worker is stopped at the moment; the second takes over and finishes; the first goes on."""
        folder = self._new_queue()
        with self._child(folder, self._lease, moment) as first:
            line = first.hear()
            if line == REACHED:
                first.stop(folder / "jobs.db")
                told = self._finish(folder)
                first.go_on()
                self._last_line(first)
            else:
                told = _told(line) if line is not None else self._last_line(first)
        return self._judge(folder, _stalled_at(moment, calls), told, line == REACHED)

    def _finish(self, folder: Path) -> Told:
        """A worker that nobody disturbs works until the job has ended."""
        with self._child(folder, LEASE_SECONDS, None) as child:
            return self._last_line(child)

    def _last_line(self, child: Child) -> Told:
        line = child.hear()
        if line is None:
            child.end()
            raise AssertionError(f"a worker died by itself ({child.death()}).{child.last_words()}")
        return _told(line)

    def _child(
        self, folder: Path, lease: float, moment: Moment | None, deed: Callable[[], None] | None = None
    ) -> AbstractContextManager[Child]:
        def program(link: Link) -> None:
            work(self._orders, folder, lease, moment, deed or functools.partial(pause, link), link)

        return forked(program, folder / "output.txt", self._timeout)

    # Around a run

    def _make_template(self) -> None:
        """An empty queue to copy: opening a file that has its schema is quicker than making it each time."""
        folder = self._folder / "template"
        folder.mkdir()

        def program(link: Link) -> None:
            make_queue(self._orders, folder)
            link.say(b"made")

        with forked(program, folder / "output.txt", self._timeout) as child:
            if child.hear() is None:
                raise AssertionError(f"the queue of the crash test could not be made.{child.last_words()}")

    def _new_queue(self) -> Path:
        self._trials += 1
        folder = self._folder / str(self._trials)
        folder.mkdir()
        shutil.copyfile(self._folder / "template/jobs.db", folder / "jobs.db")
        if self._reset is not None:
            _call(self._reset, folder / "jobs.db")
        return folder

    def _judge(self, folder: Path, disturbance: str, told: Told, reached: bool = True) -> Trial:
        effect = _call(self._effect, folder / "jobs.db")
        return Trial(disturbance, effect, told.status, told.error, told.attempts, told.submitted, reached)


def kills(passed: Mapping[str, int]) -> list[Moment]:
    """Where a worker is killed, after an undisturbed run that passed these points so often."""
    last = [Moment(point, passed[point]) for point in ("handler.after", "settle.before") if passed.get(point)]
    return [Moment("handler.before", 1), *_progress(passed, KILLS_MAX), *last]


def stalls(passed: Mapping[str, int]) -> list[Moment]:
    """Where a worker is stopped: while it reports progress or, if it never does, when its handler has returned."""
    if found := _progress(passed, STALLS_MAX):
        return found
    return [Moment("handler.after", passed["handler.after"])] if passed.get("handler.after") else []


def _progress(passed: Mapping[str, int], most: int) -> list[Moment]:
    calls = passed.get("progress", 0)
    if calls <= most:
        chosen: Sequence[int] = range(1, calls + 1)
    else:
        chosen = [1 + each * (calls - 1) // (most - 1) for each in range(most)]
    return [Moment("progress", nth) for nth in chosen]


def _killed_at(moment: Moment, calls: int) -> str:
    match moment.point:
        case "handler.before":
            return "killed before the handler began"
        case "progress":
            return f"killed at progress call {moment.nth} of {calls}"
        case "handler.after":
            return "killed after the handler returned"
        case _:
            return "delivered twice: killed after the handler returned, before that was recorded"


def _stalled_at(moment: Moment, calls: int) -> str:
    where = f"at progress call {moment.nth} of {calls}" if moment.point == "progress" else "after the handler returned"
    return f"stalled past its lease {where}, while another worker ran the job; then it went on"


def _deaths_show() -> bool:
    """Whether the death of a worker is noticed at once; elsewhere its lease has to run out."""
    return Path("/proc/self/stat").exists()


def _told(line: bytes) -> Told:
    return msgspec.json.decode(line, type=Told)


def _call(function: Outside, database: Path) -> Any:
    """With the path, if it takes one. What is built in may not say what it takes: `kept.clear` takes nothing."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return function()
    takes = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.default is each.empty
    ]
    return function(database) if takes else function()
