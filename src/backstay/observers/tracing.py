"""OpenTelemetry traces: a span for each submit and one for each attempt, in one trace across processes.

"run report" is a child of the "submit report" that stored the job, however much later and wherever it runs; jobs that a
handler submits are below its run. An attempt of a batch handler is one span for all its jobs, linked to their submits.

The application provides its SDK and its exporter; without them no span is exported, and an incoming trace is still
passed on. Attempts that no process here could observe, of remote workers and of those that died, get their span when
their outcome is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from backstay import settings
from backstay.core.checks import how_to_install
from backstay.core.records import NewJob
from backstay.core.states import Counted
from backstay.errors import ConfigurationError
from backstay.observers.base import Attempted, Ending, Observer
from backstay.observers.redaction import Redaction

try:
    from opentelemetry import context, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ConfigurationError(f"tracing needs OpenTelemetry ({error.name}): {how_to_install('otel')}") from error

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider


_LINKS_MAX = 128  # as many as the SDK keeps
_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing(Observer):
    """Creates spans. `tracer_provider`: your own; by default the one that the program has set."""

    def __init__(self, tracer_provider: TracerProvider | None = None, *, redact: Sequence[str] = ()) -> None:
        self._tracer = trace.get_tracer("backstay", settings.release(), tracer_provider)
        self._redaction = Redaction(redact)
        # by job and attempt; the flag tells whether it is a batch
        self._open: dict[tuple[str, int], tuple[Span, bool]] = {}

    @contextmanager
    def submitting(self, jobs: Sequence[NewJob]) -> Iterator[str | None]:
        with self._tracer.start_as_current_span(
            f"submit {_types(jobs)}", kind=SpanKind.PRODUCER, attributes=_submitted(jobs)
        ) as span:
            yield _traceparent(span)

    @contextmanager
    def running(self, jobs: Sequence[Attempted]) -> Iterator[str | None]:
        # Never a child of the current span: that is the worker's own, or left over from another job.
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
                    _end(span, key, len(jobs) > 1, "lost")  # will not be settled here: another worker has the claim
            span.end()

    @contextmanager
    def continuing(self, traceparent: str) -> Iterator[None]:
        if trace.get_current_span().get_span_context().is_valid:  # middleware that traces requests has done it already
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
        redacted = self._redaction.redact(job.payload, ending.sensitive)
        message = redacted.scrubbed(ending.error.message)
        span.add_event(
            "exception",
            {
                "exception.type": ending.error.type,
                "exception.message": message,
                "exception.stacktrace": redacted.scrubbed(ending.error.traceback),
                "backstay.job_id": job.job_id,
            },
        )
        span.set_status(Status(StatusCode.ERROR, f"{ending.error.type}: {message}"))


def _end(span: Span, key: tuple[str, int], in_batch: bool, outcome: str) -> None:
    if in_batch:
        span.add_event(
            "job ended", {"backstay.job_id": key[0], "backstay.attempt": key[1], "backstay.outcome": outcome}
        )
    else:
        span.set_attribute("backstay.outcome", outcome)


def _submitted(jobs: Sequence[NewJob]) -> dict[str, Any]:
    queues = {job.queue for job in jobs}
    found: dict[str, Any] = {"messaging.system": "backstay", "messaging.operation.type": "send"}
    if len(queues) == 1:
        found["backstay.queue"] = found["messaging.destination.name"] = jobs[0].queue
    if len(jobs) > 1:
        return found | {"messaging.batch.message_count": len(jobs)}
    return found | {"backstay.job_id": jobs[0].job_id, "backstay.job_type": jobs[0].job_type}


def _attempted(jobs: Sequence[Attempted]) -> dict[str, Any]:
    job = jobs[0]
    found: dict[str, Any] = {
        "messaging.system": "backstay",
        "messaging.operation.type": "process",
        "backstay.job_type": job.job_type,
        "backstay.worker_id": job.worker_id or "",
    }
    if len(jobs) > 1:
        return found | {"messaging.batch.message_count": len(jobs)}
    return found | {
        "messaging.destination.name": job.queue,
        "backstay.queue": job.queue,
        "backstay.job_id": job.job_id,
        "backstay.attempt": job.attempt,
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
