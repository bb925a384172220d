"""What the fields of requests are made of, for bodies and parameters alike: each says in the document what is demanded.

A rule that someone else applies, with a better sentence than a model has, stands in the schema alone: NUL is refused
by the gate, a wrong ETag where it is compared.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from holdfast import checks, limits

NAME = r"^[A-Za-z0-9._:-]{1,128}$"
NO_NUL: dict[str, Any] = {"not": {"pattern": r"\x00"}}
NO_OTHERS: dict[str, Any] = {"additionalProperties": False}  # where names have a pattern: one that does not fit
EXAMPLE_ID = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"
_NO_TYPE = {"anyOf": [{"enum": [*sorted(checks.ROUTE_WORDS), ".", ".."]}, {"pattern": f"^{checks.UUID.pattern}$"}]}
_MICROSECOND = 1e-6


def _whole(value: Any) -> Any:
    """In JSON 1.0 is an integer, and some languages have no other way to write it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_whole)
Name = Annotated[str, Field(pattern=NAME)]
NewType = Annotated[str, Field(pattern=NAME, json_schema_extra={"not": _NO_TYPE})]
Text = Annotated[str, Field(min_length=1, max_length=limits.KEY_LENGTH_MAX, json_schema_extra=NO_NUL)]
Word = Annotated[str, Field(min_length=1, max_length=limits.NAME_LENGTH_MAX, json_schema_extra=NO_NUL)]
Tag = Annotated[str, Field(min_length=1, max_length=limits.TAG_LENGTH_MAX, json_schema_extra=NO_NUL)]
Stage = Annotated[str, Field(max_length=limits.STAGE_LENGTH_MAX, json_schema_extra=NO_NUL)]
Reason = Annotated[str, Field(min_length=1, max_length=limits.REASON_LENGTH_MAX, json_schema_extra=NO_NUL)]
Delay = Annotated[float, Field(ge=0, le=limits.DELAY_SECONDS_MAX, allow_inf_nan=False)]
Span = Annotated[float, Field(ge=0, le=limits.SPAN_SECONDS_MAX, allow_inf_nan=False)]
Timeout = Annotated[float, Field(ge=_MICROSECOND, le=limits.TIMEOUT_SECONDS_MAX)]


# Rules between fields. Null is the same as leaving a field out.


def given(**fields: dict[str, Any]) -> dict[str, Any]:
    """Those objects that have each of these fields, as the schema says that it has to be."""
    return {"required": list(fields), "properties": fields}


def needs(name: str, other: str, unless: tuple[Any, ...] = (None,)) -> dict[str, Any]:
    """Whoever sends the one, with another value than these, sends the other too."""
    return {"if": given(**{name: {"not": {"enum": list(unless)}}}), "then": given(**{other: SOMETHING})}


def excludes(name: str, other: str) -> dict[str, Any]:
    return {"not": given(**{name: SOMETHING, other: SOMETHING})}


SOMETHING: dict[str, Any] = {"not": {"enum": [None, []]}}
