"""Handlers: a function, the model of its payload, and its options; batch handlers too."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import logging
import sys
import types
import typing
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, Unpack, cast

import pydantic
import pydantic_core
from pydantic_core import PydanticSerializationError
from typing_extensions import TypeVar

from backstay import codec, encryption, limits
from backstay.backoff import Backoff
from backstay.clock import MICROS, Instant, micros
from backstay.core import admission, derivation, payload_schema, sensitive
from backstay.core.checks import (
    check_job_type,
    check_max_attempts,
    check_name,
    check_payload_size,
    check_priority,
    check_text,
    check_timeout,
)
from backstay.core.derivation import Derivation, PriorityBy
from backstay.core.records import FOREVER, JobType, Rate
from backstay.core.schedules import TimingOptions
from backstay.errors import ConfigurationError, InvalidOption, InvalidPayload, InvalidResult
from backstay.failure_rules import BackoffFunction, Exceptions, rules_of
from backstay.lifespan import Lifespans
from backstay.middleware import Layer, Middleware, checked, wrapped
from backstay.observers import Observers
from backstay.ops import retention as retention_policy
from backstay.ops.retention import Retention

if TYPE_CHECKING:
    from backstay.job import JobHandle
    from backstay.options import SubmitOptions

Isolation = Literal["async", "thread", "process"]
Derive = Callable[[Any], Any]  # computes an option from the payload
Upcast = Callable[[Any, int], Any]  # converts an older payload (decoded JSON, version) to what the model reads now
P = TypeVar("P", default=Any)  # of a payload
R = TypeVar("R", default=Any)  # of a result
_PLACES_MAX = 20  # mistakes that an error lists; a payload can have as many as it has fields

_STARS = b"**********"  # how pydantic writes a secret

# Every handler of this process, for a child process that is told which one to run.
_registered: weakref.WeakValueDictionary[tuple[str, str, str], Handler] = weakref.WeakValueDictionary()


def registered(name: str, module: str, qualname: str) -> Handler | None:
    return _registered.get((name, module, qualname))


def _calling_module() -> str:
    """Return the module that registers the handler: the first frame outside Backstay."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "backstay":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


class JobHandler(Generic[P, R]):
    """A handler as a class: `class Sync(JobHandler[Payload, Report]): async def handle(self, payload, ctx): …`. The
    type of its result may be left out."""

    def handle(self, payload: P, ctx: Any) -> R | Awaitable[R]:
        """Run the job. Override this; it may be `async def` or `def`."""
        raise TypeError(f"{type(self).__name__} has no handle(self, payload, ctx)")

    if TYPE_CHECKING:
        # `@app.job` on a class makes it a handler. mypy, which ignores what a decorator of a class returns, reads this.
        @classmethod
        async def submit(cls, payload: P, **options: Unpack[SubmitOptions]) -> JobHandle[R]:
            """Store a job of this type; see Backstay.submit."""
            ...


class HandlerOptions(TypedDict, total=False):
    """The keyword options of @app.job; the defaults are those of Handler."""

    queue: str
    priority: int | str | PriorityBy | Derive
    max_attempts: int
    timeout: float | timedelta
    backoff: Backoff | BackoffFunction | None
    retry_on: Exceptions | None
    discard_on: Exceptions | None
    concurrency: int | None
    global_concurrency: int | None
    isolation: Isolation | None
    rate: str | Rate | None
    retention: Retention | float | timedelta | None
    version: int
    upcast: Upcast | None
    reuse_by: Sequence[str] | None
    code_version: str
    results: Sequence[type[Any]] | None
    subject: str | Derive | None
    content_hash: str | Derive | None
    reuse: bool | float | timedelta
    dedup_key: str | Derive | None
    dedup_by: Sequence[str] | None
    dedup_for: str | float | timedelta
    dedup_per: str | None
    dedup: str
    debounce_max: float | timedelta | None
    middleware: Sequence[Middleware] | None


class JobOptions(HandlerOptions, TimingOptions, total=False):
    """The keyword options of @app.job: those of its handler, and those of a schedule with the name of its type."""

    cron: str
    cron_payload: Any


class HandlerRef(Protocol[P, R]):
    """What a job can be submitted to: a handler, or an object that represents one."""

    @property
    def handler(self) -> Handler[P, R]:
        """The handler itself."""
        ...


class Handler(Generic[P, R]):
    """A registered handler. Calling it calls the function, so that it can be tested directly."""

    contexts = ("Context", "BlockingContext")  # the context of an `async def`, and of a `def`
    payload_word = "payload"  # in errors
    said_of_many = ""
    observers: Observers | None = None  # of its app, as the next, for a child process that runs it
    lifespans: Lifespans | None = None
    factory: str | None = None  # "module:create_app", if a function made its app

    def __init__(
        self,
        name: str,
        target: Callable[..., Any] | type[JobHandler[Any]],
        *,
        queue: str = "default",
        priority: int | str | PriorityBy | Derive = limits.PRIORITY,
        max_attempts: int = limits.MAX_ATTEMPTS,
        timeout: float | timedelta = limits.TIMEOUT_SECONDS,
        backoff: Backoff | BackoffFunction | None = None,
        retry_on: Exceptions | None = None,
        discard_on: Exceptions | None = None,
        concurrency: int | None = None,
        global_concurrency: int | None = None,
        isolation: Isolation | None = None,
        rate: str | Rate | None = None,
        retention: Retention | float | timedelta | None = None,
        version: int = 1,
        upcast: Upcast | None = None,
        reuse_by: Sequence[str] | None = None,
        code_version: str = "",
        results: Sequence[type[Any]] | None = None,
        subject: str | Derive | None = None,
        content_hash: str | Derive | None = None,
        reuse: bool | float | timedelta = False,
        dedup_key: str | Derive | None = None,
        dedup_by: Sequence[str] | None = None,
        dedup_for: str | float | timedelta = "active",
        dedup_per: str | None = None,
        dedup: str = "return",
        debounce_max: float | timedelta | None = None,
        middleware: Sequence[Middleware] | None = None,
    ) -> None:
        self.name = check_job_type(name)
        self.target = target
        owner, self.function = _function(self, target)
        named = _named(target)
        self.module, self.qualname = named.__module__, named.__qualname__
        self.queue = check_name(queue, "queue")
        fixed = (
            priority.otherwise
            if isinstance(priority, PriorityBy)
            else limits.PRIORITY
            if callable(priority)
            else priority
        )
        self.priority = check_priority(fixed)
        self.max_attempts = check_max_attempts(max_attempts)
        self.timeout_micros = check_timeout(timeout)
        self.backoff = _check_backoff(backoff)
        self.rules = rules_of(name, retry_on, discard_on, backoff)
        self.concurrency = _check_limit(concurrency, "concurrency")
        self.global_concurrency = _check_limit(global_concurrency, "global_concurrency")
        self.rate = admission.parse(rate)
        self.keep = retention_policy.of(retention)
        self.version = _check_version(version)
        self.upcast = _check_upcast(upcast)
        self.is_async = is_async(self.function)
        self.isolation: Isolation = isolation or ("async" if self.is_async else "thread")
        if self.isolation not in ("async", "thread", "process"):
            raise ConfigurationError(f'isolation={isolation!r}: choose "async", "thread" or "process"')
        if self.isolation == "async" and not self.is_async:
            raise ConfigurationError(f'{name}: isolation="async" needs an `async def`; a `def` runs in a thread')
        if self.isolation == "thread" and self.is_async:
            raise ConfigurationError(f'{name}: isolation="thread" needs a plain `def`')
        annotation, returned, self.takes_context = _signature(self, self.function)
        self.returns = self._of_one_result(returned)  # the type of one job's result; Any if none is declared
        self.annotation = annotation = _model(self, owner, self._of_one(annotation))  # of the payload
        self.adapter = _adapter(self.name, annotation)
        self._validate = self.adapter.validator.validate_python
        self._validate_json = self.adapter.validator.validate_json
        self._may_repeat_names = not (inspect.isclass(annotation) and issubclass(annotation, pydantic.BaseModel))
        self._to_json = self.adapter.serializer.to_json
        self.reuse_by = _check_reuse_by(self, annotation, reuse_by)
        self.code_version = check_text("code_version", code_version or None, limits.NAME_LENGTH_MAX) or ""
        self.results = tuple(results or ())
        sources = {"subject": subject, "content_hash": content_hash, "dedup_key": dedup_key, "priority": priority}
        self.functions = {each: source for each, source in sources.items() if callable(source)}
        self.derivation = _derivation(self, sources, reuse, dedup_by, dedup_for, dedup_per, dedup, debounce_max)
        if self.reuse_by or self.derivation is not None:
            self._refuse_encrypted_sources()
        self.marked: tuple[str, ...] = ()  # sensitive fields that earlier code or other workers have announced
        self.joins: dict[str, tuple[Callable[..., Any], bool]] = {}
        self._layers: tuple[Layer, ...] = ()
        self._own_layers = self._checked_middleware(middleware or ())
        self.wrap(())
        self.registered_in = _calling_module()
        _registered[self.name, self.module, self.qualname] = self
        self.__doc__ = named.__doc__
        self.__name__ = getattr(target, "__name__", name)

    def _of_one(self, annotation: Any) -> Any:
        """Return the type of one job's payload, from the annotation of the function's first parameter."""
        return annotation

    def _of_one_result(self, annotation: Any) -> Any:
        """Return the type of one job's result, from what the function is declared to return."""
        return annotation

    @property
    def handler(self) -> Handler[P, R]:
        """This handler: what represents a handler has it as its `handler`."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now."""
        return self.function(*args, **kwargs)

    def join(self, target: Callable[..., Any] | str) -> Any:
        """Register a function of (payload, ctx) with `@analysis.join`: it runs, instead of the handler from its top,
        when the children that `ctx.wait_for_children()` waited for have ended."""
        if isinstance(target, str):
            return lambda function: self._add_join(check_name(target, "join"), function)
        return self._add_join(_named(target).__name__, target)

    def _add_join(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if is_async(function) is not self.is_async:
            kind = "an `async def`" if self.is_async else "a plain `def`"
            raise ConfigurationError(f"{self.name}: its join {name!r} must be {kind}, as the handler is")
        if name in self.joins:
            raise ConfigurationError(f"{self.name} already has a join {name!r}")
        _, returned, takes_context = _signature(self, function)
        self.joins[name] = function, takes_context
        # A job that runs a join ends with what that returns; nothing says later which of the two it was.
        self.returns = Any if Any in (returned, self.returns) else typing.Union[self.returns, returned]  # noqa: UP007
        return function

    def join_of(self, asked: str | None) -> str | None:
        """Return the name of the join that runs after a wait: the requested one, or the only one."""
        if asked is None:
            if len(self.joins) > 1:
                raise ConfigurationError(
                    f"{self.name} has the joins {', '.join(self.joins)}: name one of them, wait_for_children(join=…)"
                )
            return next(iter(self.joins), None)
        if asked not in self.joins:
            raise ConfigurationError(f"{self.name} has no join {asked!r}: register it with @{self.__name__}.join")
        return asked

    def entry(self, join: str | None) -> tuple[Callable[..., Any], bool]:
        """Return what to call, and whether it takes a context: the handler, or the join that runs after a wait."""
        if join is None:
            return self._entry
        if join not in self.joins:
            known = ", ".join(self.joins) or "none"
            raise ConfigurationError(
                f"{self.name} has no join {join!r}, which this job needs to continue (here: {known}): is this older"
                " code?"
            )
        return self._wrapped(self.joins[join])

    # Middleware

    def wrap(self, outer: Sequence[Layer]) -> None:
        """Run inside the middleware of the app, and inside its own. What a worker calls is made here, so that a handler
        without middleware pays nothing for it."""
        self._layers = (*outer, *self._own_layers)
        self._entry = self._wrapped((self.function, self.takes_context))

    def check_middleware(self, layers: Sequence[Layer]) -> None:
        """Raise ConfigurationError if this middleware cannot wrap this handler."""
        self._checked_middleware(layers)

    def _wrapped(self, entry: tuple[Callable[..., Any], bool]) -> tuple[Callable[..., Any], bool]:
        return (wrapped(entry, self._layers, is_async=self.is_async), True) if self._layers else entry

    def _checked_middleware(self, middleware: Sequence[Middleware | Layer]) -> tuple[Layer, ...]:
        if callable(middleware):
            raise ConfigurationError(f"{self.name}: middleware={middleware!r:.80}: give a list of functions")
        return checked(middleware, job_type=self.name, is_async=self.is_async, fits=self._wrong_context)

    def _wrong_context(self, annotation: Any) -> str | None:
        """Return what is wrong with the annotation of a context, if anything."""
        contexts, wanted = contexts_of(annotation), self.contexts[0 if self.is_async else 1]
        if not contexts or wanted in contexts:
            return None
        kind = ("an `async def`" if self.is_async else "a `def`") + self.said_of_many
        return f"{kind} gets a {wanted}, not a {shown(annotation)}"

    def __repr__(self) -> str:
        return f"<Handler {self.name} ({self.module}.{self.qualname})>"

    def encode(self, payload: P) -> str:
        """Validate a payload and return it as the JSON to store."""
        try:
            value = self._validate(payload)
            raw = self._to_json(value, by_alias=True, warnings=False)  # the same validation as before a run
            if _STARS in raw:
                raw = self._with_secrets(value)
        except pydantic.ValidationError as error:
            raise self._misfit(error) from None
        except (PydanticSerializationError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidPayload(f"payload of {self.name} is not JSON: {str(error)[:300]}") from None
        if self._may_repeat_names and codec.may_repeat_names(value, raw):
            codec.inspect(raw, "payload")
        if b"null" in raw and codec.has_nan(self.adapter.dump_python(value, warnings=False)):
            raise InvalidPayload(f"payload of {self.name}: NaN and infinity are not JSON")
        text = codec.checked(raw, "payload")
        if self.encrypted:
            return check_payload_size(encryption.encrypted(text, self.encrypted, self.name, encryption.PAYLOAD))
        return text if len(raw) <= limits.PAYLOAD_BYTES_MAX else check_payload_size(text)

    def encode_many(self, payloads: Iterable[Any]) -> list[str] | None:
        """Return what `encode` returns for each, in half the time; None if one of them is refused or needs a closer
        look."""
        if self._may_repeat_names or self.encrypted:
            return None
        try:
            values = list(map(self._validate, payloads))
            raws = [self._to_json(value, by_alias=True, warnings=False) for value in values]
        except Exception:  # `encode` raises it again, for the payload that is refused
            return None
        if max(map(len, raws)) > limits.PAYLOAD_BYTES_MAX:
            return None
        for value, raw in zip(values, raws, strict=True):
            if _STARS in raw or (b"null" in raw and codec.has_nan(self.adapter.dump_python(value, warnings=False))):
                return None
        return codec.all_checked(raws)

    def _with_secrets(self, value: Any) -> bytes:
        """Write secrets in plain text: Pydantic writes a SecretStr as asterisks, and the handler would receive those.
        Secrets are masked only for display: see core/payload_schema.py."""
        return pydantic_core.to_json(_uncovered(self.adapter.dump_python(value, by_alias=True, warnings=False)))

    def decode(self, payload: str, version: int | None = None) -> P:
        """Return a stored payload as the handler's model; it may come from an older release or from SQL."""
        if self.encrypted:
            payload = encryption.plain(payload, self.name, encryption.PAYLOAD)
        try:
            if version is not None and version != self.version:
                return cast(P, self._decode_other(payload, version))
            return cast(P, self._validate_json(payload))
        except pydantic.ValidationError as error:
            raise self._misfit(error) from None

    def decode_result(self, result: str | None) -> R:
        """Return a stored result as what the handler is declared to return; as plain JSON if that is nothing that
        Pydantic knows."""
        text = "null" if result is None else result
        if self._result_adapter is None:
            return cast(R, codec.decode(text))
        if self.encrypted_result:
            text = encryption.plain(text, self.name, encryption.RESULT)
        try:
            return cast(R, self._result_adapter.validate_json(text))
        except pydantic.ValidationError as error:
            raise InvalidResult(
                f"the result of {self.name} is not what its handler declares: {explain_validation(error, 'result')};"
                " app.result(job_id) returns it as plain JSON"
            ) from None

    def stored_result(self, result: str) -> str:
        """Return the JSON text of a result as it is stored: with its encrypted fields encrypted."""
        if not self.encrypted_result:
            return result
        return encryption.encrypted(result, self.encrypted_result, self.name, encryption.RESULT)

    @functools.cached_property
    def encrypted(self) -> tuple[str, ...]:
        """The paths of the payload's encrypted fields; none for most handlers."""
        return _marked(self.adapter, encryption.WORD)

    @functools.cached_property
    def encrypted_result(self) -> tuple[str, ...]:
        """The paths of the result's encrypted fields."""
        return () if self._result_adapter is None else _marked(self._result_adapter, encryption.WORD)

    @functools.cached_property
    def _result_adapter(self) -> pydantic.TypeAdapter[Any] | None:
        if self.returns in _PLAIN:
            return None
        try:
            return pydantic.TypeAdapter(self.returns)
        except (pydantic.errors.PydanticSchemaGenerationError, pydantic.errors.PydanticUserError):
            return None

    def _misfit(self, error: pydantic.ValidationError) -> InvalidPayload:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        places = [(each["loc"], each["msg"]) for each in found[:_PLACES_MAX]]
        return InvalidPayload(f"payload of {self.name}: {explain_validation(error)}", places=places)

    def _decode_other(self, payload: str, version: int) -> Any:
        if version > self.version:
            raise InvalidPayload(
                f"payload of {self.name} has version {version}; this worker reads up to {self.version}: upgrade it"
            )
        if self.upcast is None:
            return self._validate_json(payload)  # an older payload may match as it is
        try:
            value = self.upcast(codec.decode(payload), version)
        except Exception as error:
            raise InvalidPayload(
                f"payload of {self.name}: upcast from version {version} raised {type(error).__name__}: {error}"
            ) from error
        try:
            text = codec.encode(value)
        except TypeError:
            return self._validate(value)  # the model itself
        return self._validate_json(text)  # validated as JSON: a strict model accepts a date as text only there

    def describe(self, now: Instant) -> JobType:
        try:
            schema = codec.encode(self.adapter.json_schema()).decode()
        except _NO_SCHEMA:
            schema = None
        return JobType(
            job_type=self.name,
            queue=self.queue,
            priority=self.priority,
            max_attempts=self.max_attempts,
            timeout_micros=self.timeout_micros,
            payload_schema=schema,
            version=self.version,
            last_seen=now,
            concurrency_limit=self.global_concurrency,
            rate=self.rate,
            keep=self.keep,
            reuse_by=self.reuse_by,
            code_version=self.code_version,
            result_tables=tuple(
                model.__result_table__.name for model in self.results if model.__result_table__ is not None
            ),
            backoff=self.backoff.stored(),
            sensitive=self.sensitive,
            derivation=self.derivation,
        )

    def computed(self, payload: str, names: Sequence[str]) -> dict[str, Any]:
        """Return the options that functions derive from a stored payload."""
        value = self.decode(payload)
        found = {}
        for name in names:
            try:
                found[name] = self.functions[name](value)
            except Exception as error:
                raise InvalidPayload(
                    f"payload of {self.name}: {name} cannot be computed: {type(error).__name__}: {error}"
                ) from error
        return found

    @functools.cached_property
    def stored_fields(self) -> tuple[dict[str, str] | None, dict[str, Any]]:
        """The fields of the payload with their names in what is stored, None if any name may occur there; and their
        defaults."""
        return _stored_names(self.annotation, self.adapter), _defaults(self.adapter)

    @functools.cached_property
    def sensitive(self) -> tuple[str, ...]:
        """The marks of sensitive fields, under every name that a stored payload can have them. An app without this code
        stores a payload as it was submitted, with any alias that the model reads; this one writes the serialization
        aliases."""
        return _marked(self.adapter, None)

    def _refuse_encrypted_sources(self) -> None:
        """Refuse to derive from an encrypted field what is stored in plain text."""
        sources: dict[str, tuple[str, ...]] = {f"reuse_by={name!r}": (name,) for name in self.reuse_by}
        if self.derivation is not None:
            sources |= dict(derivation.sources(self.derivation))
        for what, path in sources.items():
            if any(sensitive.covers(mark, path) for mark in self.encrypted):
                raise ConfigurationError(
                    f"{self.name}: {what} would store the encrypted field {'.'.join(path)!r} in plain text: derive it"
                    " from another field, or with a function that hashes it with a secret of yours"
                )


_PLAIN = (Any, object, dict, list)  # declared results that decoded JSON is, whatever it contains


# What a worker would call. A function that it would call wrongly is refused when it is registered: a default that
# silently received the context, or a field that a model does not have, would show only in what the job did.


def _named(target: Any) -> Any:
    """Return the function or class that has the name of a target, which may be a partial or a callable object."""
    while isinstance(target, functools.partial):
        target = target.func
    return target if hasattr(target, "__qualname__") else type(target)


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_annotated(function))


def _annotated(function: Callable[..., Any]) -> Any:
    """Return the function whose annotations describe a callable: of a callable object, its `__call__`."""
    named = _named(function)
    return named.__call__ if inspect.isclass(named) else named


def _function(handler: Handler, target: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the function of a target, and the object that it belongs to."""
    if not inspect.isclass(target):
        if not callable(target):
            if callable(found := getattr(target, "handle", None)):  # an object of such a class
                return target, found
            raise ConfigurationError(f"{handler.name}: {target!r:.80} is not a function or a class with handle()")
        return getattr(target, "__self__", target), target
    write = f"write def handle(self, {handler.payload_word}, ctx) in it"
    handle = getattr(target, "handle", None)
    if not callable(handle) or handle is JobHandler.handle:
        raise ConfigurationError(f"{handler.name}: {target.__name__} has no handle(): {write}")
    try:
        owner: Any = target()
    except TypeError as error:
        raise ConfigurationError(
            f"{handler.name}: {target.__name__} cannot be created without arguments ({error}): register the method of"
            f" an object that you have made, as in app.job({handler.name!r})({target.__name__}(…).handle)"
        ) from None
    return owner, owner.handle


def _signature(handler: Handler, function: Callable[..., Any]) -> tuple[Any, Any, bool]:
    """Return the annotations of the payload and of the result, and whether the function takes a context."""
    name, first = handler.name, handler.payload_word
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{name}: the parameters of {function!r:.80} cannot be read: write def f({first}, ctx), or def"
            f" handle(self, {first}, ctx) in a class"
        ) from None
    if any(
        is_generator(_annotated(function)) for is_generator in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    ):
        raise ConfigurationError(f"{name}: the handler has a yield, so that a call of it runs nothing: return a list")
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    _check_others(handler, parameters, positional)
    try:
        hints = typing.get_type_hints(_annotated(function), include_extras=True)
    except NameError as error:
        raise ConfigurationError(f"{name}: an annotation cannot be resolved: {error}") from None
    payload = positional[0]
    annotation = hints.get(payload.name, Any)
    if contexts_of(annotation) or (payload.name not in hints and payload.name.strip("_") in CONTEXT_NAMES):
        raise ConfigurationError(f"{name}: the payload comes first, then the context: write ({first}, ctx)")
    if len(positional) > 1:
        _check_context(handler, positional[1], hints.get(positional[1].name, Any))
    bound = getattr(function, "keywords", {})  # of a partial: those have their values
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.name not in bound and contexts_of(hints.get(each.name, Any)):
            raise ConfigurationError(
                f"{name}: the context is passed by position, so {each.name!r} would never receive it: write"
                f" ({first}, ctx)"
            )
    declared = _generic_arguments(handler.target)
    if annotation is Any or isinstance(annotation, typing.TypeVar):
        annotation = declared[0]
    returned = _returned(hints.get("return", declared[1]))
    return annotation, returned, len(positional) > 1


def _returned(annotation: Any) -> Any:
    """Return what a job's result is, from the annotation of what a call returns: None has a type, a variable has
    not."""
    if isinstance(annotation, typing.TypeVar):
        return Any
    if typing.get_origin(annotation) in (collections.abc.Awaitable, collections.abc.Coroutine):
        return typing.get_args(annotation)[-1]
    return annotation


def _check_others(
    handler: Handler, parameters: Sequence[inspect.Parameter], positional: Sequence[inspect.Parameter]
) -> None:
    """Refuse parameters for which a worker has no value: it calls a handler with (payload) or (payload, ctx)."""
    name, first = handler.name, handler.payload_word
    rest = next((each for each in parameters if each.kind is each.VAR_POSITIONAL), None)
    if rest is not None and len(positional) < 2:
        raise ConfigurationError(
            f"{name}: what *{rest.name} should receive is unclear: write ({first}) or ({first}, ctx); a decorator that"
            " takes *args needs functools.wraps(function)"
        )
    if not positional:
        raise ConfigurationError(f"{name}: the handler takes no payload; write def f({first}, ctx)")
    if positional[0].name in ("self", "cls"):
        raise ConfigurationError(
            f"{name}: the handler is a method without its object: register a class with"
            f" handle(self, {first}, ctx), or the method of an object"
        )
    required = [each for each in positional if each.default is each.empty]
    if len(required) > 2:
        raise ConfigurationError(
            f"{name}: a handler takes ({first}) or ({first}, ctx), not {len(required)} arguments: make"
            f" {', '.join(each.name for each in required[2:])} part of the payload"
        )
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty:
            raise ConfigurationError(
                f"{name}: nothing passes {each.name!r} to the handler, which takes ({first}) or ({first}, ctx): make"
                f" it part of the payload, or give it a default"
            )


_CONTEXTS = frozenset({
    *("Context", "BlockingContext", "BatchContext", "BlockingBatchContext"),
    *("RemoteContext", "BlockingRemoteContext"),
})  # fmt: skip
CONTEXT_NAMES = ("ctx", "context")  # of a parameter that no annotation says more about


def contexts_of(annotation: Any) -> frozenset[str]:
    """Return the names of the context classes in an annotation: it may be optional, name several, or name the type of
    the state, as in `Context[State]`."""
    origin = typing.get_origin(annotation)
    if found := _CONTEXTS.intersection(each.__name__ for each in getattr(origin or annotation, "__mro__", ())):
        return found
    return frozenset().union(*map(contexts_of, typing.get_args(annotation)))


def shown(annotation: Any) -> str:
    """Return an annotation as a message shows it."""
    return getattr(annotation, "__name__", None) or str(annotation)


def wrong_context(name: str, function: Callable[..., Any], annotation: Any) -> None:
    """Refuse the context of the other kind of function."""
    contexts, wanted = contexts_of(annotation), "Context" if is_async(function) else "BlockingContext"
    if contexts and wanted not in contexts:
        kind = "an `async def`" if is_async(function) else "a `def`"
        raise ConfigurationError(f"{name}: {kind} gets a {wanted}, not a {shown(annotation)}")


def _check_context(handler: Handler, parameter: inspect.Parameter, annotation: Any) -> None:
    if (wrong := handler._wrong_context(annotation)) is not None:
        raise ConfigurationError(f"{handler.name}: {wrong}")
    if contexts_of(annotation):
        return
    wanted = handler.contexts[0 if handler.is_async else 1]
    plain = parameter.name.strip("_")
    called_one = not plain or plain.endswith(CONTEXT_NAMES)
    says_nothing = annotation in (Any, object) or isinstance(annotation, typing.TypeVar)
    if called_one and (says_nothing or getattr(annotation, "_is_protocol", False)):
        return
    first, name = handler.payload_word, parameter.name
    alternative = "" if parameter.default is parameter.empty else f", or keyword-only, ({first}, *, {name}=…)"
    raise ConfigurationError(
        f"{handler.name}: the second parameter of a handler receives the context, and {name!r} does not look like one:"
        f" write ({first}, ctx: {wanted}) for the context, and make {name!r} part of the payload{alternative}"
    )


def _model(handler: Handler, owner: Any, annotation: Any) -> Any:
    """Return the type of the payload: the model that the handler's class declares, or the annotation."""
    ask = getattr(owner, "payload_model", None)
    if ask is not None:
        annotation = _declared(handler, ask, annotation)
    if annotation is pydantic.BaseModel:
        raise ConfigurationError(
            f"{handler.name}: BaseModel itself has no fields, so the payload would lose its own: annotate it with your"
            " model, a class that inherits from BaseModel"
        )
    return annotation


def _declared(handler: Handler, ask: Any, annotation: Any) -> Any:
    """Return the model of a class that says it with a method, `payload_model()`."""
    try:
        model = ask if inspect.isclass(ask) else ask()
    except Exception as error:
        raise ConfigurationError(f"{handler.name}: payload_model() raised {type(error).__name__}: {error}") from error
    if not (inspect.isclass(model) and issubclass(model, pydantic.BaseModel)):
        raise ConfigurationError(
            f"{handler.name}: payload_model() returned {model!r:.80}: return the model of the payload, a class that"
            " inherits from BaseModel"
        )
    if annotation is Any or (inspect.isclass(annotation) and issubclass(model, annotation)):
        return model
    raise ConfigurationError(
        f"{handler.name}: payload_model() returns {model.__name__}, but handle() takes {annotation!r}: make them the"
        " same, or leave one out"
    )


def _marked(adapter: pydantic.TypeAdapter[Any], word: str | None) -> tuple[str, ...]:
    """Return the marks of a type (see core/sensitive.py), under every name that a stored document can have them."""
    schemas: list[str] = []
    try:
        for mode in _MODES:
            for by_alias in (True, False):
                schemas.append(codec.encode(adapter.json_schema(by_alias=by_alias, mode=mode)).decode())
                if word is not None and word not in schemas[0]:
                    return ()  # as for most types: the other forms of the schema need not be made
    except _NO_SCHEMA:
        return ()
    marks = [sensitive.marks_of(schema, word) for schema in schemas]
    if not any(marks):
        return ()
    return sensitive.union(*marks, sensitive.renamed(sensitive.union(*marks), _aliases(adapter.core_schema)))


def _adapter(name: str, annotation: Any) -> pydantic.TypeAdapter[Any]:
    try:
        return pydantic.TypeAdapter(annotation)
    except pydantic.errors.PydanticSchemaGenerationError:
        raise ConfigurationError(
            f"{name}: its payload is annotated {annotation!r}, for which Pydantic has no model: use a BaseModel"
        ) from None


def _check_reuse_by(handler: Handler, annotation: Any, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the field names as stored in the payload. A payload without a model of fields accepts any."""
    if isinstance(names, str):
        raise ConfigurationError(f'{handler.name}: reuse_by={names!r}: give a list of fields: reuse_by=["{names}"]')
    if not names:
        return ()
    known = _stored_names(annotation, handler.adapter)
    if known is not None and (unknown := [name for name in names if name not in known]):
        raise ConfigurationError(
            f"{handler.name}: reuse_by names {', '.join(map(str, unknown))}, which its payload does not have; it has"
            f" {', '.join(known) or 'no fields'}"
        )
    return tuple(name if known is None else known[name] for name in names)


def _derivation(
    handler: Handler,
    sources: dict[str, Any],
    reuse: bool | float | timedelta,
    dedup_by: Sequence[str] | None,
    dedup_for: str | float | timedelta,
    dedup_per: str | None,
    dedup: str,
    debounce_max: float | timedelta | None,
) -> Derivation | None:
    """Return what the type derives; None if nothing."""
    name = handler.name
    if sources["content_hash"] is not None and handler.reuse_by:
        raise ConfigurationError(f"{name}: reuse_by and content_hash both say what is the same work: give one")
    if reuse is not False and sources["content_hash"] is None and not handler.reuse_by:
        raise ConfigurationError(f"{name}: reuse needs content_hash or reuse_by, to say what is the same work")
    if sources["dedup_key"] is not None and dedup_by is not None:
        raise ConfigurationError(f"{name}: dedup_key and dedup_by both say what is the same submit: give one")
    if sources["dedup_key"] is None and dedup_by is None and (dedup_for != "active" or dedup_per is not None):
        raise ConfigurationError(
            f"{name}: {'dedup_for' if dedup_per is None else 'dedup_per'} needs a dedup_key or dedup_by"
        )
    _check_dedup(handler, sources, dedup_by, dedup, debounce_max)
    if dedup_per not in (None, "day"):
        raise ConfigurationError(f'{name}: dedup_per={dedup_per!r:.40}: use "day"')
    for each, function in handler.functions.items():
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"{name}: {each} has to be a plain function of the payload, not an `async def`")
    if dedup_per is not None and dedup_for == "active":
        dedup_for = "forever"  # one per day, also after it has ended
    found: dict[str, Any] = {}
    stored_names, defaults = handler.stored_fields
    try:
        if dedup_by is not None:
            found["dedup_key"] = derivation.of_fields(name, dedup_by, stored_names, defaults)
        for each in ("subject", "content_hash", "dedup_key"):
            if sources[each] is not None and each not in handler.functions:
                found[each] = derivation.parse(each, sources[each], stored_names, defaults)
        if isinstance(sources["priority"], PriorityBy):
            found["priority"] = derivation.levels(sources["priority"], stored_names, defaults)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    if not found and not handler.functions and not reuse:
        return None
    return Derivation(
        **found,
        in_code=tuple(handler.functions),
        dedup_per=dedup_per,
        dedup=None if dedup == "return" else dedup,
        debounce=None if debounce_max is None else _span("debounce_max", debounce_max),
        dedup_for=_kept(dedup_for),
        reuse=None if reuse is False else derivation.ANY_AGE if reuse is True else _span("reuse", reuse),
    )


def _check_dedup(
    handler: Handler,
    sources: dict[str, Any],
    dedup_by: Sequence[str] | None,
    dedup: str,
    debounce_max: float | timedelta | None,
) -> None:
    name = handler.name
    if dedup not in ("return", "error", "replace"):
        raise ConfigurationError(f'{name}: dedup={dedup!r:.40}: use "return", "error" or "replace"')
    if dedup != "return" and sources["dedup_key"] is None and dedup_by is None:
        raise ConfigurationError(f"{name}: dedup={dedup!r} needs a dedup_key or dedup_by, to say what is a repeat")
    if dedup == "replace" and (sources["content_hash"] is not None or handler.reuse_by):
        raise ConfigurationError(
            f'{name}: dedup="replace" and a content hash exclude each other: the hash stands for the payload, which a'
            " later submit replaces"
        )
    if debounce_max is not None and dedup != "replace":
        raise ConfigurationError(f'{name}: debounce_max needs dedup="replace"')


def _kept(dedup_for: str | float | timedelta) -> int | None:
    match dedup_for:
        case "active":
            return None
        case "forever":
            return FOREVER
        case str():
            raise InvalidOption(f'dedup_for={dedup_for!r:.40}: use "active", "forever", seconds or a timedelta')
        case span:
            return _span("dedup_for", span)


def _span(name: str, span: float | timedelta) -> int:
    try:
        found = micros(span)
    except (TypeError, ValueError, OverflowError):
        found = -1
    if not 0 <= found <= limits.SPAN_SECONDS_MAX * MICROS:
        raise InvalidOption(f"{name}={span!r:.40}: use seconds or a timedelta, up to 100 years")
    return found


def _defaults(adapter: pydantic.TypeAdapter[Any]) -> dict[str, Any]:
    """Return the defaults of payload fields, for submits that no model has completed."""
    try:
        return payload_schema.defaults(codec.encode(adapter.json_schema(mode="serialization")).decode())
    except _NO_SCHEMA:
        return {}


def _stored_names(annotation: Any, adapter: pydantic.TypeAdapter[Any]) -> dict[str, str] | None:
    """Return each field with its name in the stored payload; None if any name may occur there."""
    if inspect.isclass(annotation) and issubclass(annotation, pydantic.BaseModel):
        fields = annotation.model_fields
        return {name: field.serialization_alias or field.alias or name for name, field in fields.items()}
    try:
        found = payload_schema.properties(adapter.json_schema(mode="serialization"))
    except (pydantic.errors.PydanticInvalidForJsonSchema, pydantic.errors.PydanticUserError):
        found = None
    return None if found is None else {name: name for name in found}


_NO_SCHEMA = (pydantic.errors.PydanticInvalidForJsonSchema, pydantic.errors.PydanticUserError)
_MODES: tuple[Literal["validation", "serialization"], ...] = ("validation", "serialization")


def _aliases(schema: Any) -> dict[str, set[tuple[str, ...]]]:
    """Return the other names of every field in a core schema; a name can be a path (AliasPath)."""
    found: dict[str, set[tuple[str, ...]]] = {}
    waiting, seen = [schema], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            fields = part.get("fields")
            if isinstance(fields, dict):
                named = list(fields.items())
            else:
                named = [(each.get("name"), each) for each in fields or () if isinstance(each, dict)]
            for name, field in named:
                if isinstance(name, str) and isinstance(field, dict) and (others := _other_names(field)):
                    found.setdefault(name, set()).update(others)
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part
    return found


def _other_names(field: dict[str, Any]) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for alias in (field.get("validation_alias"), field.get("serialization_alias")):
        if isinstance(alias, str):
            found.add((alias,))
        elif isinstance(alias, list):  # one path, or several
            paths = alias if alias and isinstance(alias[0], list) else [alias]
            # A place counted from the end is any place.
            found.update(
                tuple(sensitive.ANY if str(step).startswith("-") else str(step) for step in path) for path in paths
            )
    return found


def _generic_arguments(target: Any) -> tuple[Any, Any]:
    """Return the types of payload and result that a class declares as `JobHandler[Payload, Result]`."""
    for base in getattr(target, "__orig_bases__", ()):
        if typing.get_origin(base) is JobHandler:
            payload, *result = typing.get_args(base)
            return payload, result[0] if result else Any
    return Any, Any


def explain_validation(error: pydantic.ValidationError, whole: str = "payload") -> str:
    """Return what a value does not match, in a line; `whole` names the value itself."""
    problems = [
        f"{'.'.join(str(part) for part in problem['loc']) or whole}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)[:5]
    ]
    more = error.error_count() - len(problems)
    return "; ".join(problems) + (f"; and {more} more" if more > 0 else "")


def _check_backoff(backoff: Backoff | BackoffFunction | None) -> Backoff:
    """Return the backoff that applies unless a function says otherwise."""
    if isinstance(backoff, Backoff):
        return backoff
    if backoff is not None and not callable(backoff):
        raise InvalidOption(
            f"backoff={backoff!r}: write backoff=Backoff(base=5), or a function of (attempt, exception)"
        )
    return Backoff()


def _check_version(version: int) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 2**31:
        raise InvalidOption(f"version={version!r}: a payload version is an integer of 1 or more")
    return version


def _check_upcast(upcast: Upcast | None) -> Upcast | None:
    if upcast is not None and (not callable(upcast) or inspect.iscoroutinefunction(upcast)):
        raise InvalidOption(f"upcast={upcast!r:.80}: give a plain function that takes (payload, version)")
    return upcast


def _uncovered(value: Any) -> Any:
    match value:
        case pydantic.SecretStr() | pydantic.SecretBytes() | pydantic.Secret():
            return value.get_secret_value()
        case dict():
            return {name: _uncovered(part) for name, part in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_uncovered(part) for part in value]
        case _:
            return value


def _check_limit(limit: int | None, what: str) -> int | None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidOption(f"{what}={limit!r}: use an integer of 1 or more, or leave it out")
    return limit


log = logging.getLogger("backstay")
_LISTS = (list, collections.abc.Sequence)


class BatchOptions(HandlerOptions, total=False):
    """The keyword options of @app.batch_job: those of @app.job, and how jobs are batched."""

    max_size: int
    max_wait: float | timedelta
    same_once: bool


class BatchHandler(Handler[P, R]):
    """A handler that takes a list of payloads. Its `concurrency` counts calls; each job has its own attempts and
    outcome."""

    contexts = ("BatchContext", "BlockingBatchContext")
    payload_word = "payloads"
    said_of_many = " of a batch"

    def __init__(
        self,
        name: str,
        target: Callable[..., Any] | type[JobHandler[Any]],
        *,
        max_size: int = limits.BATCH_SIZE,
        max_wait: float | timedelta = limits.BATCH_WAIT_SECONDS,
        same_once: bool = True,
        **options: Unpack[HandlerOptions],
    ) -> None:
        super().__init__(name, target, **options)
        self.max_size = _check_size(max_size)
        self.max_wait_seconds = _check_wait(max_wait)
        self.same_once = bool(same_once)
        if self.max_attempts == 1:
            log.warning(
                "%s: with max_attempts=1, a worker that dies turns every job of its batch into a dead letter; with 2 or"
                " more, each of them runs again on its own",
                name,
            )

    def join(self, target: Callable[..., Any] | str) -> Any:
        raise ConfigurationError(f"{self.name}: batch jobs cannot wait for children, so it has no join")

    def _of_one(self, annotation: Any) -> Any:
        if annotation is Any:
            return Any
        if annotation in _LISTS:
            return Any
        if typing.get_origin(annotation) not in _LISTS:
            raise ConfigurationError(f"{self.name}: a batch handler takes a list: write payloads: list[Text]")
        return typing.get_args(annotation)[0]

    def _of_one_result(self, annotation: Any) -> Any:
        """Return the type of one answer. An exception among the answers is a failure, not a result."""
        if typing.get_origin(annotation) not in _LISTS:
            return Any
        answer = typing.get_args(annotation)[0]
        if typing.get_origin(answer) not in (typing.Union, types.UnionType):
            return answer
        kinds = [each for each in typing.get_args(answer) if not _is_exception(each)]
        return typing.Union[tuple(kinds)] if kinds else Any  # noqa: UP007


def _is_exception(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, BaseException)


def _check_size(size: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= limits.BATCH_SIZE_MAX:
        raise InvalidOption(f"max_size={size!r}: use 1 to {limits.BATCH_SIZE_MAX:,}")
    return size


def _check_wait(wait: float | timedelta) -> float:
    try:
        span = micros(wait) / MICROS
    except (TypeError, ValueError, OverflowError):
        span = -1.0
    if not 0 <= span <= limits.BATCH_WAIT_SECONDS_MAX:
        raise InvalidOption(
            f"max_wait={wait!r}: use seconds or a timedelta, from 0 to {limits.BATCH_WAIT_SECONDS_MAX:g} s"
        )
    return span
