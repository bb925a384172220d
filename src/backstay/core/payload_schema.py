"""JSON Schemas of job types without local code: accept one, and check payloads against it. Pure.

A schema decides how much work every later submit is. So it is bounded in size and depth when it is announced, and each
check is bounded in processor time. This needs a validator that can be stopped between two steps. jsonschema-rs is 600
times as fast but cannot be stopped, and needs days to list the errors in a tree of forty levels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import islice
from typing import Any

import msgspec

from backstay.core import sensitive
from backstay.errors import InvalidPayload
from backstay.limits import SCHEMA_DEPTH_MAX, SCHEMA_PARTS_MAX, SCHEMA_SECONDS_MAX

MESSAGE_MAX = 120
_ERRORS_MAX = 1_000  # a user cannot use more
# Left to the handler's own model: patterns, because their syntax is not Python's and some would never end; and keywords
# that depend on which other parts were evaluated. $schema would select a validator without a time limit.
_LEFT_OUT = frozenset({"patternProperties", "unevaluatedProperties", "unevaluatedItems"})
_LEFT_OUT_TEXTS = frozenset({"pattern", "$schema"})
# Keywords whose subschemas check the same value again.
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})
_REFERENCES = ("$ref", "$dynamicRef")

Keyword = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
_deadline: ContextVar[float] = ContextVar("backstay_schema_deadline")


class _TooLong(Exception):
    """A check did not end within SCHEMA_SECONDS_MAX."""


class _Unusable(Exception):
    """The schema cannot be used; the message says why."""


def check(job_type: str, schema: str | None, payload: str) -> None:
    """Raise InvalidPayload with the places that do not match the schema."""
    if schema is None:
        return
    problems = misfits(schema, msgspec.json.decode(payload))
    if not problems:
        return
    shown = "; ".join(f"{'.'.join(map(str, place)) or 'payload'}: {says}" for place, says in problems[:5])
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    raise InvalidPayload(f"payload of {job_type}: {shown}{more} (by the schema its worker announced)", places=problems)


def misfits(schema: str, payload: Any) -> list[tuple[tuple[str | int, ...], str]]:
    """Return each place that does not match, and the reason."""
    try:
        found = _errors(_validator(schema), payload)
    except (_TooLong, RecursionError):
        return [((), "it is too large or too ambiguous to check against the announced schema")]
    except Exception as error:  # a schema that was stored unchecked can break the validator in any way
        why = f"the schema announced for the type is broken ({type(error).__name__}): its worker must announce another"
        return [((), why)]
    found.sort(key=lambda each: [str(part) for part in each.path])
    masked = sensitive.masked(sensitive.marks_of(schema), payload)
    return [(tuple(each.absolute_path), _says(each, payload, masked)) for each in found]


def as_used(schema: Any) -> Any:
    """Return a schema without the keywords that are ignored here."""
    match schema:
        case dict():
            return {
                name: as_used(part)
                for name, part in schema.items()
                if not (name in _LEFT_OUT_TEXTS and isinstance(part, str)) and name not in _LEFT_OUT
            }
        case list():
            return [as_used(part) for part in schema]
        case _:
            return schema


@lru_cache(maxsize=256)
def defaults(schema: str | None) -> dict[str, Any]:
    """Return the defaults of missing payload fields, as far as the schema has them."""
    found = {} if schema is None else properties(msgspec.json.decode(schema)) or {}
    return {name: part["default"] for name, part in found.items() if isinstance(part, dict) and "default" in part}


def properties(schema: Any) -> dict[str, Any] | None:
    """Return the fields that a schema describes; None if it is not an object with known fields."""
    if isinstance(schema, dict) and str(named := schema.get("$ref", "")).startswith("#/$defs/"):
        schema = schema.get("$defs", {}).get(named.removeprefix("#/$defs/"), {})
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else None


def refusal(schema: dict[str, Any]) -> str | None:
    """Return why a schema from a remote worker cannot be used; None if it can."""
    used = as_used(schema)
    try:
        for error in _errors(_schema_of_schemas(), used):
            where = "/".join(map(str, error.absolute_path)) or "its top"
            return f"it is not a JSON Schema of draft 2020-12, at {where:.200}: {error.message}"
        _Expansion(used).check()
    except _TooLong:
        return "it has too many parts"
    except RecursionError:
        return "it is nested too deep"
    except _Unusable as error:
        return str(error)
    return None


class _Expansion:
    """The size of a schema with each $ref replaced by its target: a few lines can double it again and again."""

    def __init__(self, root: dict[str, Any]) -> None:
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012

        self._root = root
        self._parts_of = DRAFT202012.subresources_of
        self._resolver = Registry[Any]().resolver_with_root(DRAFT202012.create_resource(root))
        self._parts: dict[int, dict[str, Any]] = {}
        self._counts: dict[int, int] = {}
        self._open: set[int] = set()

    def check(self) -> None:
        waiting = [self._root]
        while waiting:
            part = waiting.pop()
            if part is not self._root and isinstance(part.get("$id"), str):
                raise _Unusable("a part of it has an $id: refer to parts by #/$defs/…")
            self._parts[id(part)] = part
            waiting += [each for each in self._parts_of(part) if isinstance(each, dict)]
        for part in self._parts.values():
            self._count(part)

    def _count(self, part: dict[str, Any]) -> int:
        """Return how many schemas check one value. Those of nested values are bounded by the size of the payload."""
        key = id(part)
        if key in self._open:
            raise _Unusable("it refers to itself without an end")
        if len(self._open) >= SCHEMA_DEPTH_MAX:
            raise _Unusable(f"it is more than {SCHEMA_DEPTH_MAX} schemas deep")
        if key not in self._counts:
            self._open.add(key)
            self._counts[key] = 1 + sum(map(self._count, self._in_place(part)))
            self._open.remove(key)
        if self._counts[key] > SCHEMA_PARTS_MAX:
            raise _Unusable(
                f"with each $ref replaced by what it refers to, it has more than {SCHEMA_PARTS_MAX:,} parts"
            )
        return self._counts[key]

    def _in_place(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        found = [*self._parts_of({name: part[name] for name in part if name in _IN_PLACE})]
        found += [self._target(part[name]) for name in _REFERENCES if name in part]
        return [each for each in found if isinstance(each, dict)]

    def _target(self, reference: str) -> Any:
        from referencing.exceptions import Unresolvable

        try:
            found = self._resolver.lookup(reference).contents
        except Unresolvable:
            raise _Unusable(f"it refers to {reference!r:.100}, which is not in it: add that under $defs") from None
        if not isinstance(found, bool) and id(found) not in self._parts:
            raise _Unusable(f"it refers to {reference!r:.100}, which is not a schema")
        return found


def _says(problem: Any, payload: Any, masked: Any) -> str:
    """Return the message of an error; if there are alternatives, why each of them does not match. Messages quote the
    value, so that one of a sensitive field says only which rule it breaks: errors are stored and logged."""
    for step in problem.absolute_path:
        payload, masked = payload[step], masked[step] if isinstance(masked, list | dict) else None
    if payload != masked:
        return f"does not match the {problem.validator!r} of its schema"
    if not problem.context:
        return _end_of(problem.message)
    each = (f"{'.'.join(map(str, sub.relative_path))} {_end_of(sub.message)}".strip() for sub in problem.context[:5])
    return " and ".join(dict.fromkeys(each))


def _end_of(message: str) -> str:
    """Return the end of a message: it begins with the value, which can be long, and ends with the reason."""
    return message if len(message) <= MESSAGE_MAX else f"… {message[-MESSAGE_MAX:]}"


def _errors(validator: Any, value: Any) -> list[Any]:
    """Yield validation errors. _TooLong is measured in processor time of this thread, so that a busy machine does not
    reject more."""
    token = _deadline.set(time.thread_time() + SCHEMA_SECONDS_MAX)
    try:
        return list(islice(validator.iter_errors(value), _ERRORS_MAX))
    finally:
        _deadline.reset(token)


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from referencing import Registry

    # the default would fetch the URL of a reference
    return _validators()(as_used(msgspec.json.decode(schema)), registry=Registry())


@cache
def _schema_of_schemas() -> Any:
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    found = {uri: as_used(REGISTRY.contents(uri)) for uri in REGISTRY if "/draft/2020-12/" in uri}
    registry = Registry[Any]().with_contents(found.items(), default_specification=DRAFT202012)
    return _validators()(found["https://json-schema.org/draft/2020-12/schema"], registry=registry)


@cache
def _validators() -> Any:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # 40 ms and some megabytes
    from jsonschema.validators import extend  # type: ignore[import-untyped]

    keywords = {**Draft202012Validator.VALIDATORS, "uniqueItems": _unique}
    return extend(Draft202012Validator, {name: _timed(keyword) for name, keyword in keywords.items()})


def _timed(keyword: Keyword) -> Keyword:
    def timed(checker: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _check_time()
        for error in keyword(checker, value, instance, schema) or ():
            _check_time()
            error.message = _end_of(error.message)  # thousands of whole payloads do not fit into memory
            yield error

    return timed


def _check_time() -> None:
    if time.thread_time() > _deadline.get():
        raise _TooLong


def _unique(checker: Any, wanted: Any, instance: Any, _: Any) -> Iterator[Any]:
    """Compare items by their text: comparing all pairs takes minutes for a payload of maximum size."""
    from jsonschema import ValidationError

    if wanted and checker.is_type(instance, "array"):
        texts = {msgspec.json.encode(each, order="sorted") for each in instance}
        if len(texts) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")
