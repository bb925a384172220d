"""The fields of a form with what was filled in, as a template draws them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.dashboard.fields import Field, Kind, step
from holdfast.dashboard.filling import GIVEN, ROW, Inputs, initial, inputs_of, is_optional, rows


class Option(msgspec.Struct, frozen=True):
    value: str
    label: str
    chosen: bool


class Widget(msgspec.Struct, kw_only=True):
    """`name` is that of its input; `blank` is a list's next row, with `*` where its number will be."""

    field: Field
    name: str
    value: str = ""
    ticked: bool = False
    optional: bool = False  # may be left out
    options: list[Option] = []
    parts: list[Widget] = []
    blank: Widget | None = None
    error: str = ""
    length: int = 1  # lines that the text has, within reason

    @property
    def id(self) -> str:
        return self.name.replace("/", "-")

    @property
    def described_by(self) -> str:
        named = [
            f"{self.id}--{what}"
            for what, there in (
                ("about", self.field.description),
                ("hint", self.field.hint),
                ("error", self.error),
            )
            if there
        ]
        return " ".join(named)


def drawn(field: Field, inputs: Inputs, errors: Mapping[str, str]) -> Widget:
    return _draw(field, field.path, inputs, errors)


def _draw(field: Field, path: str, inputs: Inputs, errors: Mapping[str, str]) -> Widget:
    given = [*inputs.get(path, ())]
    widget = Widget(
        field=field,
        name=path,
        value=given[0] if given else "",
        error=errors.get(path, ""),
        optional=not field.required,
    )
    widget.length = min(24, max(2, widget.value.count("\n") + 1))
    match field.kind:
        case Kind.OBJECT:
            widget.optional = is_optional(field, path)
            widget.ticked = bool(inputs.get(path + GIVEN))
            widget.parts = [_draw(each, step(path, each.name), inputs, errors) for each in field.fields]
        case Kind.LIST:
            assert field.item is not None  # noqa: S101 - a list has one
            widget.parts = [_draw(field.item, step(path, number), inputs, errors) for number in rows(path, inputs)]
            widget.blank = _draw(field.item, f"{path}/*", _unfilled(field.item, f"{path}/*"), {})
        case Kind.BOOLEAN:
            widget.ticked = bool(given and given[0])
        case Kind.CHOICE | Kind.CHOICES:
            widget.options = [_option(each, given) for each in field.choices]
        case _:
            pass
    return widget


def _option(choice: Any, given: list[str]) -> Option:
    value = msgspec.json.encode(choice).decode()
    words = {"true": "yes", "false": "no", "null": "nothing"}
    return Option(value, choice if isinstance(choice, str) else words.get(value, value), value in given)


def _unfilled(item: Field, path: str) -> Inputs:
    """The inputs of a row that nobody has filled in, under the path that the row has here."""
    start = initial(item) if item.default is UNSET else inputs_of(item, item.default)
    return {path + name[len(item.path) :]: values for name, values in start.items()}


__all__ = ["ROW", "Option", "Widget", "drawn"]
