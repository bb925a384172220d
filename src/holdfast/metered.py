"""A validator of JSON Schema that comes to an end: parts that refer to one another can double the work with each step
down, so that a few lines would keep a process busy for ever. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import cache
from itertools import islice
from typing import Any

import msgspec

from holdfast.limits import SCHEMA_STEPS_MAX

MESSAGE_MAX = 120
_PER_STEP = 8  # names or values of a keyword that are looked at in the time of a step
_CHARACTERS_PER_STEP = 64  # of a message, which begins with the whole value
_REFERENCE_STEPS = 4  # about what it takes to follow one, …
_ERROR_STEPS = 4  # … and to make one of these
_ERRORS_MAX = 1_000  # more are of no use to anybody

Keyword = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
_left: ContextVar[list[int]] = ContextVar("holdfast_schema_steps")


class TooManySteps(Exception):
    """The payload cannot be checked within SCHEMA_STEPS_MAX."""


def errors(schema: Any, payload: Any) -> list[Any]:
    """What does not fit. TooManySteps where that takes too long to tell."""
    token = _left.set([SCHEMA_STEPS_MAX])
    try:
        return list(islice(schema.iter_errors(payload), _ERRORS_MAX))
    finally:
        _left.reset(token)


@cache
def validator() -> Any:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # 40 ms and some megabytes
    from jsonschema.validators import extend  # type: ignore[import-untyped]

    keywords = {**Draft202012Validator.VALIDATORS, "uniqueItems": _unique}
    return extend(Draft202012Validator, {name: _metered(name, keyword) for name, keyword in keywords.items()})


def end_of(message: str) -> str:
    """A message begins with the value, however long that is, and ends with what is wrong with it."""
    return message if len(message) <= MESSAGE_MAX else f"… {message[-MESSAGE_MAX:]}"


def _metered(name: str, keyword: Keyword) -> Keyword:
    steps = _REFERENCE_STEPS if name in ("$ref", "$dynamicRef") else 1

    def metered(checker: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _spend(steps + (len(value) // _PER_STEP if isinstance(value, list | dict) else 0))
        for error in keyword(checker, value, instance, schema) or ():
            _spend(_ERROR_STEPS + len(error.message) // _CHARACTERS_PER_STEP)
            error.message = end_of(error.message)  # thousands of whole payloads do not fit into memory
            yield error

    return metered


def _spend(steps: int) -> None:
    left = _left.get()
    left[0] -= steps
    if left[0] < 0:
        raise TooManySteps


def _unique(checker: Any, wanted: Any, instance: Any, _: Any) -> Iterator[Any]:
    """By their text: comparing each with each takes minutes for a payload of full size."""
    from jsonschema import ValidationError

    if wanted and checker.is_type(instance, "array"):
        texts = {msgspec.json.encode(each, order="sorted") for each in instance}
        if len(texts) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")
