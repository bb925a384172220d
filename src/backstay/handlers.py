"""Handlers: a function, the model of its payload, and its options; batch handlers too."""

from __future__ import annotations

import collections.abc
import inspect
import logging
import sys
import typing
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

import pydantic
import pydantic_core
from pydantic_core import PydanticSerializationError

from backstay import codec, limits
from backstay.backoff import Backoff
from backstay.clock import MICROS, Instant, micros
from backstay.core import admission, payload_schema
from backstay.core.checks import (
    check_job_type,
    check_max_attempts,
    check_name,
    check_payload_size,
    check_priority,
    check_text,
    check_timeout,
)
from backstay.core.records import JobType, Rate
from backstay.errors import ConfigurationError, InvalidOption, InvalidPayload
from backstay.observers import Observers
from backstay.ops import retention as retention_policy
from backstay.ops.retention import Retention

Isolation = Literal["async", "thread", "process"]
Upcast = Callable[[Any, int], Any]  # converts an older payload (decoded JSON, version) to what the model reads now
P = TypeVar("P")
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


class JobHandler(Generic[P]):
    """A handler as a class: `class Sync(JobHandler[Payload]): async def handle(self, payload, ctx): …`"""

    def handle(self, payload: P, ctx: Any) -> Any:
        """Run the job. Override this; it may be `async def` or `def`."""
        raise TypeError(f"{type(self).__name__} has no handle(self, payload, ctx)")


class HandlerOptions(TypedDict, total=False):
    """The keyword options of @app.job; the defaults are those of Handler."""

    queue: str
    priority: int | str
    max_attempts: int
    timeout: float | timedelta
    backoff: Backoff | None
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


class Handler:
    """A registered handler. Calling it calls the function, so that it can be tested directly."""

    contexts = ("Context", "BlockingContext")  # the context of an `async def`, and of a `def`
    said_of_many = ""
    observers: Observers | None = None  # the observers of its app, for a child process that runs it

    def __init__(
        self,
        name: str,
        target: Callable[..., Any] | type[JobHandler[Any]],
        *,
        queue: str = "default",
        priority: int | str = limits.PRIORITY,
        max_attempts: int = limits.MAX_ATTEMPTS,
        timeout: float | timedelta = limits.TIMEOUT_SECONDS,
        backoff: Backoff | None = None,
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
    ) -> None:
        self.name = check_job_type(name)
        self.target = target
        self.function: Callable[..., Any] = _function(target)
        self.module, self.qualname = target.__module__, target.__qualname__
        self.queue = check_name(queue, "queue")
        self.priority = check_priority(priority)
        self.max_attempts = check_max_attempts(max_attempts)
        self.timeout_micros = check_timeout(timeout)
        self.backoff = _check_backoff(backoff)
        self.concurrency = _check_limit(concurrency, "concurrency")
        self.global_concurrency = _check_limit(global_concurrency, "global_concurrency")
        self.rate = admission.parse(rate)
        self.keep = retention_policy.of(retention)
        self.version = _check_version(version)
        self.upcast = _check_upcast(upcast)
        self.is_async = inspect.iscoroutinefunction(self.function)
        self.isolation: Isolation = isolation or ("async" if self.is_async else "thread")
        if self.isolation not in ("async", "thread", "process"):
            raise ConfigurationError(f'isolation={isolation!r}: choose "async", "thread" or "process"')
        if self.isolation == "async" and not self.is_async:
            raise ConfigurationError(f'{name}: isolation="async" needs an `async def`; a `def` runs in a thread')
        if self.isolation == "thread" and self.is_async:
            raise ConfigurationError(f'{name}: isolation="thread" needs a plain `def`')
        annotation, self.takes_context = _signature(self, self.function)
        self.annotation = annotation = self._of_one(annotation)  # of the payload
        self.adapter = _adapter(self.name, annotation)
        self._validate = self.adapter.validator.validate_python
        self._validate_json = self.adapter.validator.validate_json
        self._may_repeat_names = not (inspect.isclass(annotation) and issubclass(annotation, pydantic.BaseModel))
        self._to_json = self.adapter.serializer.to_json
        self.reuse_by = _check_reuse_by(self, annotation, reuse_by)
        self.code_version = check_text("code_version", code_version or None, limits.NAME_LENGTH_MAX) or ""
        self.results = tuple(results or ())
        self.joins: dict[str, tuple[Callable[..., Any], bool]] = {}
        self.registered_in = _calling_module()
        _registered[self.name, self.module, self.qualname] = self
        self.__doc__ = target.__doc__
        self.__name__ = getattr(target, "__name__", name)

    def _of_one(self, annotation: Any) -> Any:
        """Return the type of one job's payload, from the annotation of the function's first parameter."""
        return annotation

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def join(self, target: Callable[..., Any] | str) -> Any:
        """Register a function of (payload, ctx) with `@analysis.join`: it runs, instead of the handler from its top,
        when the children that `ctx.wait_for_children()` waited for have ended."""
        if isinstance(target, str):
            return lambda function: self._add_join(check_name(target, "join"), function)
        return self._add_join(target.__name__, target)

    def _add_join(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function) is not self.is_async:
            kind = "an `async def`" if self.is_async else "a plain `def`"
            raise ConfigurationError(f"{self.name}: its join {name!r} must be {kind}, as the handler is")
        if name in self.joins:
            raise ConfigurationError(f"{self.name} already has a join {name!r}")
        self.joins[name] = function, _signature(self, function)[1]
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
            return self.function, self.takes_context
        if join not in self.joins:
            known = ", ".join(self.joins) or "none"
            raise ConfigurationError(
                f"{self.name} has no join {join!r}, which this job needs to continue (here: {known}): is this older"
                " code?"
            )
        return self.joins[join]

    def __repr__(self) -> str:
        return f"<Handler {self.name} ({self.module}.{self.qualname})>"

    def encode(self, payload: Any) -> str:
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
        return text if len(raw) <= limits.PAYLOAD_BYTES_MAX else check_payload_size(text)

    def _with_secrets(self, value: Any) -> bytes:
        """Write secrets in plain text: Pydantic writes a SecretStr as asterisks, and the handler would receive those.
        Secrets are masked only for display: see core/payload_schema.py."""
        return pydantic_core.to_json(_uncovered(self.adapter.dump_python(value, by_alias=True, warnings=False)))

    def decode(self, payload: str, version: int | None = None) -> Any:
        """Return a stored payload as the handler's model; it may come from an older release or from SQL."""
        try:
            if version is not None and version != self.version:
                return self._decode_other(payload, version)
            return self._validate_json(payload)
        except pydantic.ValidationError as error:
            raise self._misfit(error) from None

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
        except (pydantic.errors.PydanticInvalidForJsonSchema, pydantic.errors.PydanticUserError):
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
            backoff=(self.backoff.base, self.backoff.factor, self.backoff.max, self.backoff.jitter),
        )


def _function(target: Callable[..., Any] | type[JobHandler[Any]]) -> Callable[..., Any]:
    if not inspect.isclass(target):
        return target
    function: Callable[..., Any] | None = getattr(target(), "handle", None)
    if function is None:
        raise ConfigurationError(f"{target.__name__} has no handle(self, payload, ctx)")
    return function


def _signature(handler: Handler, function: Callable[..., Any]) -> tuple[Any, bool]:
    """Return the payload's annotation, and whether the function takes a context."""
    try:
        parameters = [
            each
            for each in inspect.signature(function).parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        raise ConfigurationError(f"{handler.name}: {function!r} is not a function") from None
    if not parameters:
        raise ConfigurationError(f"{handler.name}: the handler takes no payload; write def f(payload, ctx)")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigurationError(f"{handler.name}: an annotation cannot be resolved: {error}") from None
    required = [each for each in parameters if each.default is each.empty]
    if len(required) > 2:
        raise ConfigurationError(
            f"{handler.name}: a handler takes (payload) or (payload, ctx), not {len(required)} arguments"
        )
    annotation = hints.get(parameters[0].name, Any)
    if _is_context(annotation):
        raise ConfigurationError(f"{handler.name}: the payload comes first, then the context: write (payload, ctx)")
    if len(parameters) > 1:
        _check_context(handler, hints.get(parameters[1].name))
    if annotation is Any or isinstance(annotation, TypeVar):
        annotation = _generic_payload(handler.target) or Any
    return annotation, len(parameters) > 1


def _is_context(annotation: Any) -> bool:
    name = getattr(annotation, "__name__", "")
    return name in ("Context", "BlockingContext", "BatchContext", "BlockingBatchContext")


def _check_context(handler: Handler, annotation: Any) -> None:
    wanted = handler.contexts[0 if handler.is_async else 1]
    if _is_context(annotation) and annotation.__name__ != wanted:
        kind = ("an `async def`" if handler.is_async else "a `def`") + handler.said_of_many
        raise ConfigurationError(f"{handler.name}: {kind} gets a {wanted}, not a {annotation.__name__}")


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


def _generic_payload(target: Any) -> Any:
    for base in getattr(target, "__orig_bases__", ()):
        if typing.get_origin(base) is JobHandler:
            return typing.get_args(base)[0]
    return None


def explain_validation(error: pydantic.ValidationError) -> str:
    problems = [
        f"{'.'.join(str(part) for part in problem['loc']) or 'payload'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)[:5]
    ]
    more = error.error_count() - len(problems)
    return "; ".join(problems) + (f"; and {more} more" if more > 0 else "")


def _check_backoff(backoff: Backoff | None) -> Backoff:
    if backoff is not None and not isinstance(backoff, Backoff):
        raise InvalidOption(f"backoff={backoff!r}: write backoff=Backoff(base=5)")
    return backoff or Backoff()


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


class BatchHandler(Handler):
    """A handler that takes a list of payloads. Its `concurrency` counts calls; each job has its own attempts and
    outcome."""

    contexts = ("BatchContext", "BlockingBatchContext")
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
