"""Forms from JSON Schemas: schema to fields, input to payload and back, and widgets for templates. Pure.

A schema may come from a remote worker and is not trusted: a part that is not understood, is nested too deep or would
make too many fields becomes a single JSON field, which accepts anything.

A form sends texts under the paths of its fields. List rows and optional objects have a marker input of their own
(`…/2@row`, `…@given`), since an unchecked box sends nothing. A blank optional field is omitted, so that its default
applies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET

from backstay import codec
from backstay.errors import InvalidPayload

DEPTH_MAX = 4  # levels of nested objects and lists; deeper forms are harder to read than JSON
FIELDS_MAX = 300  # per form: nested references multiply
CHOICES_MAX = 200
TEXT_MAX = 500  # characters of a description or label
LINES_FROM = 200  # texts of this length or more get a multi-line input
_LONG_TEXTS = frozenset(("text", "body", "content", "prompt", "message", "lines", "query", "sql", "html", "markdown"))
_MASKED = "*" * 10  # what pydantic writes into a schema as the default of a SecretStr
_FORMATS = {"email": "email", "uri": "url", "url": "url", "password": "password"}


class Kind(StrEnum):
    TEXT = "text"
    LINES = "lines"  # multi-line text
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    CHOICES = "choices"  # any number of options
    DATE = "date"
    MOMENT = "moment"
    TIME = "time"
    OBJECT = "object"
    LIST = "list"
    JSON = "json"
    NOTHING = "nothing"  # null is the only value


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a payload. `path` names its input: the escaped names that lead to it, `*` for a list item."""

    path: str
    name: str
    label: str
    kind: Kind
    description: str = ""
    hint: str = ""  # the schema's constraints, in words
    required: bool = True
    nullable: bool = False
    default: Any = UNSET
    choices: tuple[Any, ...] = ()
    fields: tuple[Field, ...] = ()  # of an object
    item: Field | None = None  # of a list
    input_type: str = "text"
    low: float | None = None
    high: float | None = None
    length_max: int | None = None


ROOT = "payload"


def form_of(schema: str | None) -> Field:
    """The fields of a payload; without a schema, a single JSON field."""
    try:
        document = None if schema is None else msgspec.json.decode(schema)
    except msgspec.DecodeError:
        document = None
    if not isinstance(document, dict):
        return _json_field(ROOT, ROOT, {}, required=True, hint="Any JSON: this job type has no schema.")
    return _Reader(document).field(ROOT, ROOT, document, required=True, depth=0, above=())


def step(path: str, name: str | int) -> str:
    """The path of a child: its name appended, with special characters escaped."""
    return f"{path}/{str(name).replace('~', '~0').replace('/', '~1').replace('@', '~2').replace('*', '~3')}"


class _Reader:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._left = FIELDS_MAX

    def field(self, path: str, name: str, schema: Any, *, required: bool, depth: int, above: tuple[str, ...]) -> Field:
        """`above`: the references that led here; following one of them again would never end."""
        self._left -= 1
        resolved = self._resolved(schema, above)
        if resolved is None or self._left < 0:
            return _json_field(path, name, schema, required=required)
        schema, nullable, above = resolved
        base = _described(path, name, schema, required, nullable)
        kind = _kind(name, schema, nullable)
        if kind is Kind.OBJECT and depth < DEPTH_MAX:
            return self._object(base, schema, depth, above)
        if kind is Kind.LIST and depth < DEPTH_MAX:
            return self._list(base, schema, depth, above)
        if kind in (Kind.OBJECT, Kind.LIST, Kind.JSON):
            return _json_field(path, name, schema, required=required, nullable=nullable)
        return msgspec.structs.replace(base, kind=kind, **_details(kind, schema))

    def _object(self, base: Field, schema: dict[str, Any], depth: int, above: tuple[str, ...]) -> Field:
        needed = schema.get("required")
        needed = needed if isinstance(needed, list) else []
        fields = tuple(
            self.field(step(base.path, name), name, part, required=name in needed, depth=depth + 1, above=above)
            for name, part in schema["properties"].items()
        )
        return msgspec.structs.replace(base, kind=Kind.OBJECT, fields=fields)

    def _list(self, base: Field, schema: dict[str, Any], depth: int, above: tuple[str, ...]) -> Field:
        item = self.field(f"{base.path}/*", base.name, schema["items"], required=True, depth=depth + 1, above=above)
        hint = _range("item", _whole(schema, "minItems"), _whole(schema, "maxItems"))
        if item.kind is Kind.CHOICE and schema.get("uniqueItems") is True:
            return msgspec.structs.replace(base, kind=Kind.CHOICES, choices=item.choices, hint=hint)
        return msgspec.structs.replace(base, kind=Kind.LIST, item=item, hint=hint)

    def _resolved(self, schema: Any, above: tuple[str, ...]) -> tuple[dict[str, Any], bool, tuple[str, ...]] | None:
        """The schema behind references and "or null". None: several alternatives, or endless references."""
        nullable = False
        for _ in range(16):
            if not isinstance(schema, dict):
                return None
            if isinstance(named := schema.get("$ref"), str):
                target = self._named(named)
                if target is None or named in above:
                    return None
                above = (*above, named)
                # Its title names a model, not this field.
                meant = {name: part for name, part in target.items() if name != "title"}
                schema = {**meant, **{name: part for name, part in schema.items() if name != "$ref"}}
                continue
            inner, was_nullable = _only_one(schema)
            nullable = nullable or was_nullable
            if inner is None:
                return None
            if inner is schema:
                return schema, nullable, above
            schema = inner
        return None

    def _named(self, reference: str) -> dict[str, Any] | None:
        definitions = self._document.get("$defs")
        found = definitions.get(reference.removeprefix("#/$defs/")) if isinstance(definitions, dict) else None
        return found if reference.startswith("#/$defs/") and isinstance(found, dict) else None


def _only_one(schema: dict[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The only alternative besides null, merged with its surroundings; None where there are several."""
    for word in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(word)
        if not isinstance(parts, list):
            continue
        real = [part for part in parts if part != {"type": "null"}]
        if len(real) != 1 or not isinstance(real[0], dict):
            return None, False
        around = {name: part for name, part in schema.items() if name not in (word, "discriminator")}
        return {**real[0], **around}, len(real) < len(parts)
    if isinstance(kinds := schema.get("type"), list):
        named = [each for each in kinds if each != "null"]
        return ({**schema, "type": named[0]} if len(named) == 1 else None), "null" in kinds
    return schema, False


def _kind(name: str, schema: dict[str, Any], nullable: bool) -> Kind:
    choices = _choices(schema)
    if choices is not None:
        return Kind.CHOICE if 0 < len(choices) <= CHOICES_MAX else Kind.JSON
    match schema.get("type"):
        case "string":
            return _text_kind(name, schema)
        case "integer":
            return Kind.INTEGER
        case "number":
            return Kind.NUMBER
        case "boolean":
            # A checkbox has two states; a value that may also be omitted or null has three.
            known = isinstance(schema.get("default"), bool)
            return Kind.BOOLEAN if known or ("default" not in schema and not nullable) else Kind.CHOICE
        case "null":
            return Kind.NOTHING
        case "object":
            properties = schema.get("properties")
            return Kind.OBJECT if isinstance(properties, dict) else Kind.JSON
        case "array":
            return Kind.LIST if isinstance(schema.get("items"), dict) and "prefixItems" not in schema else Kind.JSON
        case _:
            return Kind.JSON


def _text_kind(name: str, schema: dict[str, Any]) -> Kind:
    match schema.get("format"):
        case "date":
            return Kind.DATE
        case "date-time":
            return Kind.MOMENT
        case "time":
            return Kind.TIME
    longest, default = _whole(schema, "maxLength"), schema.get("default")
    has_lines = isinstance(default, str) and ("\n" in default or len(default) > LINES_FROM)
    is_long = longest >= LINES_FROM if longest is not None else name.lower() in _LONG_TEXTS
    return Kind.LINES if has_lines or is_long or "contentMediaType" in schema else Kind.TEXT


def _choices(schema: dict[str, Any]) -> tuple[Any, ...] | None:
    if "const" in schema:
        return (schema["const"],)
    found = schema.get("enum")
    return tuple(found) if isinstance(found, list) else None


def _described(path: str, name: str, schema: dict[str, Any], required: bool, nullable: bool) -> Field:
    return Field(
        path=path,
        name=name,
        label=_label(name, schema.get("title")),
        kind=Kind.JSON,
        description=_text(schema.get("description")),
        required=required,
        nullable=nullable,
        default=_default(schema),
    )


def _default(schema: dict[str, Any]) -> Any:
    found = schema.get("default", UNSET)
    is_masked = schema.get("writeOnly") is True and found == _MASKED  # sent back, the asterisks would be the secret
    return UNSET if is_masked else found


def _label(name: str, title: Any) -> str:
    """A title generated from the name becomes sentence case."""
    words = name.replace("_", " ").strip() or name
    if isinstance(title, str) and title and title.lower() != words.lower():
        return _text(title)
    return _text(words[:1].upper() + words[1:])


def _details(kind: Kind, schema: dict[str, Any]) -> dict[str, Any]:
    match kind:
        case Kind.INTEGER | Kind.NUMBER:
            low, high = _schema_number(schema, "minimum"), _schema_number(schema, "maximum")
            over, under = _schema_number(schema, "exclusiveMinimum"), _schema_number(schema, "exclusiveMaximum")
            words = [_range("", low, high)]
            words += [f"above {over:,g}"] if over is not None else []
            words += [f"below {under:,g}"] if under is not None else []
            whole = "whole number" if kind is Kind.INTEGER else ""
            return {"low": low, "high": high, "hint": ", ".join(each for each in (whole, *words) if each)}
        case Kind.TEXT | Kind.LINES:
            longest, named = _whole(schema, "maxLength"), schema.get("format")
            known = named if isinstance(named, str) else ""
            secret = "password" if schema.get("writeOnly") is True or schema.get("sensitive") is True else None
            hints = [_range("character", _whole(schema, "minLength"), longest), known if known != "password" else ""]
            input_type = secret or _FORMATS.get(known, "text")
            return {"length_max": longest, "input_type": input_type, "hint": ", ".join(filter(None, hints))}
        case Kind.MOMENT:
            return {"hint": "UTC"}
        case Kind.CHOICE:
            return {"choices": (True, False) if schema.get("type") == "boolean" else _choices(schema) or ()}
        case _:
            return {}


def _range(what: str, low: float | None, high: float | None) -> str:
    many = f" {what}s" if what else ""
    if low is not None and high is not None:
        return f"{low:,g} to {high:,g}{many}" if low != high else f"{low:,g}{many if low != 1 else f' {what}'}"
    if high is not None:
        return f"up to {high:,g}{many}"
    return (
        f"at least {low:,g}{many if low != 1 else f' {what}'.rstrip()}"
        if low
        else ("0 or more" if low == 0 and not what else "")
    )


def _json_field(
    path: str, name: str, schema: Any, *, required: bool, nullable: bool = True, hint: str = "JSON"
) -> Field:
    base = _described(path, name, schema if isinstance(schema, dict) else {}, required, nullable)
    return msgspec.structs.replace(base, hint=hint)


def _schema_number(schema: dict[str, Any], name: str) -> float | None:
    value = schema.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(schema: dict[str, Any], name: str) -> int | None:
    value = schema.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


ROW = "@row"
GIVEN = "@given"
ROWS_MAX = 500  # per list; more belong in a file, not a form
_WHOLE = re.compile(r"[+-]?\d{1,30}")
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$", re.IGNORECASE)
_MINUTES = re.compile(r"\d{4,}-\d\d-\d\d[T ]\d\d:\d\d")

Inputs = Mapping[str, Sequence[str]]


class Filled(msgspec.Struct):
    """What a form holds. `errors` by path; if there are any, do not use `value`."""

    value: Any
    errors: dict[str, str]


# From a value to inputs


def inputs_of(field: Field, value: Any) -> dict[str, list[str]]:
    """The form inputs that represent a value."""
    found: dict[str, list[str]] = {}
    _put(field, field.path, value, found)
    return found


def initial(field: Field) -> dict[str, list[str]]:
    """The inputs of a new form: its defaults."""
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
    if field.input_type == "password" and value == _MASKED:
        return ""  # in the default of an object around it
    if field.kind is Kind.JSON:
        return "" if value is None and not field.required else _indented(value)
    if field.kind is Kind.CHOICE:
        return _as_json(value)
    if field.kind is Kind.MOMENT and isinstance(value, str):
        return value.removesuffix("Z").removesuffix("+00:00")  # the format of the browser's datetime-local input
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
        errors[path] = "This field is required."
        return UNSET
    if field.default in (UNSET, None, ""):
        return UNSET
    if field.nullable:
        return None  # its default was deleted
    return "" if field.kind in (Kind.TEXT, Kind.LINES) else UNSET


def _parsed(field: Field, text: str) -> Any:
    match field.kind:
        case Kind.INTEGER:
            if not _WHOLE.fullmatch(text):
                raise InvalidPayload("Enter a whole number, such as 7.")
            return int(text)
        case Kind.NUMBER:
            return _parse_number(text)
        case Kind.CHOICE:
            known = {_as_json(each): each for each in field.choices}
            if text not in known:
                raise InvalidPayload("Choose one of the options.")
            return known[text]
        case Kind.MOMENT:
            if not _MINUTES.match(text):
                raise InvalidPayload("Enter a date and time, such as 2026-11-16T09:30.")
            return text if _ZONE.search(text) else f"{text}{':00' if len(text) == 16 else ''}Z"
        case Kind.JSON:
            return _json(text)
        case _:
            return text.replace("\r\n", "\n")  # browsers send CRLF


def _json(text: str) -> Any:
    try:
        return codec.from_json(text.encode())
    except InvalidPayload as error:
        raise InvalidPayload(f"Invalid JSON: {str(error).rpartition(' stored: ')[2]}") from None


def _parse_number(text: str) -> float:
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidPayload("Enter a number, such as 0.5.")
    return value


def _read_object(field: Field, path: str, inputs: Inputs, errors: dict[str, str]) -> Any:
    if is_optional(field, path) and not _first(inputs, path + GIVEN):
        return None if field.nullable and field.default not in (UNSET, None) else UNSET
    parts = {each.name: _read(each, step(path, each.name), inputs, errors) for each in field.fields}
    return {name: value for name, value in parts.items() if value is not UNSET}


def _read_list(field: Field, path: str, inputs: Inputs, errors: dict[str, str]) -> Any:
    numbers = rows(path, inputs)
    if len(numbers) > ROWS_MAX:
        errors[path] = f"A form takes at most {ROWS_MAX} rows: enter more as JSON."
        return UNSET
    if not numbers and not field.required and not field.default:
        return UNSET
    found = [_read(_item(field), step(path, number), inputs, errors) for number in numbers]
    return [None if value is UNSET else value for value in found]


def is_optional(field: Field, path: str) -> bool:
    """Whether an object can be omitted with all its fields."""
    return path != ROOT and (not field.required or field.nullable)


def _item(field: Field) -> Field:
    assert field.item is not None  # noqa: S101 - a list has one
    return field.item


def _first(inputs: Inputs, path: str) -> str:
    given = inputs.get(path, ())
    return given[0] if given else ""


# Rows


def rows(path: str, inputs: Inputs) -> list[int]:
    """The row numbers of a list; removed rows leave gaps."""
    row = re.compile(re.escape(path) + r"/(\d{1,6})" + ROW)
    return sorted({int(found[1]) for name in inputs if (found := row.fullmatch(name))})


def tidied(field: Field, inputs: Inputs) -> dict[str, list[str]]:
    """The same inputs without blank rows and with rows numbered from 0, so that a row's number is its index in the
    payload."""
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
    """Add a row to the list at `path`."""
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
    """The field at an input's path."""
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
    """The path of the input nearest to a location in the payload."""
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


class Option(msgspec.Struct, frozen=True):
    value: str
    label: str
    chosen: bool


class Widget(msgspec.Struct, kw_only=True):
    """`name` is the input's name; `blank` is a list's next row, with `*` in place of its number."""

    field: Field
    name: str
    value: str = ""
    ticked: bool = False
    optional: bool = False  # may be omitted
    options: list[Option] = []
    parts: list[Widget] = []
    blank: Widget | None = None
    error: str = ""
    length: int = 1  # number of lines, within reason

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
    words = {"true": "yes", "false": "no", "null": "null"}
    return Option(value, choice if isinstance(choice, str) else words.get(value, value), value in given)


def _unfilled(item: Field, path: str) -> Inputs:
    """The inputs of a blank row, under the path that the row has here."""
    start = initial(item) if item.default is UNSET else inputs_of(item, item.default)
    return {path + name[len(item.path) :]: values for name, values in start.items()}
