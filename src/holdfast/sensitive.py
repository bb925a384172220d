"""What of a payload is nobody's to read: fields that its schema marks, shown as dots. Pure.

A field is marked by pydantic's SecretStr (format "password", writeOnly) or by json_schema_extra={"sensitive": True}.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

MASK = "•••"
_DEPTH_MAX = 64  # of a document that is stored; beyond it nothing can be
_ALTERNATIVES_MAX = 200  # of one place: references within references multiply


def masked(schema: str | None, value: Any) -> Any:
    """The same with every marked field covered. What only one of several alternatives marks is covered too."""
    document = _document(schema) if schema else None
    return value if document is None else _masked(document, [document], value, _DEPTH_MAX)


def has_marks(schema: str | None) -> bool:
    """Whether a schema could mark anything at all; most do not."""
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
    """Everything that is said about one place: the parts of unions, and what references name, each once."""
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
