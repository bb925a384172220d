"""All observers of an app as one: each is called, and none can break a job."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import msgspec

from holdfast import limits, settings
from holdfast.errors import ConfigurationError
from holdfast.newjob import NewJob
from holdfast.observing.observer import Attempted, Observer, ending_of
from holdfast.transition import Transition

log = logging.getLogger("holdfast.observing")


class Observers:
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._all = tuple(observers)
        self._complained: set[tuple[Observer, str]] = set()

    @contextmanager
    def submitting(self, jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
        """The jobs as they are to be stored."""
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

    def ended(self, job: Attempted, decided: Transition, schema: str | None = None) -> None:
        ending = ending_of(decided, schema)
        for observer in self._all:
            try:
                observer.ended(job, ending)
            except Exception as error:
                self.complain(observer, "ended", error)

    def complain(self, observer: Observer, method: str, error: Exception) -> None:
        """Once: what is broken for one job is broken for all, and there are thousands."""
        if (observer, method) not in self._complained:
            self._complained.add((observer, method))
            name = type(observer).__name__
            log.error("%s.%s failed, and goes on failing in silence; jobs do not mind", name, method, exc_info=error)


class _Guarded(AbstractContextManager[Any]):
    """A context of an observer whose errors are its own; those of what runs inside go through."""

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
    """Those of the code, and those that the settings name. None: nobody observes, and nobody is asked."""
    found = list(given or ())
    for each in found:
        if not isinstance(each, Observer):
            raise ConfigurationError(f"observers={each!r:.80}: give a list of observers, as [Tracing(), Sentry()]")
    if settings.otel():
        from holdfast.observing.tracing import Tracing

        found += [] if any(isinstance(each, Tracing) for each in found) else [Tracing()]
    if settings.sentry_dsn():
        from holdfast.observing.sentry import Sentry

        found += [] if any(isinstance(each, Sentry) for each in found) else [Sentry()]
    return Observers(found) if found else None
