"""JSON decoded into the type that a function declares: what a step returns, and what an event carries."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any

import msgspec
import pydantic

from backstay import codec
from backstay.limits import EVENT_SCHEMA_BYTES_MAX

_PLAIN = (Any, object, None)


@functools.lru_cache(maxsize=1_000)
def adapter(kind: Any) -> pydantic.TypeAdapter[Any] | None:
    """Return what decodes JSON into a type; None if it stays plain JSON, or is nothing that Pydantic knows."""
    if kind in _PLAIN:
        return None
    try:
        return pydantic.TypeAdapter(kind)
    except (pydantic.errors.PydanticSchemaGenerationError, pydantic.errors.PydanticUserError):
        return None


def decoded(kind: Any, text: str) -> Any:
    """Return JSON text as a type. Raises pydantic.ValidationError if it does not fit."""
    found = _adapter_of(kind)
    return codec.decode(text) if found is None else found.validate_json(text)


def returned(function: Callable[..., Any]) -> Any:
    """Return the type that a function declares to return; Any if it declares none that can be found."""
    try:
        return typing.get_type_hints(function).get("return", Any)
    except Exception:  # a lambda, a partial, a name that exists only for type checkers
        return Any


def schema_of(kind: Any) -> str | None:
    """Return the JSON Schema of a type, unless it has none or is long."""
    found = _adapter_of(kind)
    if found is None:
        return None
    try:
        text = msgspec.json.encode(found.json_schema()).decode()
    except pydantic.errors.PydanticInvalidForJsonSchema:
        return None
    return text if len(text.encode()) <= EVENT_SCHEMA_BYTES_MAX else None


def _adapter_of(kind: Any) -> pydantic.TypeAdapter[Any] | None:
    try:
        return adapter(kind)
    except TypeError:  # it cannot be hashed
        return adapter.__wrapped__(kind)
