"""Middleware wraps each run where the handler runs, sees its end, and changes nothing of what is recorded."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    AnyContext,
    Backstay,
    BatchContext,
    BlockingCallNext,
    BlockingContext,
    CallNext,
    Cancel,
    ConfigurationError,
    Context,
    Discard,
    JobCancelled,
    JobFailed,
    Snooze,
    Status,
    sync,
)
from tests.support import surrounded_jobs
from tests.support.surrounded_jobs import noted

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


async def result(app: Backstay, name: str, payload: Any = None) -> Any:
    return await (await app.submit(name, payload)).result(timeout=30)


def noting(said: list[str], name: str) -> Any:
    def around(ctx: AnyContext) -> Iterator[None]:
        said.append(f"{name} before")
        try:
            seen = yield
            said.append(f"{name} saw {seen!r}")
        except BaseException as error:
            said.append(f"{name} saw {type(error).__name__}")
            raise

    return around


async def test_the_first_registered_is_the_outermost_and_a_handlers_own_are_innermost(app: Backstay) -> None:
    said: list[str] = []
    app.middleware(noting(said, "first"))

    @app.job("add", middleware=[noting(said, "own"), noting(said, "innermost")])
    async def add(payload: int) -> int:
        said.append("handler")
        return payload + 1

    app.middleware(noting(said, "later"))  # a handler that is registered already has it too
    async with app, app.worker():
        assert await result(app, "add", 1) == 2
    names = ["first", "later", "own", "innermost"]
    assert said == [*(f"{each} before" for each in names), "handler", *(f"{each} saw 2" for each in reversed(names))]


async def test_a_partial_and_an_object_are_middleware_too(app: Backstay) -> None:
    said: list[str] = []

    def named(name: str, ctx: Context) -> Iterator[None]:
        said.append(name)
        yield

    class Audit:
        async def __call__(self, ctx: Context, call_next: CallNext) -> None:
            said.append("object")
            await call_next()

    @app.job("work", middleware=[functools.partial(named, "partial"), Audit()])
    async def work(payload: None) -> None: ...

    await work.call(None)
    assert said == ["partial", "object"]


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("form", ["call_next", "generator"])
async def test_it_runs_in_the_handlers_own_task_or_thread_and_sets_context_variables(
    app: Backstay, kind: str, form: str
) -> None:
    places: list[Any] = []

    def here() -> Any:
        return asyncio.current_task() if kind == "async" else threading.get_ident()

    async def around(ctx: Context, call_next: CallNext) -> None:
        places.append(here())
        tenant.set("ada")
        await call_next()

    def around_plainly(ctx: BlockingContext, call_next: BlockingCallNext) -> None:
        places.append(here())
        tenant.set("ada")
        call_next()

    def generator(ctx: Any) -> Iterator[None]:
        places.append(here())
        tenant.set("ada")
        yield

    app.middleware(generator if form == "generator" else around if kind == "async" else around_plainly)
    if kind == "async":

        @app.job("who")
        async def who(payload: None) -> str:
            places.append(here())
            return tenant.get()
    else:

        @app.job("who")
        def who_plainly(payload: None) -> str:
            places.append(here())
            return tenant.get()

    async with app, app.worker():
        assert await result(app, "who") == "ada"
    assert places[0] == places[1]
    assert tenant.get() == "nobody"


@pytest.mark.parametrize("form", ["call_next", "generator"])
async def test_what_it_returns_changes_or_swallows_is_not_recorded(app: Backstay, form: str) -> None:
    async def meddles(ctx: Context, call_next: CallNext) -> str:
        try:
            found = await call_next()
            found["added"] = True
            found["list"].clear()
        except ValueError:
            pass
        return "another result"

    def meddles_too(ctx: Any) -> Iterator[None]:
        try:
            found = yield
            found["added"] = True
            found["list"].clear()
        except ValueError:
            pass

    app.middleware(meddles if form == "call_next" else meddles_too)

    @app.job("work", max_attempts=1)
    async def work(payload: str) -> dict[str, list[int]]:
        if payload == "fail":
            raise ValueError("it does not work")
        return {"list": [1]}

    async with app, app.worker():
        assert await result(app, "work", "x") == {"list": [1]}
        with pytest.raises(JobFailed, match="ValueError: it does not work"):
            await result(app, "work", "fail")


async def test_it_sees_the_exception_and_what_it_raises_is_how_the_run_ended(app: Backstay) -> None:
    seen: list[BaseException] = []

    @app.middleware
    async def judges(ctx: Context, call_next: CallNext) -> None:
        if ctx.job.payload == "never":
            raise Cancel("not today")
        try:
            await call_next()
        except ValueError as error:
            seen.append(error)
            raise Discard("no retry helps") from error
        if ctx.job.payload == "bad result":
            raise RuntimeError("a result that it does not like")

    @app.job("work", max_attempts=5)
    async def work(payload: str) -> str:
        if payload == "fail":
            raise ValueError("it does not work")
        return payload

    async with app, app.worker():
        assert await result(app, "work", "good") == "good"
        job = await app.submit("work", "fail")
        assert ((await job.wait(timeout=30)).status, (await job.record()).attempt) == (Status.FAILED, 1)
        assert [str(each) for each in seen] == ["it does not work"]
        with pytest.raises(JobCancelled, match="not today"):
            await result(app, "work", "never")
        bad = await app.submit("work", "bad result", max_attempts=1)
        with pytest.raises(JobFailed, match="a result that it does not like"):
            await bad.result(timeout=30)


async def test_it_sees_a_timeout_and_a_directive_and_leaves_them_as_they_are(app: Backstay) -> None:
    said: list[str] = []
    app.middleware(noting(said, "audit"))

    @app.job("hang", timeout=0.2, max_attempts=1)
    async def hang(payload: None) -> None:
        await asyncio.Event().wait()

    @app.job("later")
    async def later(payload: None) -> None:
        raise Snooze(3600, "not yet")

    async with app, app.worker():
        with pytest.raises(JobFailed, match="JobTimeout"):
            await result(app, "hang")
        job = await app.submit("later")
        async for each in job.watch():
            if each.status is Status.SCHEDULED:
                break
    assert said == ["audit before", "audit saw CancelledError", "audit before", "audit saw Snooze"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("returns", "returned without a call of call_next"),
        ("twice", "called call_next twice"),
        ("ends", "ended before its yield"),
        ("yields", "more than one yield"),
        ("waits not", r"did not wait for call_next\(\)"),
    ],
)
async def test_one_that_does_not_do_its_part_fails_the_run_and_is_named(app: Backstay, wrong: str, why: str) -> None:
    left = []

    async def returns(ctx: Context, call_next: CallNext) -> None: ...

    async def twice(ctx: Context, call_next: CallNext) -> None:
        await call_next()
        await call_next()

    async def waits_not(ctx: Context, call_next: CallNext) -> None:
        left.append(asyncio.ensure_future(call_next()))
        await asyncio.sleep(0)

    def ends(ctx: Context) -> Iterator[None]:
        if ctx.attempt > 1:
            yield

    def yields(ctx: Context) -> Iterator[None]:
        yield
        yield

    forms = {"returns": returns, "twice": twice, "ends": ends, "yields": yields, "waits not": waits_not}
    app.middleware(forms[wrong])  # type: ignore[type-var]

    @app.job("work", max_attempts=1)
    async def work(payload: None) -> str:
        await asyncio.sleep(0.01)
        return "done"

    async with app, app.worker():
        with pytest.raises(JobFailed, match=f"MiddlewareFailed: the middleware .*{why}"):
            await result(app, "work")
        await asyncio.gather(*left)


def test_a_kind_that_does_not_fit_a_handler_is_refused_when_the_second_of_them_is_registered(app: Backstay) -> None:
    async def audit(ctx: Context, call_next: CallNext) -> None:
        await call_next()

    def of_async(ctx: Context) -> Iterator[None]:
        yield

    def of_three(ctx: Any, call_next: Any, more: Any) -> None: ...

    async def yields(ctx: Any) -> Any:
        yield

    @app.job("plain")
    def plain(payload: None) -> None: ...

    with pytest.raises(ConfigurationError, match="one yield, which fits both"):
        app.middleware(audit)
    with pytest.raises(ConfigurationError, match="a `def` gets a BlockingContext, not a Context"):
        app.middleware(of_async)
    for wrong in (of_three, yields, 5):
        with pytest.raises(ConfigurationError, match="write async def"):
            app.middleware(wrong)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="which it wraps, is a `def`"):
        app.job("other", middleware=[audit])(lambda payload: None)
    with pytest.raises(ConfigurationError, match="give a list of functions"):
        app.job("other", middleware=audit)(lambda payload: None)  # type: ignore[arg-type]

    another = Backstay(app.url)
    another.middleware(audit)
    with pytest.raises(ConfigurationError, match="which it wraps, is a `def`"):
        another.job("plain")(plain.function)
    assert another.handlers == {}, "it is not half registered"


async def test_it_wraps_the_call_of_a_batch(app: Backstay) -> None:
    seen: list[Any] = []

    @app.middleware
    async def around(ctx: BatchContext, call_next: CallNext) -> None:
        seen.append(len(ctx))
        seen.append(await call_next())

    @app.batch_job("double", max_size=10, max_wait=0.2)
    async def double(payloads: list[int]) -> list[int]:
        return [each * 2 for each in payloads]

    async with app:
        jobs = await double.submit_many([1, 2, 3])
        async with app.worker():
            assert [await job.result(timeout=30) for job in jobs] == [2, 4, 6]
        assert seen == [3, [2, 4, 6]]
        seen.clear()
        assert await double.call(4) == 8
    assert seen == [1, [8]]


async def test_it_wraps_what_runs_after_a_wait_for_children(app: Backstay) -> None:
    said: list[str] = []

    @app.job("parent", middleware=[noting(said, "audit")])
    async def parent(payload: None, ctx: Context) -> str:
        await ctx.submit("child", 1)
        await ctx.wait_for_children()
        return "never here"

    @parent.join
    async def joined(payload: None, ctx: Context) -> str:
        return "joined"

    @app.job("child")
    async def child(payload: int) -> None: ...

    async with app, app.worker():
        assert await result(app, "parent") == "joined"
    assert said == ["audit before", "audit saw WaitForChildren", "audit before", "audit saw 'joined'"]


async def test_its_context_records_like_the_handlers_own(app: Backstay) -> None:
    @app.middleware
    async def measures(ctx: Context, call_next: CallNext) -> None:
        await call_next()
        ctx.metric("tokens", 5)

    @app.job("work")
    async def work(payload: None) -> None: ...

    async with app, app.worker():
        job = await app.submit("work")
        await job.result(timeout=30)
        assert (await job.record()).metrics == {"tokens": 5}


async def test_in_a_process_it_runs_there(
    make_app: Callable[..., Backstay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(surrounded_jobs.NOTES, str(tmp_path / "notes"))
    app = surrounded_jobs.at(make_app, surrounded_jobs.asynchronous)
    async with app, app.worker():
        seen = await result(app, "ask", "x")
        assert seen["tenant"] == "ada"
        with pytest.raises(JobFailed, match="ValueError"):
            await (await app.submit("ask", "fail", max_attempts=1)).result(timeout=30)
    assert {line.split()[1] for line in noted("before")} == {str(seen["own"])}
    assert noted("raised") == ["raised fail"]


async def test_in_a_process_it_wraps_the_call_of_a_batch(
    make_app: Callable[..., Backstay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(surrounded_jobs.NOTES, str(tmp_path / "notes"))
    app = surrounded_jobs.at(make_app, surrounded_jobs.plain)
    async with app:
        jobs = await app.submit_many([("ask_many", "a"), ("ask_many", "b")])
        async with app.worker():
            assert {(await job.result(timeout=60))["tenant"] for job in jobs} == {"ada"}
    assert len(noted("before")) == len(noted("after")) == 1


def test_the_blocking_api_has_it_too(tmp_path: Path) -> None:
    app = sync.Backstay(f"sqlite:///{tmp_path}/jobs.db")
    said: list[str] = []
    app.middleware(noting(said, "audit"))

    @app.job("work", middleware=[noting(said, "own")])
    def work(payload: int, ctx: BlockingContext) -> int:
        return payload

    with app, app.worker():
        assert work.submit(5).result(timeout=30) == 5
    assert said == ["audit before", "own before", "own saw 5", "audit saw 5"]
    assert work.call(6) == 6
    assert said[-1] == "audit saw 6"
