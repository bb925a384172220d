"""What a job type derives from its payload: subject, content hash, dedup key and priority. Pure.

A template such as `rule:{rule_id}` is data: it is announced with the type, so a submit without the handler's code
derives the same as one with it, in Python here and in SQL by `backstay.derived` (engines/postgres/migrations). A
function is code: only its name is announced, and a submit that cannot call it is refused unless it gives the value
itself. Storing the job without it instead would let duplicates in through the one path that is least looked after.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from backstay.core.checks import check_priority
from backstay.errors import ConfigurationError, InvalidPayload

DERIVED = ("subject", "content_hash", "dedup_key", "priority")
HASHES = ("md5", "sha256")
ANY_AGE = -1  # of a reused result
_PART = re.compile(r"\{\{|\}\}|\{(?:(\w+)\(([\w.-]+)\)|([\w.-]+))\}|[{}]")


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a template: a text, or a field of the payload, perhaps hashed."""

    text: str = ""
    path: tuple[str, ...] = ()
    hash: str | None = None
    default: str | int | bool | None = None  # of the field, where the payload may lack it


Template = tuple[Part, ...]


class Levels(msgspec.Struct, frozen=True):
    """Priorities by the value of a field."""

    path: tuple[str, ...]
    levels: dict[str, int]
    otherwise: int
    default: str | int | bool | None = None

    def of(self, payload: Any) -> int:
        value = _value(self.path, self.default, payload)
        return (
            self.otherwise if value is None else self.levels.get(_as_text(value, ".".join(self.path)), self.otherwise)
        )


class PriorityBy:
    """A priority that depends on a field of the payload: `PriorityBy("severity", {"critical": "urgent"})`. Other values
    get `otherwise`."""

    def __init__(self, field: str, levels: Mapping[Any, int | str], otherwise: int | str = "normal") -> None:
        self.field = field
        self.levels = {_as_text(value, field): check_priority(level) for value, level in levels.items()}
        self.otherwise = check_priority(otherwise)


class Derivation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is announced about a type. A name that is neither a template nor in `in_code` is not derived."""

    subject: Template | None = None
    content_hash: Template | None = None
    dedup_key: Template | None = None
    priority: Levels | None = None
    in_code: tuple[str, ...] = ()  # names derived by functions
    dedup_per: str | None = None  # "day": the key is for one day, that on which the job is due, in UTC
    dedup: str | None = None  # what a repeat does, if not the usual: error, replace
    debounce: int | None = None  # of a repeat that replaces: how long after the first submit it may move a job
    dedup_for: int | None = None  # microseconds, or FOREVER; None: while the job is active
    reuse: int | None = None  # how old a reused result may be, in microseconds, or ANY_AGE; None: no reuse

    def derives(self, name: str) -> bool:
        return name in self.in_code or getattr(self, name, None) is not None


def sources(derivation: Derivation) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each name that is derived from a field of the payload as it is, and the path of the field."""
    for name in ("subject", "content_hash", "dedup_key"):
        for part in getattr(derivation, name) or ():
            if part.path:
                yield name, part.path
    if derivation.priority is not None:
        yield "priority", derivation.priority.path


def parse(name: str, template: str, stored_names: Mapping[str, str] | None, defaults: Mapping[str, Any]) -> Template:
    """Return a template's parts. `stored_names` maps the fields of the model to their names in a stored payload; None
    accepts any field."""
    if not isinstance(template, str) or not template:
        raise ConfigurationError(f'{name}={template!r:.80}: use a template such as "rule:{{rule_id}}", or a function')
    parts = tuple(_parts(name, template, stored_names, defaults))
    if not any(part.path for part in parts):
        raise ConfigurationError(
            f"{name}={template!r:.80} names no field of the payload: every job would have the same"
        )
    return parts


def of_fields(
    job_type: str, fields: Sequence[str], stored_names: Mapping[str, str] | None, defaults: Mapping[str, Any]
) -> Template:
    """Return the template of a dedup key that jobs of a type share if these fields are the same. If there are several,
    each is hashed: "a:b" and "c" must not be the same as "a" and "b:c"."""
    if isinstance(fields, str) or not fields:
        raise ConfigurationError(f'dedup_by={fields!r:.80}: use a list of fields of the payload, such as ["user_id"]')
    written = "{{{}}}" if len(fields) == 1 else "{{sha256({})}}"
    text = ":".join([job_type, *(written.format(field) for field in fields)])
    return parse("dedup_by", text, stored_names, defaults)


def levels(by: PriorityBy, stored_names: Mapping[str, str] | None, defaults: Mapping[str, Any]) -> Levels:
    path, default = _field("priority", by.field, by.field, stored_names, defaults)
    return Levels(path, by.levels, by.otherwise, default)


def _parts(
    name: str, template: str, stored_names: Mapping[str, str] | None, defaults: Mapping[str, Any]
) -> Iterator[Part]:
    text, end = "", 0
    for found in _PART.finditer(template):
        text += template[end : found.start()]
        end = found.end()
        if found[0] in ("{{", "}}"):
            text += found[0][0]
            continue
        if found[0] in ("{", "}"):
            raise ConfigurationError(
                f"{name}={template!r:.80}: write {{field}} or {{md5(field)}}; a brace is {{{{ or }}}}"
            )
        if found[1] is not None and found[1] not in HASHES:
            raise ConfigurationError(f"{name}={template!r:.80}: {found[1]}() is unknown: use {' or '.join(HASHES)}")
        if text:
            yield Part(text)
            text = ""
        path, default = _field(name, template, found[2] or found[3], stored_names, defaults)
        yield Part(path=path, hash=found[1], default=default)
    if text := text + template[end:]:
        yield Part(text)


def _field(
    name: str, where: str, field: str, stored_names: Mapping[str, str] | None, defaults: Mapping[str, Any]
) -> tuple[tuple[str, ...], Any]:
    first, *rest = field.split(".")
    if stored_names is not None and first not in stored_names:
        known = ", ".join(stored_names) or "no fields"
        raise ConfigurationError(f"{name}={where!r:.80}: the payload has no field {first!r}; it has {known}")
    stored = first if stored_names is None else stored_names[first]
    default = None if rest else defaults.get(stored)
    return (stored, *rest), default if isinstance(default, (str, int)) else None


def render(name: str, template: Template, payload: Any) -> str | None:
    """Return the text of a template; None where a field is missing or null: then the job has no such value."""
    texts = []
    for part in template:
        if not part.path:
            texts.append(part.text)
            continue
        value = _value(part.path, part.default, payload)
        if value is None:
            return None
        text = _as_text(value, ".".join(part.path), name)
        texts.append(text if part.hash is None else _hashed(part.hash, text))
    return "".join(texts) or None


def _value(path: Sequence[str], default: Any, payload: Any) -> Any:
    value = payload
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return default
        value = value[step]
    return value


def _as_text(value: Any, field: str, name: str = "priority") -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
        case _:
            raise InvalidPayload(
                f"{name} is derived from {field}, which has to be a string, an integer or a boolean, not"
                f" {type(value).__name__}"
            )


def _hashed(how: str, text: str) -> str:
    raw = text.encode()
    return hashlib.sha256(raw).hexdigest() if how == "sha256" else hashlib.md5(raw, usedforsecurity=False).hexdigest()
