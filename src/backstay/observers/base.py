"""The observer interface, all of whose methods are optional, and the group of an app's observers.

Every observer is called, and none can break a job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import msgspec

from backstay import limits, settings
from backstay.clock import MICROS
from backstay.core.records import ClaimedJob, ErrorEntry, JobRecord, NewJob, Transition
from backstay.core.states import Status, counted
from backstay.errors import ConfigurationError

Attempted = ClaimedJob | JobRecord  # the payload is JSON text as it is stored, including any secrets in it


class Ending(msgspec.Struct, frozen=True):
    """How an attempt ended."""

    outcome: str  # completed, retried, failed, cancelled, snoozed, given_back or waiting, as the metrics count them
    error: ErrorEntry | None  # set if it failed, with or without a retry
    ran_seconds: float
    sensitive: tuple[str, ...] = ()  # the payload's sensitive fields, if it failed; see core/sensitive.py

    @property
    def is_dead(self) -> bool:
        """Return whether this makes the job a dead letter."""
        return self.error is not None and self.outcome == Status.FAILED.value


def ending_of(decided: Transition, sensitive: tuple[str, ...]) -> Ending:
    outcome = counted(decided.event, decided.target) or decided.target
    return Ending(outcome.value, decided.error, decided.ran_micros / MICROS, sensitive)


class Observer:
    """Base class of observers: override what you need."""

    def submitting(self, jobs: Sequence[NewJob]) -> AbstractContextManager[str | None]:
        """Wraps the commit that stores the jobs. The value it yields is stored with each job as its `traceparent`."""
        return nullcontext()

    def running(self, jobs: Sequence[Attempted]) -> AbstractContextManager[str | None]:
        """Wraps an attempt, in the context of its handler; for a batch handler, its call for all of these jobs. The
        value it yields represents the attempt in another process that runs it."""
        return nullcontext()

    def continuing(self, traceparent: str) -> AbstractContextManager[object]:
        """Wraps work that belongs to something in another process: a handler that runs in its own process, a request
        that has a `traceparent`."""
        return nullcontext()

    def ended(self, job: Attempted, ending: Ending) -> None:
        """Called when the outcome is decided. Called within `running`, or alone: for a job whose worker died, for one
        that a remote worker ran, for one that never started."""


log = logging.getLogger("backstay.observers")


class Observers:
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._all = tuple(observers)
        self._complained: set[tuple[Observer, str]] = set()

    @contextmanager
    def submitting(self, jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
        """Call all observers; yield the jobs to store."""
        with ExitStack() as stack:
            for observer in self._all:
                traceparent = stack.enter_context(_Guarded(self, observer, "submitting", jobs))
                if traceparent is not None:
                    traceparent = str(traceparent)[: limits.NAME_LENGTH_MAX]
                    jobs = [msgspec.structs.replace(job, traceparent=traceparent) for job in jobs]
            yield jobs

    @contextmanager
    def running(self, jobs: Sequence[Attempted]) -> Iterator[str | None]:
        found: str | None = None
        with ExitStack() as stack:
            for observer in self._all:
                found = stack.enter_context(_Guarded(self, observer, "running", jobs)) or found
            yield found

    @contextmanager
    def continuing(self, traceparent: str | None) -> Iterator[None]:
        with ExitStack() as stack:
            for observer in self._all if traceparent is not None else ():
                stack.enter_context(_Guarded(self, observer, "continuing", traceparent))
            yield

    def ended(self, job: Attempted, decided: Transition, sensitive: tuple[str, ...] = ()) -> None:
        ending = ending_of(decided, sensitive)
        for observer in self._all:
            try:
                observer.ended(job, ending)
            except Exception as error:
                self.complain(observer, "ended", error)

    def complain(self, observer: Observer, method: str, error: Exception) -> None:
        """Log an error once: an observer that fails for one job fails for thousands."""
        if (observer, method) not in self._complained:
            self._complained.add((observer, method))
            name = type(observer).__name__
            log.error(
                "%s.%s failed; further failures are not logged, and jobs are not affected", name, method, exc_info=error
            )


class _Guarded(AbstractContextManager[Any]):
    """The context manager of an observer: its own errors are logged, those of the code inside are raised."""

    def __init__(self, observers: Observers, observer: Observer, method: str, argument: Any) -> None:
        self._observers, self._observer, self._method, self._argument = observers, observer, method, argument
        self._inner: AbstractContextManager[Any] | None = None

    def __enter__(self) -> Any:
        try:
            inner: AbstractContextManager[Any] = getattr(self._observer, self._method)(self._argument)
            given = inner.__enter__()
        except Exception as error:
            self._observers.complain(self._observer, self._method, error)
            return None
        self._inner = inner
        return given

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inner is None:
            return
        try:
            self._inner.__exit__(kind, raised, trace)
        except Exception as error:
            if error is not raised:
                self._observers.complain(self._observer, self._method, error)


def submitting(observers: Observers | None, jobs: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
    return nullcontext(jobs) if observers is None else observers.submitting(jobs)


def of_app(given: Sequence[Observer] | None) -> Observers | None:
    """Return the observers given in code and in settings; None if there are none, so that nothing is called."""
    found = list(given or ())
    for each in found:
        if not isinstance(each, Observer):
            raise ConfigurationError(f"observers={each!r:.80}: give a list of observers, as [Tracing(), Sentry()]")
    if settings.otel():
        from backstay.observers.tracing import Tracing

        found += [] if any(isinstance(each, Tracing) for each in found) else [Tracing()]
    if settings.sentry_dsn():
        from backstay.observers.sentry import Sentry

        found += [] if any(isinstance(each, Sentry) for each in found) else [Sentry()]
    return Observers(found) if found else None
