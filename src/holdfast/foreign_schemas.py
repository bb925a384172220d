"""Whether a JSON Schema that a stranger has sent can be used: every later submit is checked with it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from holdfast import metered, schemas
from holdfast.limits import SCHEMA_DEPTH_MAX, SCHEMA_PARTS_MAX

# Where a schema has others in it: one, a list or by name. Those in place look at the same value once more.
_ONE_IN_PLACE, _LISTS_IN_PLACE, _MAPS_IN_PLACE = (
    ("not", "if", "then", "else"),
    ("allOf", "anyOf", "oneOf"),
    ("dependentSchemas",),
)
_ONE_BELOW, _LISTS_BELOW, _MAPS_BELOW = (
    ("items", "additionalProperties", "contains", "propertyNames"),
    ("prefixItems",),
    ("properties",),
)
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_KEPT = ("$defs", "definitions")
_REFERENCES = ("$ref", "$dynamicRef")
Schema = dict[str, Any]


class _Unusable(Exception):
    """Why."""


def refusal(schema: Schema) -> str | None:
    """What is wrong with it; None where nothing is."""
    used = schemas.as_used(schema)
    try:
        for error in metered.errors(_of_schemas(), used):
            where = "/".join(map(str, error.absolute_path)) or "its top"
            return f"it is no JSON Schema of draft 2020-12, at {where:.200}: {error.message}"
        _Parts(used).check()
    except metered.TooManySteps:
        return "it has too many parts"
    except RecursionError:
        return "it is nested too deep"
    except _Unusable as error:
        return str(error)
    return None


@cache
def _of_schemas() -> Any:
    """The schema of schemas, in one piece: as it is published, in eight, a check takes ten times as long."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    fields: Schema = {}
    kept: Schema = {}
    top = REGISTRY.contents(_DRAFT)
    for part in top["allOf"]:
        found = REGISTRY.contents(f"{_DRAFT.rpartition('/')[0]}/{part['$ref']}")
        fields |= found["properties"]
        kept |= found.get("$defs", {})
    fields["definitions"] = top["properties"]["definitions"]
    whole = {"type": ["object", "boolean"], "properties": fields, "$defs": kept}
    return metered.validator()(_by_itself(whole))


def _by_itself(part: Any) -> Any:
    match part:
        case {"$dynamicRef": "#meta"}:
            return {"$ref": "#"}
        case dict():
            return {name: _by_itself(each) for name, each in part.items()}
        case list():
            return [_by_itself(each) for each in part]
        case _:
            return part


class _Parts:
    """The schemas within a schema, and which of them lead to which."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._places = {id(part): part for part in _all(root)}
        self._counted: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()

    def check(self) -> None:
        for part in self._places.values():
            if part is not self._root and isinstance(part.get("$id"), str):
                raise _Unusable("a part of it has an $id: refer to parts by #/$defs/…")
        graph = {key: [id(each) for each in self._in_place(part)] for key, part in self._places.items()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError:
            raise _Unusable("it refers to itself without an end") from None
        self._count(self._root, 0)

    def _count(self, part: Schema, depth: int) -> tuple[int, int]:
        """How many schemas a check goes through, and how deep, with what is referred to in its place. One that comes
        back to itself further down in the payload is counted once: the steps of each check have a limit, too."""
        key = id(part)
        if key in self._open:
            return 1, 1
        if key not in self._counted:
            if depth > SCHEMA_DEPTH_MAX:
                raise _Unusable(f"it is more than {SCHEMA_DEPTH_MAX} schemas deep")
            self._open.add(key)
            below = [self._count(each, depth + 1) for each in (*self._in_place(part), *_below(part))]
            self._open.remove(key)
            self._counted[key] = 1 + sum(count for count, _ in below), 1 + max((high for _, high in below), default=0)
        count, height = self._counted[key]
        if count > SCHEMA_PARTS_MAX:
            raise _Unusable(
                f"with what its $refs refer to in their place, it has more than {SCHEMA_PARTS_MAX:,} schemas"
            )
        if depth + height > SCHEMA_DEPTH_MAX + 1:
            raise _Unusable(f"it is more than {SCHEMA_DEPTH_MAX} schemas deep")
        return count, height

    def _in_place(self, part: Schema) -> Iterator[Schema]:
        yield from _listed(part, _ONE_IN_PLACE, _LISTS_IN_PLACE, _MAPS_IN_PLACE)
        for name in _REFERENCES:
            if name in part and isinstance(target := self._target(part[name]), dict):
                yield target

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#/") and reference != "#":
            raise _Unusable(f"it refers to {reference!r:.100}, and not to a part of itself: put that in with #/$defs/…")
        found: Any = self._root
        for name in unquote(reference).split("/")[1:]:
            found = _member(found, name.replace("~1", "/").replace("~0", "~"))
        if not isinstance(found, bool) and id(found) not in self._places:
            raise _Unusable(f"it refers to {reference!r:.100}, where no schema is")
        return found


def _member(part: Any, name: str) -> Any:
    match part:
        case dict():
            return part.get(name)
        case list() if name.isdecimal() and name.isascii() and len(name) < 6 and int(name) < len(part):
            return part[int(name)]
        case _:
            return None


def _all(root: Schema) -> Iterator[Schema]:
    waiting = [root]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += _listed(part, _ONE_IN_PLACE, _LISTS_IN_PLACE, _MAPS_IN_PLACE)
        waiting += _below(part)
        waiting += _listed(part, (), (), _KEPT)


def _below(part: Schema) -> Iterator[Schema]:
    return _listed(part, _ONE_BELOW, _LISTS_BELOW, _MAPS_BELOW)


def _listed(part: Schema, ones: tuple[str, ...], lists: tuple[str, ...], maps: tuple[str, ...]) -> Iterator[Schema]:
    found = [part.get(name) for name in ones]
    for name in lists:
        found += part.get(name, ())
    for name in maps:
        found += part.get(name, {}).values()
    return (each for each in found if isinstance(each, dict))
