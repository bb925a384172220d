"""Functions of several parameters: the payload has one field for each, and submit takes what the function takes."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from backstay import Backstay, BlockingContext, ConfigurationError, Context, InvalidOption, InvalidPayload
from backstay import sync as blocking
from tests.support import process_jobs


class Address(BaseModel):
    email: str


async def send(to: str, subject: str = "hello", copies: list[str] = [], *, ctx: Context) -> str:  # noqa: B006
    await ctx.progress(0.5)
    return f"{to}: {subject} {copies} in attempt {ctx.attempt}"


async def without_context(to: Address, *, subject: str) -> Address:
    assert isinstance(to, Address)
    return Address(email=f"{to.email} {subject}")


def context_first(ctx: BlockingContext, to: str, subject: str) -> str:
    return f"{to}: {subject} in attempt {ctx.attempt}"


async def nothing() -> str:
    return "done"


def names_of_models(copy: str, schema: str, json: str) -> str:
    return copy + schema + json


@pytest.mark.parametrize(
    ("function", "arguments", "payload", "result"),
    [
        (send, {"to": "ada"}, {"to": "ada", "subject": "hello", "copies": []}, "ada: hello [] in attempt 1"),
        (
            send,
            {"to": "ada", "copies": ["bob"]},
            {"to": "ada", "subject": "hello", "copies": ["bob"]},
            "ada: hello ['bob'] in attempt 1",
        ),
        (
            without_context,
            {"to": Address(email="ada"), "subject": "hi"},
            {"to": {"email": "ada"}, "subject": "hi"},
            Address(email="ada hi"),
        ),
        (context_first, {"to": "ada", "subject": "hi"}, {"to": "ada", "subject": "hi"}, "ada: hi in attempt 1"),
        (nothing, {}, {}, "done"),
        (names_of_models, {"copy": "a", "schema": "b", "json": "c"}, {"copy": "a", "schema": "b", "json": "c"}, "abc"),
    ],
)
async def test_a_job_calls_the_function_with_the_arguments_that_submit_was_given(
    app: Backstay, function: Any, arguments: dict[str, Any], payload: Any, result: Any
) -> None:
    handler: Any = app.job("work")(function)
    async with app, app.worker():
        job = await handler.submit(**arguments)
        assert job.payload == payload
        assert await job.result(timeout=30) == result
        assert await handler.call(**arguments) == result


async def test_arguments_may_be_given_by_position(app: Backstay) -> None:
    handler = app.job("work")(context_first)
    async with app, app.worker():
        assert (await handler.submit("ada", subject="hi")).payload == {"to": "ada", "subject": "hi"}
        with pytest.raises(TypeError, match="3 arguments; by position it takes to, subject"):
            await handler.submit("ada", "hi", "more")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="to given by position and by name"):
            await handler.submit("ada", to="bob", subject="hi")  # type: ignore[misc]


async def test_wrong_arguments_are_refused_before_anything_is_stored(app: Backstay) -> None:
    handler: Any = app.job("work")(send)
    async with app:
        for wrong in ({}, {"to": 5}, {"to": "ada", "subjekt": "hi"}, {"to": "ada", "ctx": None}):
            with pytest.raises(InvalidPayload):
                await handler.submit(**wrong)
            with pytest.raises(InvalidPayload):
                await handler.call(**wrong)
        assert await app.find() == []


async def test_options_of_the_job_go_before_its_arguments(app: Backstay) -> None:
    handler: Any = app.job("work")(without_context)
    async with app:
        late = handler.options(priority="high", delay=60, tags=["mail"])
        jobs = [await late.submit(to=Address(email=each), subject="hi") for each in ("ada", "bob")]
        assert [(job.priority, job.status, job.tags, job.payload["to"]["email"]) for job in jobs] == [
            (75, "scheduled", ["mail"], "ada"),
            (75, "scheduled", ["mail"], "bob"),
        ]
        with pytest.raises(InvalidOption):
            await handler.options(prioriti=5).submit(to=Address(email="a"), subject="b")


async def test_the_payload_of_a_call_goes_wherever_a_payload_goes(app: Backstay) -> None:
    handler = app.job("work")(context_first)

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> str:
        child = await ctx.submit(handler, handler.payload("ada", subject="hi"))
        return (await ctx.wait_for_children()).result_of(child)

    async with app, app.worker():
        [job] = await app.submit_many([(handler, handler.payload("bob", "hi"))])
        assert await job.result(timeout=30) == "bob: hi in attempt 1"
        assert await (await parent.submit(1)).result(timeout=30) == "ada: hi in attempt 1"
        assert (await app.schedule("s", "@daily", handler, handler.payload("c", "hi"))).payload["to"] == "c"
        assert (await app.get(job.job_id)).payload_as(handler).subject == "hi"  # type: ignore[attr-defined]
        assert await (await app.submit("work", {"to": "d", "subject": "e"})).result(timeout=30) == "d: e in attempt 1"


def test_a_blocking_app_takes_such_functions_too(tmp_path: Path) -> None:
    app = blocking.Backstay(f"sqlite:///{tmp_path}/jobs.db")
    first, later = app.job("first")(context_first), app.job("send")(send)
    with app, app.worker():
        assert first.submit("ada", subject="hi").result(timeout=30) == "ada: hi in attempt 1"
        assert later.options(priority="high").submit(to="ada").result(timeout=30) == "ada: hello [] in attempt 1"
        assert first.call("ada", "hi") == "ada: hi in attempt 1"
        assert later.call(to="ada") == "ada: hello [] in attempt 1"
    both = Backstay(f"sqlite:///{tmp_path}/jobs.db")
    shared = both.job("first")(context_first)
    with both.sync, both.sync.worker():
        assert shared.sync.submit("ada", "hi").result(timeout=30) == "ada: hi in attempt 1"


async def test_to_call_a_handler_of_one_payload_gives_it_a_context_and_no_queue(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: Address, ctx: Context) -> list[Any]:
        await ctx.progress(0.5, stage="half")
        ctx.metric("tokens", 1)
        once = [await ctx.once("step", lambda: 1), await ctx.once("step", lambda: 2)]
        return [payload.email, ctx.attempt, ctx.cancelled, ctx.job.job_type, *once]

    @app.job("blocking")
    def in_a_thread(payload: Address, ctx: BlockingContext) -> bool:
        return threading.current_thread() is not threading.main_thread() and ctx.once("a", lambda: True)

    @app.job("needs")
    async def needs_a_queue(payload: int, ctx: Context) -> None:
        await ctx.submit("work", {})

    assert await work.call(Address(email="ada")) == ["ada", 1, False, "work", 1, 1]
    assert await in_a_thread.call(Address(email="ada"))
    assert not app.is_open
    with pytest.raises(InvalidOption, match=r"without a queue.*\(submit\): use backstay.testing.inline"):
        await needs_a_queue.call(1)


async def test_such_a_function_runs_in_a_process_too(make_app: Any) -> None:
    app = process_jobs.bind(make_app)
    async with app, app.worker():
        assert await (await app.submit("adds", {"one": 1})).result(timeout=30) == [3, 1]


async def test_to_call_the_handler_itself_calls_the_function(app: Backstay) -> None:
    handler: Any = app.job("work")(without_context)
    assert await handler(Address(email="a"), subject="b") == Address(email="a b")
    assert handler.__doc__ == without_context.__doc__ and handler.__name__ == "without_context"


def test_what_cannot_be_a_field_is_refused_with_what_to_write(app: Backstay) -> None:
    async def untyped(to, *, ctx: Context) -> None: ...  # type: ignore[no-untyped-def]

    async def any_number(*to: str, ctx: Context) -> None: ...

    async def by_position(to: str, /, *, ctx: Context) -> None: ...

    for function in (untyped, any_number, by_position):
        with pytest.raises(ConfigurationError, match="each other parameter is a field of the payload: annotate it"):
            app.job("x")(function)

    async def wrong_context(to: str, *, ctx: BlockingContext) -> None: ...

    with pytest.raises(ConfigurationError, match="an `async def` gets a Context, not a BlockingContext"):
        app.job("x")(wrong_context)


async def test_a_default_of_a_job_is_its_own(app: Backstay) -> None:
    @app.job("work")
    async def work(n: int, m: int, seen: list[int] = []) -> list[int]:  # noqa: B006
        seen.append(n)
        return seen

    async with app, app.worker():
        jobs = await asyncio.gather(work.submit(1, 2), work.submit(3, 4))
        assert [await job.result(timeout=30) for job in jobs] == [[1], [3]]
