"""Traces: one from the submit to the completion, whichever processes it leads through."""

from __future__ import annotations

import asyncio
import contextvars
import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from backstay import Backoff, Backstay, Context, Discard, JobCancelled, QueueFull
from backstay.observers import Tracing
from backstay.server import asgi
from backstay.testing import drain
from tests.observers.conftest import WorkerProcess
from tests.server.far import reached
from tests.support.eventually import eventually


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


@pytest.fixture
def app(make_app: Callable[..., Backstay], provider: TracerProvider) -> Backstay:
    return make_app(observers=[Tracing(provider)])


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def only(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [span] = named(spans, name)
    return span


def is_below(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.context is not None and parent.context is not None
    below = span.parent is not None and span.parent.span_id == parent.context.span_id
    return below and span.context.trace_id == parent.context.trace_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_run_is_below_its_submit_and_says_which_job_it_was_and_how_it_ended(
    app: Backstay, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    @app.job("report", queue="slow")
    async def report(payload: str) -> str:
        return payload

    async with app:
        with provider.get_tracer("a request").start_as_current_span("POST /reports"):
            handle = await report.submit("x")
        [job] = await drain(app)
    submit, run = only(spans, "submit report"), only(spans, "run report")
    assert is_below(submit, only(spans, "POST /reports")) and submit.kind is trace.SpanKind.PRODUCER
    assert is_below(run, submit) and run.kind is trace.SpanKind.CONSUMER
    assert attributes(run).pop("backstay.worker_id")
    assert attributes(run) == {
        "messaging.system": "backstay",
        "messaging.operation.type": "process",
        "messaging.destination.name": "slow",
        "backstay.job_id": handle.job_id,
        "backstay.job_type": "report",
        "backstay.queue": "slow",
        "backstay.attempt": 1,
        "backstay.worker_id": job.history[-1].by,
        "backstay.outcome": "completed",
    }


async def test_every_attempt_is_a_span_below_the_same_submit_and_a_failed_one_has_its_error_without_secrets(
    app: Backstay, spans: InMemorySpanExporter
) -> None:
    @app.job("report", max_attempts=2, backoff=Backoff(0))
    async def report(payload: dict[str, str], ctx: Context) -> None:
        if ctx.attempt == 2:
            raise Discard("not today")
        raise ValueError(f"cannot log in with {payload['password']}")

    async with app:
        await report.submit({"password": "bs_canary_1"})
        await drain(app)
    first, second = named(spans, "run report")
    submit = only(spans, "submit report")
    assert is_below(first, submit) and is_below(second, submit)
    assert [attributes(run)["backstay.outcome"] for run in (first, second)] == ["retried", "failed"]
    assert not first.status.is_ok and first.status.description == "ValueError: cannot log in with •••"
    assert first.events[0].name == "exception" and "raise ValueError" in str(first.events[0].attributes)
    assert "canary" not in f"{first.to_json()}{second.to_json()}{submit.to_json()}"


async def test_spans_lead_from_the_submit_to_the_completion_across_processes(
    app: Backstay, spans: InMemorySpanExporter, worker_process: WorkerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "spans.jsonl"
    async with app:
        with worker_process("tests.observers.traced_jobs:app", BACKSTAY_OTEL="1", TRACED_SPANS=str(file)):
            handle = await _submitted_once_announced(app, "parent")
            await app.result(handle.job_id, timeout=30)
            tree = await app.tree(handle.job_id)
            [child] = tree.children
            await app.result(child.job.job_id, timeout=30)
            [isolated] = (await app.tree(child.job.job_id)).children
            await app.result(isolated.job.job_id, timeout=30)
    found = {span["name"]: span for span in map(json.loads, file.read_text().splitlines())}
    submit = only(spans, "submit parent")
    assert submit.context is not None
    assert {span["context"]["trace_id"] for span in found.values()} == {f"0x{submit.context.trace_id:032x}"}
    assert found["run parent"]["parent_id"] == f"0x{submit.context.span_id:016x}"
    way = ["run parent", "inside parent", "submit child", "run child", "submit isolated", "run isolated"]
    for above, below in zip(way, [*way[1:], "inside isolated"], strict=True):
        assert found[below]["parent_id"] == found[above]["context"]["span_id"], f"{below} is not below {above}"
    assert [found[f"run {name}"]["attributes"]["backstay.outcome"] for name in ("parent", "child", "isolated")] == [
        "completed"
    ] * 3


async def _submitted_once_announced(app: Backstay, job_type: str) -> Any:
    async def announced() -> bool:
        return any(each.job_type == job_type for each in await app.store.job_types())

    await eventually(announced, 30)
    return await app.submit(job_type, "x")


async def test_many_jobs_are_submitted_in_one_span_and_each_runs_below_it(
    app: Backstay, spans: InMemorySpanExporter
) -> None:
    @app.job("report")
    async def report(payload: int) -> None: ...

    async with app:
        await app.submit_many([("report", 1), ("report", 2)])
        await drain(app)
    submit = only(spans, "submit report")
    assert attributes(submit)["messaging.batch.message_count"] == 2
    assert [is_below(run, submit) for run in named(spans, "run report")] == [True, True]


async def test_a_call_of_a_batch_handler_is_one_span_linked_to_every_submit(
    app: Backstay, spans: InMemorySpanExporter
) -> None:
    @app.batch_job("embed", max_size=10)
    async def embed(payloads: Sequence[int]) -> list[Any]:
        return [ValueError("odd") if each % 2 else each for each in payloads]

    async with app:
        handles = [await embed.submit(each, max_attempts=1) for each in range(3)]
        await drain(app, batches=True)
    run = only(spans, "run embed")
    submits = {span.context.span_id for span in named(spans, "submit embed") if span.context is not None}
    assert len(submits) == 3 and {link.context.span_id for link in run.links} == submits and run.parent is None
    told = [dict(event.attributes or {}) for event in run.events if event.name == "job ended"]
    outcomes = {each["backstay.job_id"]: each["backstay.outcome"] for each in told}
    assert [outcomes[handle.job_id] for handle in handles] == ["completed", "failed", "completed"]


async def test_a_run_whose_claim_was_taken_over_ends_as_lost(app: Backstay, spans: InMemorySpanExporter) -> None:
    @app.job("report")
    async def report(payload: int, ctx: Context) -> None:
        await app.cancel(ctx.job_id)
        await asyncio.Event().wait()

    async with app:
        handle = await report.submit(1)
        async with app.worker():
            with pytest.raises(JobCancelled):
                await handle.result(timeout=10)
    assert attributes(only(spans, "run report"))["backstay.outcome"] == "lost"


async def test_a_job_of_a_schedule_or_of_someone_who_does_not_trace_begins_a_trace_of_its_own(
    app: Backstay, make_app: Callable[..., Backstay], provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    @app.job("report")
    async def report(payload: int) -> None: ...

    async with app, make_app() as other:
        await other.submit("report", 2)
        await other.submit("report", 3)
        with provider.get_tracer("around").start_as_current_span("around the worker"):
            await drain(app)
    runs = named(spans, "run report")
    assert [run.parent for run in runs] == [None, None]
    assert len({run.context.trace_id for run in runs if run.context is not None}) == 2


async def test_what_is_not_sampled_at_the_submit_is_not_sampled_at_the_run(
    make_app: Callable[..., Backstay], provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    submitting = make_app(observers=[Tracing(TracerProvider(ALWAYS_OFF, shutdown_on_exit=False))])
    running = make_app(observers=[Tracing(provider)])

    @running.job("report")
    async def report(payload: int) -> None: ...

    async with running, submitting:
        handle = await submitting.submit("report", 1)
        await drain(running)
        assert (await running.get(handle.job_id)).status == "completed"
    assert spans.get_finished_spans() == ()


async def test_a_submit_that_is_refused_is_a_span_with_the_error(app: Backstay, spans: InMemorySpanExporter) -> None:
    @app.job("report")
    async def report(payload: int) -> None: ...

    async with app:
        await report.submit(1)
        await app.limit_queue("default", 1)
        with pytest.raises(QueueFull):
            await report.submit(2)
    first, second = named(spans, "submit report")
    assert first.status.is_ok and not second.status.is_ok


async def test_a_handler_sees_nothing_that_the_one_before_has_left_in_context_variables(app: Backstay) -> None:
    left = contextvars.ContextVar("left", default="nothing")
    seen = []

    @app.job("report")
    async def report(payload: int) -> None:
        seen.append(left.get())
        left.set("something")

    async with app:
        handles = await app.submit_many([("report", each) for each in range(5)])
        async with app.worker(concurrency=1):
            for handle in handles:
                await handle.result(timeout=10)
    assert seen == ["nothing"] * 5


@pytest.mark.parametrize("header", ["00-" + "ab" * 16 + "-" + "cd" * 8 + "-01", "rubbish", None])
async def test_a_submit_over_http_belongs_to_the_trace_of_its_request(
    app: Backstay, spans: InMemorySpanExporter, header: str | None
) -> None:
    @app.job("report")
    async def report(payload: int) -> None: ...

    transport = httpx.ASGITransport(asgi(app))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        headers = {} if header is None else {"traceparent": header}
        answer = await http.post("/jobs/report", json={"payload": 1}, headers=headers)
        assert answer.status_code == 201
    submit = only(spans, "submit report")
    if header is None or header == "rubbish":
        assert submit.parent is None
    else:
        assert submit.parent is not None and submit.parent.span_id == 0xCDCDCDCDCDCDCDCD


async def test_an_attempt_of_a_remote_worker_is_a_span_from_its_claim_to_its_end(
    app: Backstay, spans: InMemorySpanExporter
) -> None:
    @app.job("report")
    async def report(payload: int) -> None: ...

    async with app, reached(app) as far:
        handle = await report.submit(1)
        await far.register("report")
        job_id, token = await far.one()
        answer = await far.say("complete", job_id, token, result=1)
        assert answer.status_code == 200
        record = (await app.get(handle.job_id)).row
    run = only(spans, "run report")
    assert is_below(run, only(spans, "submit report"))
    assert attributes(run)["backstay.worker_id"] == "far-1" and attributes(run)["backstay.outcome"] == "completed"
    assert run.start_time == (record.started_at or 0) * 1000
    assert run.end_time == (record.completed_at or 0) * 1000


@pytest.mark.parametrize("engine", ["postgres", "dynamodb"])
async def test_a_trace_goes_through_every_engine_with_children_that_are_stored_at_once_or_with_the_completion(
    request: pytest.FixtureRequest, provider: TracerProvider, spans: InMemorySpanExporter, engine: str
) -> None:
    server = request.getfixturevalue(engine)
    place = {"schema": f"traces_{secrets.token_hex(3)}"} if engine == "postgres" else {}
    app = Backstay(server.url(**place), observers=[Tracing(provider)])

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("late", 1)
        await ctx.submit("soon", 1, at_once=True)

    @app.job("late")
    async def late(payload: int) -> None: ...

    @app.job("soon")
    async def soon(payload: int) -> None: ...

    async with app:
        await parent.submit(1)
        await drain(app)
    for name in ("parent", "late", "soon"):
        assert is_below(only(spans, f"run {name}"), only(spans, f"submit {name}")), name
    for name in ("late", "soon"):
        assert is_below(only(spans, f"submit {name}"), only(spans, "run parent")), name
