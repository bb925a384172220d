"""Traces by OpenTelemetry: a span for each submit and one for each attempt, in one trace across processes.

"run report" is a child of the "submit report" that stored the job, however much later and wherever it runs; jobs that a
handler submits are below its run. An attempt of a batch handler is one span for all its jobs, linked to their submits.
The application brings its SDK and its exporter; without them no span goes anywhere, and a trace that comes from
outside is still handed on. Attempts that nobody here could watch, of remote workers and of those that died, get their
span when their end is known.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.counted import Counted
from holdfast.errors import ConfigurationError
from holdfast.newjob import NewJob
from holdfast.observing.observer import Attempted, Ending, Observer
from holdfast.observing.redaction import Redaction

try:
    from opentelemetry import context, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ConfigurationError(f'tracing needs OpenTelemetry ({error.name}): pip install "holdfast[otel]"') from error

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

_LINKS_MAX = 128  # as many as the SDK keeps
_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing(Observer):
    """`tracer_provider`: one of your own; else the one that the program has set."""

    def __init__(self, tracer_provider: TracerProvider | None = None, *, redact: Sequence[str] = ()) -> None:
        self._tracer = trace.get_tracer("holdfast", importlib.metadata.version("holdfast"), tracer_provider)
        self._redaction = Redaction(redact)
        self._open: dict[tuple[str, int], tuple[Span, bool]] = {}  # by job and attempt, and whether it is a batch's

    @contextmanager
    def submitting(self, jobs: Sequence[NewJob]) -> Iterator[str | None]:
        with self._tracer.start_as_current_span(
            f"submit {_types(jobs)}", kind=SpanKind.PRODUCER, attributes=_submitted(jobs)
        ) as span:
            yield _traceparent(span)

    @contextmanager
    def running(self, jobs: Sequence[Attempted]) -> Iterator[str | None]:
        # Never below whatever is current here: that is the worker's own, or what another job has left.
        parent = _context_of(jobs[0].traceparent) if len(jobs) == 1 else Context()
        span = self._tracer.start_span(
            f"run {jobs[0].job_type}", parent, SpanKind.CONSUMER, _attempted(jobs), _links(jobs)
        )
        keys = [(job.job_id, job.attempt) for job in jobs]
        self._open.update(dict.fromkeys(keys, (span, len(jobs) > 1)))
        token = context.attach(trace.set_span_in_context(span, Context()))
        try:
            yield _traceparent(span)
        finally:
            context.detach(token)
            for key in keys:
                if self._open.pop(key, None) is not None:
                    _end(span, key, len(jobs) > 1, "lost")  # nobody will settle it: the claim is another's
            span.end()

    @contextmanager
    def continuing(self, traceparent: str) -> Iterator[None]:
        if trace.get_current_span().get_span_context().is_valid:  # someone who traces requests has done it already
            yield
            return
        token = context.attach(_context_of(traceparent))
        try:
            yield
        finally:
            context.detach(token)

    def ended(self, job: Attempted, ending: Ending) -> None:
        key = (job.job_id, job.attempt)
        span, in_batch = self._open.pop(key, (None, False))
        if span is not None:
            self._say(span, in_batch, job, ending)
        elif job.started_at is not None and ending.outcome != Counted.GIVEN_BACK:
            started = job.started_at * 1000  # nanoseconds
            parent = _context_of(job.traceparent)
            span = self._tracer.start_span(
                f"run {job.job_type}", parent, SpanKind.CONSUMER, _attempted([job]), start_time=started
            )
            self._say(span, False, job, ending)
            span.end(started + round(ending.ran_seconds * 1e9))

    def _say(self, span: Span, in_batch: bool, job: Attempted, ending: Ending) -> None:
        _end(span, (job.job_id, job.attempt), in_batch, ending.outcome)
        if ending.error is None or not span.is_recording():
            return
        told = self._redaction.told(job.payload, ending.schema)
        message = told.scrubbed(ending.error.message)
        span.add_event(
            "exception",
            {
                "exception.type": ending.error.type,
                "exception.message": message,
                "exception.stacktrace": told.scrubbed(ending.error.traceback),
                "holdfast.job_id": job.job_id,
            },
        )
        span.set_status(Status(StatusCode.ERROR, f"{ending.error.type}: {message}"))


def _end(span: Span, key: tuple[str, int], in_batch: bool, outcome: str) -> None:
    if in_batch:
        span.add_event(
            "job ended", {"holdfast.job_id": key[0], "holdfast.attempt": key[1], "holdfast.outcome": outcome}
        )
    else:
        span.set_attribute("holdfast.outcome", outcome)


def _submitted(jobs: Sequence[NewJob]) -> dict[str, Any]:
    queues = {job.queue for job in jobs}
    found: dict[str, Any] = {"messaging.system": "holdfast", "messaging.operation.type": "send"}
    if len(queues) == 1:
        found["holdfast.queue"] = found["messaging.destination.name"] = jobs[0].queue
    if len(jobs) > 1:
        return found | {"messaging.batch.message_count": len(jobs)}
    return found | {"holdfast.job_id": jobs[0].job_id, "holdfast.job_type": jobs[0].job_type}


def _attempted(jobs: Sequence[Attempted]) -> dict[str, Any]:
    job = jobs[0]
    found: dict[str, Any] = {
        "messaging.system": "holdfast",
        "messaging.operation.type": "process",
        "holdfast.job_type": job.job_type,
        "holdfast.worker_id": job.worker_id or "",
    }
    if len(jobs) > 1:
        return found | {"messaging.batch.message_count": len(jobs)}
    return found | {
        "messaging.destination.name": job.queue,
        "holdfast.queue": job.queue,
        "holdfast.job_id": job.job_id,
        "holdfast.attempt": job.attempt,
    }


def _types(jobs: Sequence[NewJob]) -> str:
    types = {job.job_type for job in jobs}
    return types.pop() if len(types) == 1 else f"{len(jobs)} jobs"


def _links(jobs: Sequence[Attempted]) -> list[Link]:
    if len(jobs) == 1:
        return []
    submits = list(dict.fromkeys(job.traceparent for job in jobs))[:_LINKS_MAX]
    found = (trace.get_current_span(_context_of(submit)).get_span_context() for submit in submits)
    return [Link(each) for each in found if each.is_valid]


def _context_of(traceparent: str | None) -> Context:
    return Context() if traceparent is None else _PROPAGATOR.extract({"traceparent": traceparent}, Context())


def _traceparent(span: Span) -> str | None:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent")
