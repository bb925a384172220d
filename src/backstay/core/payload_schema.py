"""JSON Schemas of job types without local code: accept one, check payloads against it, mask secrets. Pure.

A schema decides how much work every later submit is. So it is bounded in size and depth when it is announced, and each
check is bounded in processor time. This needs a validator that can be stopped between two steps. jsonschema-rs is 600
times as fast but cannot be stopped, and needs days to list the errors in a tree of forty levels.

A field is sensitive if it is pydantic's SecretStr (format "password", writeOnly) or has json_schema_extra={"sensitive":
True}; it is shown as dots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import islice
from typing import Any

import msgspec

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
    return [(tuple(each.absolute_path), _says(each)) for each in found]


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


def _says(problem: Any) -> str:
    """Return the message of an error; if there are alternatives, why each of them does not match."""
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


MASK = "•••"
_DEPTH_MAX = 64  # levels of a stored document; none can be deeper
_ALTERNATIVES_MAX = 200  # alternatives of one place: nested references multiply


def masked(schema: str | None, value: Any) -> Any:
    """Return the value with every sensitive field masked, including fields that only one of several alternatives
    marks."""
    document = _document(schema) if schema else None
    return value if document is None else _masked(document, [document], value, _DEPTH_MAX)


def has_marks(schema: str | None) -> bool:
    """Return whether a schema has any sensitive field; most have none."""
    return schema is not None and any(word in schema for word in ("sensitive", "writeOnly", "password"))


@lru_cache(maxsize=256)
def _document(schema: str) -> dict[str, Any] | None:
    if not has_marks(schema):
        return None
    try:
        document = msgspec.json.decode(schema)
    except msgspec.DecodeError:
        return None
    return document if isinstance(document, dict) else None


def _masked(document: dict[str, Any], schemas: list[Any], value: Any, depth: int) -> Any:
    said = list(_alternatives(document, schemas))
    if any(map(_is_marked, said)) or depth == 0:
        return None if value is None else MASK
    match value:
        case dict():
            return {
                name: _masked(document, list(_of_name(said, name)), part, depth - 1) for name, part in value.items()
            }
        case list():
            return [
                _masked(document, list(_of_place(said, place)), part, depth - 1) for place, part in enumerate(value)
            ]
        case _:
            return value


def _is_marked(schema: dict[str, Any]) -> bool:
    return schema.get("sensitive") is True or schema.get("writeOnly") is True or schema.get("format") == "password"


def _alternatives(document: dict[str, Any], schemas: list[Any]) -> Iterator[dict[str, Any]]:
    """Return all schemas that apply to one place: the members of unions and the targets of references, each once."""
    waiting, followed, left = list(schemas), set[str](), _ALTERNATIVES_MAX
    while waiting and left:
        schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        left -= 1
        yield schema
        for word in ("anyOf", "oneOf", "allOf"):
            parts = schema.get(word)
            waiting += parts if isinstance(parts, list) else []
        named = schema.get("$ref")
        if isinstance(named, str) and named not in followed:
            followed.add(named)
            waiting.append(_named(document, named))


def _named(document: dict[str, Any], reference: str) -> Any:
    definitions = document.get("$defs")
    return definitions.get(reference.removeprefix("#/$defs/")) if isinstance(definitions, dict) else None


def _of_name(said: list[dict[str, Any]], name: str) -> Iterator[Any]:
    for schema in said:
        properties = schema.get("properties")
        if isinstance(properties, dict) and name in properties:
            yield properties[name]
        else:
            yield schema.get("additionalProperties")


def _of_place(said: list[dict[str, Any]], place: int) -> Iterator[Any]:
    for schema in said:
        first = schema.get("prefixItems")
        yield first[place] if isinstance(first, list) and place < len(first) else schema.get("items")
