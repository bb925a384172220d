"""Checking a payload against the stored JSON Schema of a type whose code is not here. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from holdfast.errors import InvalidPayload

_MESSAGE_MAX = 120


def check(job_type: str, schema: str | None, payload: str) -> None:
    """InvalidPayload that names the places which do not fit."""
    if schema is None:
        return
    problems = misfits(schema, msgspec.json.decode(payload))
    if not problems:
        return
    shown = "; ".join(f"{'.'.join(map(str, place)) or 'payload'}: {says}" for place, says in problems[:5])
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    raise InvalidPayload(
        f"payload of {job_type}: {shown}{more} (by the schema that its worker has announced)", places=problems
    )


def misfits(schema: str, payload: Any) -> list[tuple[tuple[str | int, ...], str]]:
    """Each place that does not fit, and what is wrong with it."""
    found = sorted(_validator(schema).iter_errors(payload), key=lambda each: [str(part) for part in each.path])
    return [(tuple(each.absolute_path), _says(each)) for each in found]


@lru_cache(maxsize=256)
def defaults(schema: str | None) -> dict[str, Any]:
    """What fields of a payload are that were left out, as far as the schema tells."""
    found = {} if schema is None else properties(msgspec.json.decode(schema)) or {}
    return {name: part["default"] for name, part in found.items() if isinstance(part, dict) and "default" in part}


def properties(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The fields of what a schema describes; None where it is not an object of known fields."""
    if (named := schema.get("$ref", "")).startswith("#/$defs/"):
        schema = schema.get("$defs", {}).get(named.removeprefix("#/$defs/"), {})
    found = schema.get("properties")
    return found if isinstance(found, dict) else None


def _says(problem: Any) -> str:
    """What is wrong; of several ways to be right, why it is none of them."""
    if not problem.context:
        return _end_of(problem.message)
    each = (f"{'.'.join(map(str, sub.relative_path))} {_end_of(sub.message)}".strip() for sub in problem.context[:5])
    return " and ".join(dict.fromkeys(each))


def _end_of(message: str) -> str:
    """A message begins with the value, however long that is, and ends with what is wrong with it."""
    return message if len(message) <= _MESSAGE_MAX else f"… {message[-_MESSAGE_MAX:]}"


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # 40 ms and some megabytes, needed only here

    return Draft202012Validator(_without_patterns(msgspec.json.decode(schema)))


def _without_patterns(schema: Any) -> Any:
    """Patterns are left to the handler's own model: its expressions are not Python's, and some would take for ever."""
    match schema:
        case dict():
            return {
                name: _without_patterns(part)
                for name, part in schema.items()
                if not (name == "pattern" and isinstance(part, str)) and name != "patternProperties"
            }
        case list():
            return [_without_patterns(part) for part in schema]
        case _:
            return schema
