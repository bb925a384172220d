"""The crash test: does a handler have the same effects, whatever happens to its worker?

A handler runs at least once. `crash_test` runs it undisturbed, in a child process on a queue of its own, and records
what it left outside (`effect()`). Then it runs it again and again, each time with one disturbance, and compares.

    killed     the first child dies at a named point; a second one finishes the job
    stalled    the first child is stopped past its lease; a second one finishes the job; the first then continues

Children are forked, not started anew: a handler that a test defines inside itself exists only in this process. The
parent opens no store of the queue, so that no connection is carried over a fork. Every child is the head of a process
group, which is killed as a whole: the processes of isolation="process", and what a handler starts, are killed with it.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from backstay import codec, ids, posix, sync
from backstay import options as backstay_options
from backstay.clock import MICROS, SystemClock, micros
from backstay.errors import ConfigurationError, InvalidOption
from backstay.limits import LEASE_SECONDS
from backstay.options import SubmitOptions
from backstay.registration import BoundHandler
from backstay.testing.crash_child import (
    QUEUE,
    REACHED,
    Child,
    ChildReport,
    Link,
    Moment,
    Orders,
    die,
    forked,
    make_queue,
    pause,
    work,
)

SHOWN_MAX = 1_000  # characters of an effect in the message of a failure

ADVICE = """\
A worker can die, or stall while another takes over, at any moment: a handler runs at least once. Make it
idempotent:
  * write under a key derived from the payload, so that a second run overwrites what the first one wrote;
  * pass ctx.idempotency_key to a service that ignores duplicates;
  * record a step with ctx.step("name", fn): a later attempt gets the recorded answer instead of running it again;
  * put SQL on the queue's own file into ctx.transaction(): it commits with the completion, or not at all."""

OF_STALLS = """\
If only a stall shows it, two runs overlapped: checking and writing must be one step, not two."""

OF_SUBMITS = """\
Jobs that a handler submits are an effect as well: give them a dedup_key or job_id derived from the payload."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the job with one disturbance, and the effects it left."""

    disturbance: str
    effect: Any
    status: str
    error: str | None
    attempts: int
    submitted: Mapping[str, int]  # jobs that the handler submitted, by type
    output: Sequence[Any] | None = None  # what it streamed; None: it differs from run to run, undisturbed too
    reached: bool = True  # False: the handler ended before the disturbance

    def same_as(self, other: Trial) -> bool:
        if None not in (self.output, other.output) and self.output != other.output:
            return False
        mine = (self.effect, self.status, self.submitted)
        return bool(mine == (other.effect, other.status, other.submitted))


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What was tried. `expected` is the undisturbed run."""

    job_type: str
    expected: Trial
    progress_calls: int
    trials: tuple[Trial, ...]

    @property
    def different(self) -> list[Trial]:
        """The trials whose effects differ from those of the undisturbed run."""
        return [each for each in self.trials if not each.same_as(self.expected)]

    def __str__(self) -> str:
        lines = [f"{self.job_type}: {len(self.trials)} disturbances, {self.progress_calls} progress calls"]
        for each in self.trials:
            same = "same" if each.same_as(self.expected) else "DIFFERENT"
            missed = "" if each.reached else ", not reached"
            lines.append(f"  {same:9}  {each.disturbance} ({each.attempts} attempts{missed})")
        return "\n".join(lines)

    def complaint(self) -> str:
        different = self.different
        parts = [f"{self.job_type} is not idempotent: its effect depends on what happens to its worker."]
        parts += [_difference(each, self.expected) for each in different]
        unharmed = [each.disturbance for each in self.trials if each not in different]
        if unharmed:
            parts.append("These disturbances made no difference:\n  " + "\n  ".join(unharmed))
        parts.append(ADVICE)
        if all(each.disturbance.startswith("stalled") for each in different):
            parts.append(OF_STALLS)
        if any(each.submitted != self.expected.submitted for each in different):
            parts.append(OF_SUBMITS)
        return "\n\n".join(parts)


def _difference(found: Trial, expected: Trial) -> str:
    lines = [found.disturbance]
    if found.effect != expected.effect:
        lines += [f"  expected effect  {_shown(expected.effect)}", f"  found            {_shown(found.effect)}"]
    if found.status != expected.status:
        lines.append(f"  the job is {found.status}, not {expected.status}: {found.error}")
    if found.output != expected.output:
        lines += [f"  expected output  {_shown(expected.output)}", f"  found            {_shown(found.output)}"]
    if found.submitted != expected.submitted:
        lines.append(f"  it submitted {_jobs(found.submitted)}, not {_jobs(expected.submitted)}")
    return "\n".join(lines)


def _shown(effect: Any) -> str:
    text = repr(effect)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text):,} characters)"


def _jobs(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} × {name}" for name, number in sorted(counts.items())) or "nothing"


# progress calls, and as many stream calls, at which a worker is killed; if there are more, this many, spread evenly,
# including the first and the last
KILLS_MAX = 50
LAYERS_MAX = 10  # of middleware, and entries of a handler that waits: around each of them a worker is killed
STALLS_MAX = 3  # progress calls at which one is stopped: each costs a lease
STALL_LEASE_SECONDS = 0.5  # long enough not to expire on a busy machine, and short enough to wait for
CHILD_SECONDS = 30.0  # how long one worker may take for the job; beyond this something hangs
ATTEMPTS_MIN = 5  # enough for every disturbance: even a handler with one attempt runs again when it is retried manually
_FIXED = frozenset({"job_id", "queue", "run_at", "delay", "depends_on", "parent", "reuse", "rate_key", "connection"})

Outside = Callable[..., Any]  # takes nothing, or the path of the trial's queue


def crash_test(
    handler: BoundHandler | sync.BoundHandler,
    payload: Any = None,
    *,
    effect: Outside,
    reset: Outside | None = None,
    options: SubmitOptions | None = None,
    events: Mapping[str, Any] | None = None,
    lease: float | timedelta = STALL_LEASE_SECONDS,
    timeout: float | timedelta = CHILD_SECONDS,
) -> CrashReport:
    """Assert that a handler leaves the same outside effect whatever happens to its worker.

    `effect()` reads what the handler left outside (a file, a table, a service), in this process; what it returns is
    compared with ==. `reset()` puts the outside back as it was, before every run. Both may take one argument: the path
    of the run's queue, a new SQLite file each time. `options` are those of submit. `timeout` bounds each worker.

    Sleeps are over at once. `events` has the payloads, by name, of events that the handler waits for: each is sent as
    soon as it waits. A wait with a timeout for any other event times out.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    if not posix.HAS_PROCESSES:
        raise ConfigurationError(f"crash_test forks its workers, which {posix.ONLY_HERE}")
    if inspect.iscoroutinefunction(effect) or inspect.iscoroutinefunction(reset):
        raise ConfigurationError("effect and reset are called without await: write a plain `def`")
    lease_seconds, child_seconds = _seconds("lease", lease), _seconds("timeout", timeout)
    sent = {name: codec.to_json(value, f"payload of event {name!r}") for name, value in (events or {}).items()}
    orders = replace(_orders(handler, payload, options or {}, child_seconds), events=sent)
    with tempfile.TemporaryDirectory(prefix="backstay-crash-", ignore_cleanup_errors=True) as folder:
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
    job = backstay_options.build(inner, payload, job_id, now, options)  # fails here, at once, if submit would refuse it
    attempts = max(ATTEMPTS_MIN, inner.max_attempts, job.max_attempts)
    filled: SubmitOptions = {**options, "job_id": job_id, "queue": QUEUE, "max_attempts": attempts}
    return Orders(app, inner, job.payload, filled, job_id, timeout)


class _Bench:
    """One handler and one payload, and a folder with a queue for each trial."""

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
        self._compares_output = True

    def run(self) -> CrashReport:
        __tracebackhide__ = True
        self._make_template()
        expected, passed = self._undisturbed()
        expected = self._check_repeatable(expected)
        calls = passed
        trials = [self._killed(moment, calls) for moment in kills(passed)]
        trials += [self._stalled(moment, calls) for moment in stalls(passed)]
        report = CrashReport(self._orders.handler.name, expected, calls.get("progress", 0), tuple(trials))
        if report.different:
            raise AssertionError(report.complaint())
        return report

    # Runs

    def _undisturbed(self) -> tuple[Trial, dict[str, int]]:
        folder = self._new_queue()
        report = self._finish(folder)
        if report.status == "failed":
            raise AssertionError(f"{self._orders.handler.name} fails even when undisturbed: {report.error}")
        return self._judge(folder, "undisturbed", report), report.passed

    def _check_repeatable(self, expected: Trial) -> Trial:
        """Return what is expected of all runs: without the output, if two undisturbed runs do not stream the same."""
        again, _ = self._undisturbed()
        if again.output != expected.output:
            self._compares_output = False
            again, expected = replace(again, output=None), replace(expected, output=None)
        if not again.same_as(expected):
            raise AssertionError(
                f"two undisturbed runs of {self._orders.handler.name}, one after the other, do not have the same"
                f" effect:\n  first   {expected.effect!r:.1000}\n  second  {again.effect!r:.1000}\n"
                "Give reset=, which restores the initial state before each run, and let effect() leave out what"
                " differs each time (times, random ids)."
            )
        return expected

    def _killed(self, moment: Moment, calls: Mapping[str, int]) -> Trial:
        """Kill the first worker at the moment; the second one finishes."""
        folder = self._new_queue()
        with self._child(folder, LEASE_SECONDS if _deaths_show() else self._lease, moment, die) as first:
            line = first.hear()
            first.end()
        if line is not None:
            report, reached = _parse_report(line), False
        elif first.death() == "SIGKILL":
            report, reached = self._finish(folder), True
        else:
            raise AssertionError(f"a worker died unexpectedly ({first.death()}).{first.last_words()}")
        return self._judge(folder, _killed_at(moment, calls), report, reached)

    def _stalled(self, moment: Moment, calls: Mapping[str, int]) -> Trial:
        """Stop the first worker at the moment; the second one finishes; then resume the first."""
        folder = self._new_queue()
        with self._child(folder, self._lease, moment) as first:
            line = first.hear()
            if line == REACHED:
                first.stop(folder / "jobs.db")
                report = self._finish(folder)
                first.go_on()
                self._last_line(first)
            else:
                report = _parse_report(line) if line is not None else self._last_line(first)
        return self._judge(folder, _stalled_at(moment, calls), report, line == REACHED)

    def _finish(self, folder: Path) -> ChildReport:
        """Run an undisturbed worker until the job has ended."""
        with self._child(folder, LEASE_SECONDS, None) as child:
            return self._last_line(child)

    def _last_line(self, child: Child) -> ChildReport:
        line = child.hear()
        if line is None:
            child.end()
            raise AssertionError(f"a worker died unexpectedly ({child.death()}).{child.last_words()}")
        return _parse_report(line)

    def _child(
        self, folder: Path, lease: float, moment: Moment | None, deed: Callable[[], None] | None = None
    ) -> AbstractContextManager[Child]:
        def program(link: Link) -> None:
            work(self._orders, folder, lease, moment, deed or functools.partial(pause, link), link)

        return forked(program, folder / "output.txt", self._timeout)

    # Around a run

    def _make_template(self) -> None:
        """Create an empty queue to copy, which is faster than creating the schema each time."""
        folder = self._folder / "template"
        folder.mkdir()

        def program(link: Link) -> None:
            make_queue(self._orders, folder)
            link.say(b"made")

        with forked(program, folder / "output.txt", self._timeout) as child:
            if child.hear() is None:
                raise AssertionError(f"the queue of the crash test could not be created.{child.last_words()}")

    def _new_queue(self) -> Path:
        self._trials += 1
        folder = self._folder / str(self._trials)
        folder.mkdir()
        shutil.copyfile(self._folder / "template/jobs.db", folder / "jobs.db")
        if self._reset is not None:
            _call(self._reset, folder / "jobs.db")
        return folder

    def _judge(self, folder: Path, disturbance: str, report: ChildReport, reached: bool = True) -> Trial:
        effect = _call(self._effect, folder / "jobs.db")
        output = report.output if self._compares_output else None
        return Trial(
            disturbance, effect, report.status, report.error, report.attempts, report.submitted, output, reached
        )


def kills(passed: Mapping[str, int]) -> list[Moment]:
    """Return where to kill a worker, given how often the undisturbed run reached each point."""

    def last(*points: str) -> list[Moment]:
        return [Moment(point, passed[point]) for point in points if passed.get(point)]

    def each(point: str) -> list[Moment]:
        return [Moment(point, nth) for nth in range(1, min(passed.get(point, 0), LAYERS_MAX) + 1)]

    return [
        *last("lifespan.before", "lifespan.started"),
        *(each("handler.before") or [Moment("handler.before", 1)]),
        *each("middleware.before"),
        *_calls(passed, "progress", KILLS_MAX),
        *_calls(passed, "stream", KILLS_MAX),
        *each("middleware.after"),
        *last("handler.after"),
        *each("settle.before"),
        *last("lifespan.ending"),
    ]


def stalls(passed: Mapping[str, int]) -> list[Moment]:
    """Return where to stop a worker: while it reports progress or streams or, if it never does, when its handler has
    returned."""
    if found := [*_calls(passed, "progress", STALLS_MAX), *_calls(passed, "stream", STALLS_MAX)]:
        return found
    return [Moment("handler.after", passed["handler.after"])] if passed.get("handler.after") else []


def _calls(passed: Mapping[str, int], point: str, most: int) -> list[Moment]:
    calls = passed.get(point, 0)
    if calls <= most:
        chosen: Sequence[int] = range(1, calls + 1)
    else:
        chosen = [1 + each * (calls - 1) // (most - 1) for each in range(most)]
    return [Moment(point, nth) for nth in chosen]


_OF_LIFESPANS = {
    "lifespan.before": "before the lifespan began",
    "lifespan.started": "when the lifespan had started, before any claim",
    "lifespan.ending": "when the job had ended, before the end of the lifespan",
}


def _killed_at(moment: Moment, calls: Mapping[str, int]) -> str:
    match moment.point:
        case "handler.before":
            return "killed before the handler began"
        case "progress" | "stream":
            return f"killed at {moment.point} call {moment.nth} of {calls[moment.point]}"
        case "handler.after":
            return "killed after the handler returned"
        case "lifespan.before" | "lifespan.started" | "lifespan.ending":
            return f"killed {_OF_LIFESPANS[moment.point]}"
        case "middleware.before":
            return f"killed before middleware {moment.nth} began"
        case "middleware.after":
            return f"killed after middleware had returned ({moment.nth} of it)"
        case _:
            return "delivered twice: killed after the handler returned, before that was recorded"


def _stalled_at(moment: Moment, calls: Mapping[str, int]) -> str:
    is_call = moment.point in ("progress", "stream")
    where = f"at {moment.point} call {moment.nth} of {calls[moment.point]}" if is_call else "after the handler returned"
    return f"stalled past its lease {where}, while another worker ran the job; then it continued"


def _deaths_show() -> bool:
    """Return whether the death of a worker is noticed at once; otherwise its lease has to expire."""
    return Path("/proc/self/stat").exists()


def _parse_report(line: bytes) -> ChildReport:
    return msgspec.json.decode(line, type=ChildReport)


def _call(function: Outside, database: Path) -> Any:
    """Call with the path if the function takes an argument. Built-in methods such as `list.clear` may have no
    signature, and take none."""
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
