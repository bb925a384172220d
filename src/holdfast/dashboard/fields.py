"""From a job type's JSON Schema to the fields of a form. Pure.

A schema may come from a remote worker, so that nothing of it is believed: what is not understood, lies too deep or
would make too many fields becomes one field for JSON, which takes anything.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET

DEPTH_MAX = 4  # objects and lists within one another; deeper forms are harder to read than JSON
FIELDS_MAX = 300  # of one form: references within references multiply
CHOICES_MAX = 200
TEXT_MAX = 500  # of a description or a label: a line under a field
LINES_FROM = 200  # characters from which a text gets several lines
_LONG_TEXTS = frozenset(("text", "body", "content", "prompt", "message", "lines", "query", "sql", "html", "markdown"))
_FORMATS = {"email": "email", "uri": "url", "url": "url", "password": "password"}


class Kind(StrEnum):
    TEXT = "text"
    LINES = "lines"  # a text of several
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    CHOICES = "choices"  # several of some
    DATE = "date"
    MOMENT = "moment"
    TIME = "time"
    OBJECT = "object"
    LIST = "list"
    JSON = "json"
    NOTHING = "nothing"  # only null is possible


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a payload. `path` names its input: the names above it, each escaped, `*` for an item of a list."""

    path: str
    name: str
    label: str
    kind: Kind
    description: str = ""
    hint: str = ""  # what the schema asks of it, in words
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
    """The fields of a payload; where there is no schema, one for JSON."""
    try:
        document = None if schema is None else msgspec.json.decode(schema)
    except msgspec.DecodeError:
        document = None
    if not isinstance(document, dict):
        return _json_field(ROOT, ROOT, {}, required=True, hint="Any JSON: this type has announced no schema.")
    return _Reader(document).field(ROOT, ROOT, document, required=True, depth=0, above=())


def step(path: str, name: str | int) -> str:
    """The path of what stands below another: its name with what has a meaning in a path escaped."""
    return f"{path}/{str(name).replace('~', '~0').replace('/', '~1').replace('@', '~2').replace('*', '~3')}"


class _Reader:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._left = FIELDS_MAX

    def field(self, path: str, name: str, schema: Any, *, required: bool, depth: int, above: tuple[str, ...]) -> Field:
        """`above`: the references that led here; one that comes again would go on for ever."""
        self._left -= 1
        resolved = self._resolved(schema, above)
        if resolved is None or self._left < 0:
            return _json_field(path, name, schema, required=required)
        schema, nullable, above = resolved
        told = _told(path, name, schema, required, nullable)
        kind = _kind(name, schema, nullable)
        if kind is Kind.OBJECT and depth < DEPTH_MAX:
            return self._object(told, schema, depth, above)
        if kind is Kind.LIST and depth < DEPTH_MAX:
            return self._list(told, schema, depth, above)
        if kind in (Kind.OBJECT, Kind.LIST, Kind.JSON):
            return _json_field(path, name, schema, required=required, nullable=nullable)
        return msgspec.structs.replace(told, kind=kind, **_details(kind, schema))

    def _object(self, told: Field, schema: dict[str, Any], depth: int, above: tuple[str, ...]) -> Field:
        needed = schema.get("required")
        needed = needed if isinstance(needed, list) else []
        fields = tuple(
            self.field(step(told.path, name), name, part, required=name in needed, depth=depth + 1, above=above)
            for name, part in schema["properties"].items()
        )
        return msgspec.structs.replace(told, kind=Kind.OBJECT, fields=fields)

    def _list(self, told: Field, schema: dict[str, Any], depth: int, above: tuple[str, ...]) -> Field:
        item = self.field(f"{told.path}/*", told.name, schema["items"], required=True, depth=depth + 1, above=above)
        hint = _range("item", _whole(schema, "minItems"), _whole(schema, "maxItems"))
        if item.kind is Kind.CHOICE and schema.get("uniqueItems") is True:
            return msgspec.structs.replace(told, kind=Kind.CHOICES, choices=item.choices, hint=hint)
        return msgspec.structs.replace(told, kind=Kind.LIST, item=item, hint=hint)

    def _resolved(self, schema: Any, above: tuple[str, ...]) -> tuple[dict[str, Any], bool, tuple[str, ...]] | None:
        """What a part means once references and "or null" are seen through. None: several things, or no end."""
        nullable = False
        for _ in range(16):
            if not isinstance(schema, dict):
                return None
            if isinstance(named := schema.get("$ref"), str):
                target = self._named(named)
                if target is None or named in above:
                    return None
                above = (*above, named)
                # Its title is the name of a model, not of this field.
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
    """The one alternative beside null, with what is said around it; None where there are several."""
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
            # A box has two states; one that may also be left out, or be null, has three.
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


def _told(path: str, name: str, schema: dict[str, Any], required: bool, nullable: bool) -> Field:
    return Field(
        path=path,
        name=name,
        label=_label(name, schema.get("title")),
        kind=Kind.JSON,
        description=_text(schema.get("description")),
        required=required,
        nullable=nullable,
        default=schema.get("default", UNSET),
    )


def _label(name: str, title: Any) -> str:
    """A title that was only made from the name is said as a sentence begins."""
    words = name.replace("_", " ").strip() or name
    if isinstance(title, str) and title and title.lower() != words.lower():
        return _text(title)
    return _text(words[:1].upper() + words[1:])


def _details(kind: Kind, schema: dict[str, Any]) -> dict[str, Any]:
    match kind:
        case Kind.INTEGER | Kind.NUMBER:
            low, high = _number(schema, "minimum"), _number(schema, "maximum")
            over, under = _number(schema, "exclusiveMinimum"), _number(schema, "exclusiveMaximum")
            words = [_range("", low, high)]
            words += [f"above {over:,g}"] if over is not None else []
            words += [f"below {under:,g}"] if under is not None else []
            whole = "whole number" if kind is Kind.INTEGER else ""
            return {"low": low, "high": high, "hint": ", ".join(each for each in (whole, *words) if each)}
        case Kind.TEXT | Kind.LINES:
            longest, named = _whole(schema, "maxLength"), schema.get("format")
            known = named if isinstance(named, str) else ""
            secret = "password" if schema.get("writeOnly") is True or schema.get("sensitive") is True else None
            said = [_range("character", _whole(schema, "minLength"), longest), known if known != "password" else ""]
            input_type = secret or _FORMATS.get(known, "text")
            return {"length_max": longest, "input_type": input_type, "hint": ", ".join(filter(None, said))}
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
    told = _told(path, name, schema if isinstance(schema, dict) else {}, required, nullable)
    return msgspec.structs.replace(told, hint=hint)


def _number(schema: dict[str, Any], name: str) -> float | None:
    value = schema.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(schema: dict[str, Any], name: str) -> int | None:
    value = schema.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
