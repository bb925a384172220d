"""Handlers that are functions of several parameters: the payload has a field for each."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

from backstay.errors import ConfigurationError
from backstay.handlers import CONTEXT_NAMES, contexts_of, is_async, wrong_context


class Parameters:
    """The parameters of a function that are fields of its payload, the model of that payload, and the function that a
    worker calls with (payload, ctx)."""

    def __init__(
        self, name: str, target: Callable[..., Any], fields: Sequence[inspect.Parameter], hints: Mapping[str, Any]
    ) -> None:
        self.target = target
        self.names = tuple(each.name for each in fields)
        self._positional = [each.name for each in fields if each.kind is each.POSITIONAL_OR_KEYWORD]
        self.model = _model(name, fields, hints)
        self.context: inspect.Parameter | None = None

    def given(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a payload from the arguments of a call."""
        if len(args) > len(self._positional):
            raise TypeError(f"{len(args)} arguments; by position it takes {', '.join(self._positional) or 'none'}")
        fields = dict(zip(self._positional, args, strict=False))
        if twice := fields.keys() & named.keys():
            raise TypeError(f"{', '.join(sorted(twice))} given by position and by name")
        return {**fields, **named}

    def function(self) -> Callable[..., Any]:
        """Return the function of (payload, ctx), under the name of the original."""
        target, bound = self.target, self._bound

        async def coroutine(payload: Any, ctx: Any) -> Any:
            args, named = bound(payload, ctx)
            return await target(*args, **named)

        def plain(payload: Any, ctx: Any) -> Any:
            args, named = bound(payload, ctx)
            return target(*args, **named)

        run: Any = coroutine if is_async(target) else plain
        run.__annotations__ = {
            "payload": self.model,
            "return": typing.get_type_hints(target, include_extras=True).get("return", Any),
        }
        for each in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(run, each, getattr(target, each))
        return typing.cast("Callable[..., Any]", run)

    def _bound(self, payload: Any, ctx: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named = {name: getattr(payload, name) for name in self.names}
        if self.context is None:
            return (), named
        if self.context.kind is inspect.Parameter.KEYWORD_ONLY:
            named[self.context.name] = ctx
            return (), named
        return (ctx,), named


def read(name: str, target: Any) -> Parameters | None:
    """Return the parameters of a function whose payload has one field for each; None if it takes its payload as one.

    It is such a function if its context comes first or is keyword-only, if two or more parameters are required, or if
    there are none.
    """
    if not inspect.isfunction(target) or hasattr(target, "__wrapped__"):
        return None
    found = list(inspect.signature(target).parameters.values())
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except NameError:
        return None  # said when the handler is registered
    context = next((each for each in found if _is_context(each, hints)), None)
    fields = [each for each in found if each is not context]
    apart = context is not None and (context.kind is context.KEYWORD_ONLY or (context is found[0] and len(found) > 1))
    required = [each for each in fields if each.default is each.empty]
    if not (apart or (context is None and (len(required) > 1 or not found or _only_keywords(found)))):
        return None
    if not all(_is_field(each, hints) for each in fields):
        if apart:
            raise ConfigurationError(
                f"{name}: with the context first or keyword-only, each other parameter is a field of the payload:"
                " annotate it, and name it instead of *args, **options or a positional-only one"
            )
        return None
    if context is not None:
        wrong_context(name, target, hints.get(context.name, Any))
    parameters = Parameters(name, target, fields, hints)
    parameters.context = context
    return parameters


def _is_context(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    if parameter.name in hints:
        return bool(contexts_of(hints[parameter.name]))
    return parameter.kind is parameter.KEYWORD_ONLY and parameter.name.strip("_") in CONTEXT_NAMES


def _is_field(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    kinds = (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    named_otherwise = parameter.name.strip("_") in (*CONTEXT_NAMES, "self", "cls")
    return parameter.kind in kinds and parameter.name in hints and not named_otherwise


def _only_keywords(found: Sequence[inspect.Parameter]) -> bool:
    return all(each.kind is each.KEYWORD_ONLY for each in found)


def _model(name: str, fields: Sequence[inspect.Parameter], hints: Mapping[str, Any]) -> type[Any]:
    """Return a dataclass of these fields. A dataclass, since the fields of a Pydantic model cannot have some names that
    parameters have: copy, json, schema."""
    made = [(each.name, hints[each.name], _field(each.default)) for each in fields]
    model = dataclasses.make_dataclass(name, made, kw_only=True) if name.isidentifier() else None
    model = model or dataclasses.make_dataclass("Payload", made, kw_only=True)
    model.__pydantic_config__ = pydantic.ConfigDict(extra="forbid", title=name)  # type: ignore[attr-defined]
    return model


def _field(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return dataclasses.field()
    if isinstance(default, list | dict | set):
        return dataclasses.field(default_factory=functools.partial(copy.deepcopy, default))
    return dataclasses.field(default=default)
