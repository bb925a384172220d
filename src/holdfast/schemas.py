"""Checking a payload against the stored JSON Schema of a type whose code is not here. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from holdfast import metered
from holdfast.errors import InvalidPayload
from holdfast.metered import end_of

# Left to the handler's own model: patterns, whose expressions are not Python's, and some of which would take for ever;
# and what asks which other parts have looked at. $schema would choose a validator that does not count its steps.
_LEFT_OUT = frozenset({"patternProperties", "unevaluatedProperties", "unevaluatedItems"})
_LEFT_OUT_TEXTS = frozenset({"pattern", "$schema"})


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
    try:
        found = metered.errors(_validator(schema), payload)
    except (metered.TooManySteps, RecursionError):
        return [((), "it has too many parts, or too many ways to be read, to be checked against the announced schema")]
    except Exception as error:  # whatever a schema that was stored unchecked makes of the validator
        why = (
            f"the schema announced for the type is broken ({type(error).__name__}): its worker has to announce another"
        )
        return [((), why)]
    found.sort(key=lambda each: [str(part) for part in each.path])
    return [(tuple(each.absolute_path), _says(each)) for each in found]


def as_used(schema: Any) -> Any:
    """A schema without what is not looked at here."""
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
    """What fields of a payload are that were left out, as far as the schema tells."""
    found = {} if schema is None else properties(msgspec.json.decode(schema)) or {}
    return {name: part["default"] for name, part in found.items() if isinstance(part, dict) and "default" in part}


def properties(schema: Any) -> dict[str, Any] | None:
    """The fields of what a schema describes; None where it is not an object of known fields."""
    if isinstance(schema, dict) and str(named := schema.get("$ref", "")).startswith("#/$defs/"):
        schema = schema.get("$defs", {}).get(named.removeprefix("#/$defs/"), {})
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else None


def _says(problem: Any) -> str:
    """What is wrong; of several ways to be right, why it is none of them."""
    if not problem.context:
        return end_of(problem.message)
    each = (f"{'.'.join(map(str, sub.relative_path))} {end_of(sub.message)}".strip() for sub in problem.context[:5])
    return " and ".join(dict.fromkeys(each))


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    return metered.validator()(as_used(msgspec.json.decode(schema)))
