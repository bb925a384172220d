"""Handlers of a traced worker process, whose spans go to the file that TRACED_SPANS names, a line each."""

import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from backstay import Backstay, BlockingContext, Context

if path := os.environ.get("TRACED_SPANS"):
    provider = TracerProvider(shutdown_on_exit=False)
    exporter = ConsoleSpanExporter(
        out=open(path, "a", buffering=1),  # noqa: SIM115  # as long as the process lives
        formatter=lambda span: span.to_json(indent=None) + "\n",
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

app = Backstay("sqlite:///jobs.db")  # in the folder in which the worker runs
tracer = trace.get_tracer("the user's own")


@app.job("parent")
async def parent(payload: str, ctx: Context) -> str:
    with tracer.start_as_current_span("inside parent"):
        await ctx.submit("child", payload)
    return payload


@app.job("child")
def child(payload: str, ctx: BlockingContext) -> str:
    ctx.submit("isolated", payload)
    return payload


@app.job("isolated", isolation="process")
def isolated(payload: str) -> str:
    with tracer.start_as_current_span("inside isolated"):
        return payload
