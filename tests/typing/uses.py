"""Right and wrong uses of the typed API. A line that a checker must refuse says so: `# error: mypy's code | pyright's`.

Nothing here runs: test_types.py gives it to both checkers, and compares what they report with the comments.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import assert_type

from pydantic import BaseModel

from backstay import (
    AnyContext,
    ArtifactRef,
    Backstay,
    BatchContext,
    BlockingContext,
    CallNext,
    Child,
    Context,
    Encrypted,
    Explanation,
    Handler,
    Job,
    JobHandle,
    JobHandler,
    OutputEntry,
    PipelineResult,
    Stage,
)
from backstay import sync as blocking

app = Backstay()
django = blocking.Backstay()


class Summary(BaseModel):
    user_id: int


class Report(BaseModel):
    pages: int


@dataclass
class Page:
    number: int


# Handlers: a payload and a result


@app.job("summary")
async def summary(payload: Summary, ctx: Context) -> Report:
    return Report(pages=payload.user_id)


@app.job("pages")
async def pages(payload: Summary) -> list[Page]:
    return [Page(1)]


@app.job("count")
def count(payload: list[int], ctx: BlockingContext) -> int:
    return len(payload)


@app.job("plain")
def plain(payload: dict[str, int]) -> None: ...


@app.job("nothing")
async def nothing(payload: None) -> str:
    return ""


@app.job("decorated")
class Decorated(JobHandler[Summary, Report]):
    async def handle(self, payload: Summary, ctx: Context) -> Report:
        return Report(pages=1)


class Sync(JobHandler[Summary, Report]):
    async def handle(self, payload: Summary, ctx: Context) -> Report:
        return Report(pages=1)


class Short(JobHandler[Summary]):
    def handle(self, payload: Summary, ctx: BlockingContext) -> list[Page]:
        return []


sync = app.job("sync")(Sync)
short = app.job("short")(Short)


@app.batch_job("embed", max_size=10)
async def embed(payloads: list[Summary], ctx: BatchContext) -> list[list[float]]:
    return [[0.5] for _ in payloads]


@app.batch_job("embed_some")
def embed_some(payloads: list[Summary]) -> list[Report | Exception]:
    return []


@app.job("send")
async def send(to: str, subject: str = "hello", *, ctx: Context) -> Report:
    return Report(pages=1)


@app.job("notify")
async def notify(to: str, subject: str, tries: int = 3) -> Report:
    return Report(pages=1)


@app.job("context_first")
async def context_first(ctx: Context, to: str, subject: str = "hello") -> list[Page]:
    return []


@app.job("blocking_function")
def blocking_function(ctx: BlockingContext, to: str) -> int:
    return 1


@app.job("no_parameters")
async def no_parameters() -> int:
    return 1


full = app.pipeline("full", [Stage("first", summary), Stage("second", "elsewhere")])


def takes_handler(handler: Handler[Summary, Report]) -> None: ...


async def what_submit_returns() -> None:
    takes_handler(summary)
    takes_handler(pages)  # error: arg-type | reportArgumentType

    assert_type(await summary.submit(Summary(user_id=1), delay=60), JobHandle[Report])
    assert_type(await (await summary.submit(Summary(user_id=1))).result(timeout=3), Report)
    assert_type(await (await pages.submit(Summary(user_id=1))).result(), list[Page])
    assert_type(await (await count.submit([1, 2])).result(), int)
    assert_type(await (await plain.submit({"a": 1})).result(), None)
    assert_type(await (await Decorated.submit(Summary(user_id=1))).result(), Report)
    assert_type(await (await sync.submit(Summary(user_id=1))).result(), Report)
    assert_type(await (await short.submit(Summary(user_id=1))).result(), list[Page])
    assert_type(await (await embed.submit(Summary(user_id=1))).result(), list[float])
    assert_type(await (await embed_some.submit(Summary(user_id=1))).result(), Report)
    assert_type(await (await full.submit({"stages": []})).result(), PipelineResult)

    await summary.submit(Report(pages=1))  # error: arg-type | reportArgumentType
    await summary.submit({"user_id": 1})  # error: arg-type | reportArgumentType
    await summary.submit(Summary(user_id=1), prioriti=5)  # error: call-arg | reportCallIssue
    await summary.submit(Summary(user_id=1), delay="soon")  # error: arg-type | reportArgumentType
    await count.submit(["a"])  # error: list-item | reportArgumentType
    await Decorated.submit(7)  # error: arg-type | reportArgumentType
    await sync.submit(7)  # error: arg-type | reportArgumentType
    await embed.submit([Summary(user_id=1)])  # error: arg-type | reportArgumentType
    await full.submit(5)  # error: arg-type | reportArgumentType
    report = await (await summary.submit(Summary(user_id=1))).result()
    report.page = 1  # error: attr-defined | reportAttributeAccessIssue


async def what_a_function_of_several_parameters_takes() -> None:
    assert_type(await send.submit(to="a", subject="b"), JobHandle[Report])
    assert_type(await send.options(priority="high", delay=60).submit(to="a"), JobHandle[Report])
    assert_type(await send.call(to="a"), Report)
    assert_type(await notify.submit("a", subject="b"), JobHandle[Report])
    assert_type(await notify.options(delay=60).submit(to="a", subject="b", tries=5), JobHandle[Report])
    assert_type(await notify.call("a", "b"), Report)
    assert_type(await (await context_first.submit(to="a")).result(), list[Page])
    assert_type(await (await blocking_function.submit("a")).result(), int)
    assert_type(await (await no_parameters.submit()).result(), int)
    assert_type(notify.sync.submit(to="a", subject="b").result(), Report)
    assert_type(await app.submit(notify, notify.payload("a", "b")), JobHandle[Report])
    assert_type(await summary.call(Summary(user_id=1)), Report)

    (await send.call(to="a")).page = 1  # error: attr-defined | reportAttributeAccessIssue
    await notify.submit(to="a", subject=5)  # error: arg-type | reportArgumentType
    await notify.submit(to="a")  # error: call-arg | reportCallIssue
    await notify.submit(to="a", subjekt="b")  # error: call-arg | reportCallIssue
    notify.options(prioriti=5)  # error: call-arg | reportCallIssue
    await notify.options(priority=5).submit(to=5, subject="b")  # error: arg-type | reportArgumentType
    await notify.call("a")  # error: call-arg | reportCallIssue
    await context_first.submit(to=5)  # error: arg-type | reportArgumentType
    await blocking_function.submit()  # error: call-arg | reportCallIssue
    await no_parameters.submit(1)  # error: call-arg | reportCallIssue
    notify.payload("a")  # error: call-arg | reportCallIssue
    await app.submit(notify, 5)  # error: misc | reportArgumentType, reportCallIssue
    await summary.call(5)  # error: arg-type | reportArgumentType


async def what_a_handle_does(job: JobHandle[Report]) -> None:
    assert_type(await job.record(), Job)
    assert_type(await job.wait(timeout=3), Job)
    assert_type([each async for each in job.watch()], list[Job])
    assert_type(await job.cancel(subtree=True), Job)
    assert_type(await job.retry(forget_steps=True), Job)
    assert_type(await job.explain(), Explanation)
    await job.cancel(subtre=True)  # error: call-arg | reportCallIssue


async def what_the_app_returns(job: Job) -> None:
    assert_type(await app.submit(summary, Summary(user_id=1)), JobHandle[Report])
    assert_type(await (await app.submit(nothing)).result(), str)
    await app.submit("summary", {"user_id": 1}, priority="high")
    await app.submit(summary, Report(pages=1))  # error: misc | reportArgumentType, reportCallIssue
    await app.submit(summary)  # error: arg-type | reportArgumentType, reportCallIssue

    assert_type(await app.submit_many([(pages, Summary(user_id=n)) for n in range(3)]), list[JobHandle[list[Page]]])
    assert_type(await pages.submit_many(Summary(user_id=n) for n in range(3)), list[JobHandle[list[Page]]])
    await app.submit_many([("summary", {"user_id": 1}), ("pages", {"user_id": 2}, {"priority": 5})])
    await app.submit_many([(pages, 5)])  # error: misc | reportArgumentType, reportCallIssue
    await pages.submit_many([5])  # error: list-item | reportArgumentType

    await app.schedule("nightly", "30 3 * * *", summary, Summary(user_id=1))
    await app.schedule("hourly", "@hourly", nothing)
    await app.schedule("daily", "@daily", "summary", {"user_id": 1})
    app.cron("nightly", "30 3 * * *", summary, Summary(user_id=1), overlap="skip", jitter=60)
    app.cron("hourly", "@hourly", nothing)
    app.cron("nightly", "30 3 * * *", summary, 5)  # error: misc | reportArgumentType, reportCallIssue
    app.cron("nightly", "@daily", nothing, overlap="maybe")  # error: call-overload | reportArgumentType
    await app.schedule("nightly", "30 3 * * *", summary, 5)  # error: misc | reportArgumentType, reportCallIssue

    assert_type(await app.result(job.job_id, as_type=summary), Report)
    assert_type(await app.result(job.job_id, as_type=Report), Report)
    assert_type(job.payload_as(summary), Summary)
    assert_type(job.payload_as(Summary), Summary)
    assert_type(job.result_as(pages), list[Page])


@app.job("parent")
async def parent(payload: Summary, ctx: Context) -> int:
    child = await ctx.submit(pages, payload)
    assert_type(child, Child[list[Page]])
    await ctx.submit(pages, 5)  # error: misc | reportArgumentType, reportCallIssue
    await ctx.submit("pages", {"user_id": 1})
    children = await ctx.wait_for_children()
    assert_type(children.result_of(child), list[Page])
    return len(children)


@app.job("blocking_parent")
def blocking_parent(payload: Summary, ctx: BlockingContext) -> int:
    child = ctx.submit(pages, payload)
    assert_type(child, Child[list[Page]])
    ctx.submit(pages, 5)  # error: misc | reportArgumentType, reportCallIssue
    return len(ctx.wait_for_children().result_of(child))


# The blocking API


@django.job("summary")
def django_summary(payload: Summary, ctx: BlockingContext) -> Report:
    return Report(pages=1)


@django.job("async_too")
async def async_too(payload: Summary, ctx: Context) -> list[Page]:
    return []


@django.batch_job("embed")
def django_embed(payloads: list[Summary], ctx: object) -> list[int]:
    return []


class DjangoSync(JobHandler[Summary, Report]):
    def handle(self, payload: Summary, ctx: BlockingContext) -> Report:
        return Report(pages=1)


@django.job("function")
def django_function(to: str, subject: str) -> Report:
    return Report(pages=1)


django_sync = django.job("sync")(DjangoSync)
django_full = django.pipeline("full", [Stage("first", django_summary)])


def without_await(job: Job) -> None:
    assert_type(django_summary.submit(Summary(user_id=1)), blocking.JobHandle[Report])
    assert_type(django_summary.submit(Summary(user_id=1)).result(), Report)
    assert_type(async_too.submit(Summary(user_id=1)).result(), list[Page])
    assert_type(django_embed.submit(Summary(user_id=1)).result(), int)
    assert_type(django_sync.submit(Summary(user_id=1)).result(), Report)
    assert_type(django.submit(django_summary, Summary(user_id=1)).result(), Report)
    assert_type(django.submit_many([(async_too, Summary(user_id=1))]), list[blocking.JobHandle[list[Page]]])
    assert_type(django.result(job.job_id, as_type=django_summary), Report)
    assert_type(django_full.submit().result(), PipelineResult)
    assert_type(job.payload_as(django_summary), Summary)
    assert_type(summary.sync.submit(Summary(user_id=1)).result(), Report)
    assert_type(app.sync.submit(summary, Summary(user_id=1)), blocking.JobHandle[Report])
    assert_type(list(django_summary.submit(Summary(user_id=1)).watch()), list[Job])
    assert_type(django_summary.submit(Summary(user_id=1)).cancel(reason="no"), Job)
    django.schedule("nightly", "30 3 * * *", django_summary, Summary(user_id=1))

    assert_type(django_function.submit(to="a", subject="b").result(), Report)
    assert_type(django_function.options(delay=5).submit("a", "b"), blocking.JobHandle[Report])
    assert_type(django_function.call("a", "b"), Report)
    django_function.submit(to="a")  # error: call-arg | reportCallIssue

    django_summary.submit(5)  # error: arg-type | reportArgumentType
    django.submit(django_summary, 5)  # error: misc | reportArgumentType, reportCallIssue
    django.submit_many([(async_too, 5)])  # error: misc | reportArgumentType, reportCallIssue
    django.schedule("nightly", "@daily", django_summary, 5)  # error: misc | reportArgumentType, reportCallIssue


# What surrounds handlers


@dataclass
class Shared:
    rates: dict[str, float]


@app.lifespan
async def shared() -> AsyncIterator[Shared]:
    yield Shared({})


@app.middleware
async def timed(ctx: Context[Shared], call_next: CallNext) -> None:
    assert_type(ctx.state, Shared)
    await call_next()


@app.middleware
def noted(ctx: AnyContext[Shared]) -> Iterator[None]:
    yield


@app.middleware  # error: type-var | reportArgumentType, reportUntypedFunctionDecorator
def takes_three(ctx: Context, call_next: CallNext, more: int) -> None: ...


@app.job("convert", middleware=[timed, noted])
async def convert(payload: Summary, ctx: Context[Shared]) -> float:
    assert_type(ctx.state, Shared)
    return ctx.state.rates["EUR"]


@app.job("convert_by_name")
async def convert_by_name(ctx: Context[Shared], currency: str) -> float:
    return ctx.state.rates[currency]


@app.batch_job("convert_many")
async def convert_many(payloads: list[Summary], ctx: BatchContext[Shared]) -> list[float]:
    return [ctx.item(0).state.rates["EUR"], ctx.state.rates["USD"]]


@django.job("convert")
def convert_plainly(payload: Summary, ctx: BlockingContext[Shared]) -> float:
    return ctx.state.rates["EUR"]


async def surrounded() -> None:
    assert_type(await (await convert.submit(Summary(user_id=1))).result(), float)
    assert_type(await (await convert_by_name.submit("EUR")).result(), float)
    assert_type(await (await convert_many.submit(Summary(user_id=1))).result(), float)
    assert_type(convert_plainly.submit(Summary(user_id=1)).result(), float)
    await convert.submit(5)  # error: arg-type | reportArgumentType


# Encrypted fields, files by reference, output


class Payment(BaseModel):
    card: Encrypted[str]
    amounts: Encrypted[list[int]]


@app.job("charge")
async def charge(payload: Payment, ctx: Context) -> ArtifactRef:
    assert_type(payload.card, str)
    assert_type(payload.amounts, list[int])
    await ctx.stream({"any": "JSON"})
    assert_type(await ctx.read_artifact(await ctx.artifact_ref("bill.pdf")), bytes)
    await ctx.read_artifact("bill.pdf")  # error: arg-type | reportArgumentType
    return await ctx.artifact_ref("bill.pdf")


@app.job("charge_function")
def charge_function(ctx: BlockingContext, card: Encrypted[str]) -> Encrypted[str]:
    ctx.stream(card)
    return card


async def streamed() -> None:
    job = await charge.submit(Payment(card="4111", amounts=[1]))
    async for entry in job.stream():
        assert_type(entry, OutputEntry)
    assert_type((await app.output(job.job_id))[0], OutputEntry)
    assert_type(await app.read_artifact(await job.result()), bytes)
    Payment(card=4111, amounts=[1])  # error: arg-type | reportArgumentType
    assert_type(await (await charge_function.submit("4111")).result(), str)
