"""From what was filled in to a payload, and back. Pure.

A form sends texts under the paths of its fields. Rows of a list and objects that may be left out have a mark of their
own (`…/2@row`, `…@given`), since a box that is not ticked sends nothing. A blank field that may be left out is left
out, so that its default holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast import codec
from holdfast.dashboard.fields import ROOT, Field, Kind, step
from holdfast.errors import InvalidPayload

ROW = "@row"
GIVEN = "@given"
ROWS_MAX = 500  # of one list; more is a file, not a form
_WHOLE = re.compile(r"[+-]?\d{1,30}")
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$", re.IGNORECASE)
_MINUTES = re.compile(r"\d{4,}-\d\d-\d\d[T ]\d\d:\d\d")

Inputs = Mapping[str, Sequence[str]]


class Filled(msgspec.Struct):
    """What a form says. `errors` by path; with any, `value` is not to be used."""

    value: Any
    errors: dict[str, str]


# From a value to inputs


def inputs_of(field: Field, value: Any) -> dict[str, list[str]]:
    """What the inputs of a form hold to say this value."""
    found: dict[str, list[str]] = {}
    _put(field, field.path, value, found)
    return found


def initial(field: Field) -> dict[str, list[str]]:
    """The inputs of a form that nobody has filled in: its defaults."""
    return inputs_of(field, field.default if field.default is not UNSET else _nothing(field))


def _nothing(field: Field) -> Any:
    return {} if field.kind is Kind.OBJECT else UNSET


def _put(field: Field, path: str, value: Any, found: dict[str, list[str]]) -> None:
    match field.kind:
        case Kind.OBJECT:
            if isinstance(value, dict):
                found[path + GIVEN] = ["1"]
            given = value if isinstance(value, dict) else {}
            for each in field.fields:
                part = given.get(each.name, each.default)
                _put(each, step(path, each.name), _nothing(each) if part is UNSET and each.required else part, found)
        case Kind.LIST:
            for number, part in enumerate(value if isinstance(value, list) else []):
                found[step(path, number) + ROW] = ["1"]
                _put(_item(field), step(path, number), part, found)
        case Kind.CHOICES:
            found[path] = [_as_json(each) for each in value] if isinstance(value, list) else []
        case Kind.BOOLEAN:
            found[path] = ["1"] if value is True else []
        case Kind.NOTHING:
            pass
        case _:
            found[path] = [_as_text(field, value)]


def _as_text(field: Field, value: Any) -> str:
    if value is UNSET or (value is None and field.kind is not Kind.JSON):
        return ""
    if field.kind is Kind.JSON:
        return "" if value is None and not field.required else _indented(value)
    if field.kind is Kind.CHOICE:
        return _as_json(value)
    if field.kind is Kind.MOMENT and isinstance(value, str):
        return value.removesuffix("Z").removesuffix("+00:00")  # what the browser's own field for it understands
    return value if isinstance(value, str) else _as_json(value)


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _indented(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


# From inputs to a value


def read(field: Field, inputs: Inputs) -> Filled:
    errors: dict[str, str] = {}
    value = _read(field, field.path, inputs, errors)
    return Filled({} if value is UNSET and field.kind is Kind.OBJECT else None if value is UNSET else value, errors)


def _read(field: Field, path: str, inputs: Inputs, errors: dict[str, str]) -> Any:
    match field.kind:
        case Kind.OBJECT:
            return _read_object(field, path, inputs, errors)
        case Kind.LIST:
            return _read_list(field, path, inputs, errors)
        case Kind.CHOICES:
            known = {_as_json(each): each for each in field.choices}
            chosen = [known[each] for each in inputs.get(path, ()) if each in known]
            return UNSET if not chosen and not field.required and not field.default else chosen
        case Kind.BOOLEAN:
            return bool(_first(inputs, path))
        case Kind.NOTHING:
            return None
        case _:
            text = _first(inputs, path)
            if field.kind not in (Kind.TEXT, Kind.LINES):
                text = text.strip()
            if not text:
                return _blank(field, path, errors)
            try:
                return _parsed(field, text)
            except InvalidPayload as error:
                errors[path] = str(error)
                return UNSET


def _blank(field: Field, path: str, errors: dict[str, str]) -> Any:
    if field.required:
        if field.nullable and field.kind is not Kind.JSON:
            return None
        errors[path] = "This is needed."
        return UNSET
    if field.default in (UNSET, None, ""):
        return UNSET
    if field.nullable:
        return None  # its default was taken out
    return "" if field.kind in (Kind.TEXT, Kind.LINES) else UNSET


def _parsed(field: Field, text: str) -> Any:
    match field.kind:
        case Kind.INTEGER:
            if not _WHOLE.fullmatch(text):
                raise InvalidPayload("Write a whole number, such as 7.")
            return int(text)
        case Kind.NUMBER:
            return _number(text)
        case Kind.CHOICE:
            known = {_as_json(each): each for each in field.choices}
            if text not in known:
                raise InvalidPayload("Choose one of those offered.")
            return known[text]
        case Kind.MOMENT:
            if not _MINUTES.match(text):
                raise InvalidPayload("Write a day and a time, such as 2026-11-16T09:30.")
            return text if _ZONE.search(text) else f"{text}{':00' if len(text) == 16 else ''}Z"
        case Kind.JSON:
            return _json(text)
        case _:
            return text.replace("\r\n", "\n")  # which is how browsers send a new line


def _json(text: str) -> Any:
    try:
        return codec.from_json(text.encode())
    except InvalidPayload as error:
        raise InvalidPayload(f"This is not the JSON that is kept: {str(error).rpartition(' stored: ')[2]}") from None


def _number(text: str) -> float:
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidPayload("Write a number, such as 0.5.")
    return value


def _read_object(field: Field, path: str, inputs: Inputs, errors: dict[str, str]) -> Any:
    if is_optional(field, path) and not _first(inputs, path + GIVEN):
        return None if field.nullable and field.default not in (UNSET, None) else UNSET
    parts = {each.name: _read(each, step(path, each.name), inputs, errors) for each in field.fields}
    return {name: value for name, value in parts.items() if value is not UNSET}


def _read_list(field: Field, path: str, inputs: Inputs, errors: dict[str, str]) -> Any:
    numbers = rows(path, inputs)
    if len(numbers) > ROWS_MAX:
        errors[path] = f"A form takes up to {ROWS_MAX} rows: give more of them as JSON."
        return UNSET
    if not numbers and not field.required and not field.default:
        return UNSET
    found = [_read(_item(field), step(path, number), inputs, errors) for number in numbers]
    return [None if value is UNSET else value for value in found]


def is_optional(field: Field, path: str) -> bool:
    """Whether an object can be left out, with all its fields."""
    return path != ROOT and (not field.required or field.nullable)


def _item(field: Field) -> Field:
    assert field.item is not None  # noqa: S101 - a list has one
    return field.item


def _first(inputs: Inputs, path: str) -> str:
    given = inputs.get(path, ())
    return given[0] if given else ""


# Rows


def rows(path: str, inputs: Inputs) -> list[int]:
    """The numbers of a list's rows; those that were taken out leave gaps."""
    row = re.compile(re.escape(path) + r"/(\d{1,6})" + ROW)
    return sorted({int(found[1]) for name in inputs if (found := row.fullmatch(name))})


def tidied(field: Field, inputs: Inputs) -> dict[str, list[str]]:
    """The same with rows counted from 0, without those in which nothing was filled in, so that the place of a row is
    its place in the payload."""
    found: dict[str, list[str]] = {}
    _tidy(field, field.path, field.path, inputs, found)
    return found


def _tidy(field: Field, path: str, new: str, inputs: Inputs, found: dict[str, list[str]]) -> None:
    found |= {new + mark: [*inputs[path + mark]] for mark in ("", GIVEN) if path + mark in inputs}
    for each in field.fields:
        _tidy(each, step(path, each.name), step(new, each.name), inputs, found)
    if field.kind is not Kind.LIST:
        return
    item, place = _item(field), 0
    for number in rows(path, inputs):
        old = step(path, number)
        if item.kind not in (Kind.OBJECT, Kind.LIST, Kind.BOOLEAN, Kind.CHOICES) and not _first(inputs, old).strip():
            continue
        found[step(new, place) + ROW] = ["1"]
        _tidy(item, old, step(new, place), inputs, found)
        place += 1


def with_row(field: Field, path: str, inputs: Inputs) -> dict[str, list[str]]:
    """One row more of the list at `path`."""
    wanted = at(field, path)
    found = {name: [*values] for name, values in inputs.items()}
    if wanted is not None and wanted.kind is Kind.LIST and len(taken := rows(path, inputs)) < ROWS_MAX:
        new = step(path, taken[-1] + 1 if taken else 0)
        found[new + ROW] = ["1"]
        item = _item(wanted)
        _put(item, new, item.default if item.default is not UNSET else _nothing(item), found)
    return found


def without_row(path: str, inputs: Inputs) -> dict[str, list[str]]:
    return {
        name: [*values]
        for name, values in inputs.items()
        if name not in (path, path + ROW, path + GIVEN) and not name.startswith(f"{path}/")
    }


def at(field: Field, path: str) -> Field | None:
    """The field whose input has this path."""
    if not path.startswith(field.path):
        return None
    for part in path[len(field.path) :].split("/")[1:]:
        if field.kind is Kind.LIST and part.isdecimal():
            field = _item(field)
            continue
        below = next((each for each in field.fields if step("", each.name) == f"/{part}"), None)
        if below is None:
            return None
        field = below
    return field


def path_of(field: Field, place: Sequence[str | int]) -> str:
    """The path of the input that is nearest to a place in the payload."""
    path = field.path
    for part in place:
        if field.kind is Kind.LIST and isinstance(part, int):
            field, path = _item(field), step(path, part)
            continue
        below = next((each for each in field.fields if each.name == part), None)
        if below is None:
            break
        field, path = below, step(path, below.name)
    return path
