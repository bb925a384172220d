"""What may be registered as a handler: a worker calls it with (payload) or (payload, ctx), and nothing is guessed."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Optional, Protocol

import pytest
from pydantic import BaseModel

from backstay import (
    Backstay,
    BatchContext,
    BlockingContext,
    ConfigurationError,
    Context,
    FunctionHandler,
    InvalidPayload,
    JobHandler,
)


class User(BaseModel):
    user_id: int


class Admin(User):
    level: int = 1


class BaseJobHandler:
    """As the scheduled-queue document has it."""

    @classmethod
    def payload_model(cls) -> type[BaseModel]:
        raise NotImplementedError

    def handle(self, payload: BaseModel) -> Any:
        raise NotImplementedError


class UserSync(BaseJobHandler):
    @classmethod
    def payload_model(cls) -> type[BaseModel]:
        return User

    def handle(self, payload: BaseModel) -> Any:
        assert isinstance(payload, User)
        return payload.user_id


async def ran(app: Backstay, payload: Any) -> Any:
    async with app, app.worker():
        return await (await app.submit("x", payload)).result(timeout=30)


# Second parameters


def second_is_an_option(payload: User, dry_run: bool = False) -> None: ...


def second_is_another_field(user_id: int, level: int) -> None: ...


def second_says_nothing(payload: User, job) -> None: ...  # type: ignore[no-untyped-def]


def second_has_a_default(payload: User, retries=3) -> None: ...  # type: ignore[no-untyped-def]


def second_is_a_mapping(payload: User, ctx: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("function", "second", "keyword_only"),
    [
        (second_is_an_option, "dry_run", True),
        (second_says_nothing, "job", False),
        (second_has_a_default, "retries", True),
        (second_is_a_mapping, "ctx", False),
        (functools.partial(second_is_an_option), "dry_run", True),
    ],
)
def test_a_second_parameter_that_is_not_a_context_is_refused(
    app: Backstay, function: Callable[..., Any], second: str, keyword_only: bool
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        app.job("x")(function)

    assert f"'{second}' does not look like one" in str(refused.value)
    assert "write (payload, ctx: BlockingContext) for the context" in str(refused.value)
    assert f"make {second!r} part of the payload" in str(refused.value)
    assert (f"(payload, *, {second}=…)" in str(refused.value)) is keyword_only


def test_a_coroutine_is_told_its_own_context(app: Backstay) -> None:
    async def send(payload: User, dry_run: bool = False) -> None: ...

    with pytest.raises(ConfigurationError, match=r"write \(payload, ctx: Context\)"):
        app.job("x")(send)


class Progresses(Protocol):
    def progress(self, fraction: float) -> None: ...


def annotated(payload: Any, job: BlockingContext) -> bool:
    return isinstance(job, BlockingContext)


def optional(payload: Any, ctx: Optional[BlockingContext] = None) -> bool:  # noqa: UP045 - old code is written so
    return isinstance(ctx, BlockingContext)


def either(payload: Any, ctx: Context | BlockingContext) -> bool:
    return isinstance(ctx, BlockingContext)


def a_protocol(payload: Any, ctx: Progresses) -> bool:
    return isinstance(ctx, BlockingContext)


def unannotated(payload, job_ctx):  # type: ignore[no-untyped-def]
    return isinstance(job_ctx, BlockingContext)


def unused(payload, _):  # type: ignore[no-untyped-def]
    return isinstance(_, BlockingContext)


def with_options(payload: Any, ctx: BlockingContext, tries: int = 3, *, dry_run: bool = False, **more: Any) -> bool:
    return isinstance(ctx, BlockingContext) and (tries, dry_run, more) == (3, False, {})


def keyword_only(payload: Any, *, dry_run: bool = False) -> bool:
    return dry_run is False


@pytest.mark.parametrize(
    "function",
    [annotated, optional, either, a_protocol, unannotated, unused, with_options, keyword_only],
    ids=lambda each: each.__name__,
)
async def test_a_context_may_be_written_in_these_ways(app: Backstay, function: Callable[..., Any]) -> None:
    app.job("x")(function)

    assert await ran(app, {}) is True


# Other parameters


def required_keyword(payload: User, *, dry_run: bool) -> None: ...


def only_keywords(*, payload: User) -> None: ...


def any_number(*args: Any) -> None: ...


def one_and_any_number(payload: User, *args: Any) -> None: ...


def a_method(self, payload: User) -> None: ...  # type: ignore[no-untyped-def]


def only_a_context(ctx) -> None: ...  # type: ignore[no-untyped-def]


def a_bare_model(payload: BaseModel) -> None: ...


def a_keyword_context(payload: User, *, ctx: BlockingContext | None = None) -> None: ...


def a_generator(payload: User) -> Iterator[int]:
    yield payload.user_id


async def an_async_generator(payload: User) -> AsyncIterator[int]:
    yield payload.user_id


class CallableGenerator:
    def __call__(self, payload: User) -> Iterator[int]:
        yield payload.user_id


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (functools.partial(with_options, ctx=None), None),  # the context is bound, and the rest has defaults
        (functools.partial(second_is_another_field, level=1), None),
        (functools.partial(second_is_another_field, user_id=1), "takes no payload|nothing passes 'level'"),
        (any_number, r"\*args should receive is unclear: write \(payload\) or \(payload, ctx\).*functools.wraps"),
        (one_and_any_number, r"\*args should receive is unclear"),
        (a_method, r"a method without its object: register a class with handle\(self, payload, ctx\)"),
        (only_a_context, "the payload comes first"),
        (a_bare_model, "BaseModel itself has no fields.*annotate it with your model"),
        (a_generator, "has a yield, so that a call of it runs nothing: return a list"),
        (an_async_generator, "has a yield"),
        (CallableGenerator(), "has a yield"),
        (functools.partial(a_generator), "has a yield"),
        (object(), "is not a function or a class with handle"),
    ],
)
def test_a_function_that_a_worker_cannot_call_says_what_to_write(
    app: Backstay, function: Any, message: str | None
) -> None:
    if message is None:
        app.job("x")(function)
        return
    with pytest.raises(ConfigurationError, match=f"x: .*({message})"):
        app.job("x")(function)


@pytest.mark.parametrize("function", [second_is_another_field, required_keyword, only_keywords, a_keyword_context])
def test_a_function_of_several_parameters_is_not_one_of_a_payload(app: Backstay, function: Any) -> None:
    assert isinstance(app.job("x")(function), FunctionHandler)


async def test_a_decorator_with_wraps_is_read_like_its_function(app: Backstay) -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            return function(*args, **options)

        return call

    @app.job("x")
    @logged
    def count(payload: User, ctx: BlockingContext) -> int:
        return payload.user_id + ctx.attempt

    assert await ran(app, {"user_id": 4}) == 5
    with pytest.raises(ConfigurationError, match="dry_run"):
        app.job("y")(logged(second_is_an_option))


async def test_a_partial_is_a_handler(app: Backstay) -> None:
    def add(amount: int, payload: User, ctx: BlockingContext, *, times: int) -> int:
        return (payload.user_id + amount) * times

    app.job("x")(functools.partial(add, 10, times=2))

    assert await ran(app, {"user_id": 1}) == 22


async def test_an_object_that_can_be_called_is_a_handler(app: Backstay) -> None:
    class Adder:
        def __init__(self, amount: int) -> None:
            self.amount = amount

        async def __call__(self, payload: User, ctx: Context) -> int:
            return payload.user_id + self.amount

    app.job("x")(Adder(10))

    assert await ran(app, {"user_id": 1}) == 11


async def test_the_method_of_an_object_is_a_handler(app: Backstay) -> None:
    class Adder:
        def __init__(self, amount: int) -> None:
            self.amount = amount

        def handle(self, payload: User) -> int:
            return payload.user_id + self.amount

    with pytest.raises(ConfigurationError, match=r"Adder cannot be created.*app.job\('x'\)\(Adder\(…\).handle\)"):
        app.job("x")(Adder)
    app.job("x")(Adder(10).handle)

    assert await ran(app, {"user_id": 1}) == 11


# Classes


async def test_the_model_that_a_class_declares_validates(app: Backstay) -> None:
    app.job("x")(UserSync)

    async with app, app.worker():
        assert await (await app.submit("x", {"user_id": 3})).result(timeout=30) == 3
        with pytest.raises(InvalidPayload, match="user_id"):
            await app.submit("x", {"user_id": "three"})
        with pytest.raises(InvalidPayload, match="user_id"):
            await app.submit("x", {})


async def test_the_model_of_a_class_whose_object_was_made_validates_too(app: Backstay) -> None:
    app.job("x")(UserSync().handle)

    async with app:
        with pytest.raises(InvalidPayload, match="user_id"):
            await app.submit("x", {})


def test_a_declared_model_is_announced(app: Backstay) -> None:
    assert "user_id" in str(app.job("x")(UserSync).describe(0).payload_schema)


def test_a_declared_model_and_an_annotation_must_agree(app: Backstay) -> None:
    class Fits(UserSync):
        @classmethod
        def payload_model(cls) -> type[BaseModel]:
            return Admin

        def handle(self, payload: User) -> Any: ...  # type: ignore[override]

    class Differs(UserSync):
        def handle(self, payload: Admin) -> Any: ...  # type: ignore[override]

    class Mapping(UserSync):
        def handle(self, payload: dict[str, Any]) -> Any: ...  # type: ignore[override]

    assert app.job("fits")(Fits).annotation is Admin
    for wrong in (Differs, Mapping):
        with pytest.raises(ConfigurationError, match=r"payload_model\(\) returns User, but handle\(\) takes .*same"):
            app.job("x")(wrong)


def test_a_declared_model_must_be_a_model(app: Backstay) -> None:
    class Instance(UserSync):
        @classmethod
        def payload_model(cls) -> Any:
            return User(user_id=1)

    class Bare(UserSync):
        @classmethod
        def payload_model(cls) -> Any:
            return BaseModel

    class Unwritten(BaseJobHandler):
        def handle(self, payload: BaseModel) -> Any: ...

    with pytest.raises(ConfigurationError, match=r"returned User.*inherits from BaseModel"):
        app.job("x")(Instance)
    with pytest.raises(ConfigurationError, match="BaseModel itself has no fields"):
        app.job("x")(Bare)
    with pytest.raises(ConfigurationError, match=r"payload_model\(\) raised NotImplementedError"):
        app.job("x")(Unwritten)


def test_a_class_without_a_handle_that_can_be_called_says_what_to_write(app: Backstay) -> None:
    class Nothing(JobHandler[User]): ...

    class Selfless(JobHandler[User]):
        def handle() -> Any: ...  # type: ignore[misc]

    class Optioned(JobHandler[User]):
        def handle(self, payload: User, dry_run: bool) -> Any: ...

    with pytest.raises(ConfigurationError, match=r"Nothing has no handle\(\): write def handle\(self, payload, ctx\)"):
        app.job("x")(Nothing)
    with pytest.raises(ConfigurationError, match=r"def handle\(self, payload, ctx\)"):
        app.job("x")(Selfless)
    with pytest.raises(ConfigurationError, match="'dry_run' does not look like one"):
        app.job("x")(Optioned)
    with pytest.raises(ConfigurationError, match=r"User has no handle\(\)"):
        app.job("x")(User)


# Batches and joins


def test_a_batch_handler_is_read_with_the_same_care(app: Backstay) -> None:
    def optioned(payloads: list[User], dry_run: bool = False) -> list[Any]:
        return []

    def one_context(payloads: list[User], ctx: BlockingContext) -> list[Any]:
        return []

    def keyword(payloads: list[User], *, dry_run: bool) -> list[Any]:
        return []

    with pytest.raises(ConfigurationError, match=r"write \(payloads, ctx: BlockingBatchContext\)"):
        app.batch_job("x")(optioned)
    with pytest.raises(ConfigurationError, match="a `def` of a batch gets a BlockingBatchContext"):
        app.batch_job("x")(one_context)
    with pytest.raises(ConfigurationError, match="nothing passes 'dry_run'"):
        app.batch_job("x")(keyword)


async def test_a_batch_class_validates_each_payload_by_its_declared_model(app: Backstay) -> None:
    @app.batch_job("x", max_wait=0)
    class Sync:
        @classmethod
        def payload_model(cls) -> type[BaseModel]:
            return User

        async def handle(self, payloads: list[BaseModel], ctx: BatchContext) -> list[Any]:
            return [payload.user_id for payload in payloads if isinstance(payload, User)]

    async with app, app.worker():
        assert await (await app.submit("x", {"user_id": 3})).result(timeout=30) == 3
        with pytest.raises(InvalidPayload, match="user_id"):
            await app.submit("x", {})


def test_a_join_is_read_with_the_same_care(app: Backstay) -> None:
    @app.job("x")
    async def analysis(payload: User, ctx: Context) -> None: ...

    async def optioned(payload: User, dry_run: bool = False) -> None: ...

    async def report(title: str, payload: User, ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match="'dry_run' does not look like one"):
        analysis.join(optioned)
    analysis.join(functools.partial(report, "Weekly"))
    assert analysis.join_of(None) == "report"
