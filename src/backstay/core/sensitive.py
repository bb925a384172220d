"""Sensitive fields of payloads: where a schema marks them, as paths, and values with these fields masked. Pure.

A field is sensitive if it is pydantic's SecretStr (format "password", writeOnly) or has json_schema_extra={"sensitive":
True}; it is shown as dots. A mark is a path such as /card or /orders/*/card: "*" is any name or place, "**" any number
of steps. Names are escaped as in a JSON pointer (~0 for ~, ~1 for /). The empty path is the whole payload.

Marks only ever widen here. A schema that says too little or too much (a reference that loops, thousands of fields)
leads to marks that mask more than it asked for, never less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import Any
from urllib.parse import unquote

import msgspec

from backstay.core.records import JobType
from backstay.limits import SENSITIVE_FIELDS_MAX

MASK = "•••"
ANY, DEEP = "*", "**"
Path = tuple[str, ...]
_DEPTH_MAX = 64  # levels of a stored document; none can be deeper
_STEPS_MAX = 32  # of one path; a longer one becomes "the last name, at any depth"
_NAMES_MAX = 20_000  # ways to write the marks of one type with all aliases of its fields
_LISTS = ("anyOf", "oneOf", "allOf")
_IN_PLACE = ("if", "then", "else", "not")
_BY_CONDITION = ("dependentSchemas", "dependencies")
_NAMES_UNKNOWN = ("additionalProperties", "unevaluatedProperties", "additionalItems", "unevaluatedItems", "contains")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_WORDS = ("sensitive", "writeOnly", "password")


@lru_cache(maxsize=256)
def marks_of(schema: str | None, word: str | None = None) -> tuple[str, ...]:
    """Return the marks of a schema; most have none. With a `word`, the paths of what has this word instead."""
    words = _WORDS if word is None else (word,)
    if schema is None or not any(each in schema for each in words):
        return ()
    try:
        document = msgspec.json.decode(schema)
    except msgspec.DecodeError:
        return ()
    try:
        return _written(_Graph(document, word).marks)
    except RecursionError:
        return ("",)


def union(*marks: Iterable[str]) -> tuple[str, ...]:
    """Return all marks, each once. Beyond SENSITIVE_FIELDS_MAX they are widened to names at any depth, and beyond that
    to the whole payload."""
    return _written({_steps(mark) for each in marks for mark in each})


def announced(stored: JobType | None, new: JobType) -> JobType:
    """Return a type as it is stored when it is announced: with its marks, those of its schema, and all earlier ones."""
    earlier = () if stored is None else stored.sensitive
    return msgspec.structs.replace(new, sensitive=union(earlier, new.sensitive, marks_of(new.payload_schema)))


def without(stored: JobType, marks: Iterable[str]) -> JobType:
    taken = set(union(marks))
    return msgspec.structs.replace(stored, sensitive=tuple(each for each in stored.sensitive if each not in taken))


def renamed(marks: Iterable[str], names: Mapping[str, Iterable[Path]]) -> tuple[str, ...]:
    """Return the marks with each step written in all the ways that `names` has for it: fields have aliases."""
    found: set[Path] = set()
    for mark in marks:
        steps = _steps(mark)
        ways = [[(step,), *names.get(step, ())] for step in steps]
        for chosen in product(*ways):
            found.add(tuple(step for part in chosen for step in part))
            if len(found) > _NAMES_MAX:
                return ("",)
    return _written(found)


def masked(marks: Iterable[str], value: Any) -> Any:
    """Return the value with every marked field masked."""
    node = _tree(tuple(marks))
    return value if node is None else _masked(value, [node], _DEPTH_MAX)


# Finding marks


class _Graph:
    """A schema as parts and the steps between them; a reference is a step that stays at its place."""

    def __init__(self, document: Any, word: str | None = None) -> None:
        self._document = document
        self._anchors: dict[str, Any] | None = None
        self._parts: dict[int, dict[str, Any]] = {}
        self._steps: dict[int, list[tuple[str | None, int]]] = {}  # from a part to others; None: the same place
        self._known: dict[int, set[Path]] = {}
        self._covered: dict[int, bool] = {}
        self._names: set[Path] | None = None
        root = self._add(document)
        is_marked = _is_marked if word is None else lambda part: part.get(word) is True
        self._marked = {key for key, part in self._parts.items() if is_marked(part)}
        # A document inside a text: the text is masked.
        self._marked |= {
            key
            for key, part in self._parts.items()
            if id(inner := part.get("contentSchema")) in self._parts and self._reach(id(inner)) & self._marked
        }
        self._looped = self._in_loops()
        self.marks: set[Path] = set() if root is None or not self._marked else self._of(root)

    def _add(self, document: Any) -> int | None:
        if not isinstance(document, dict):
            return None
        waiting = [document]
        while waiting:
            part = waiting.pop()
            if id(part) in self._parts:
                continue
            self._parts[id(part)] = part
            found = [(None, each) for each in self._in_place(part)] + [*_below(part)]
            self._steps[id(part)] = [(step, id(each)) for step, each in found if isinstance(each, dict)]
            waiting += [each for _, each in (*found, (None, part.get("contentSchema"))) if isinstance(each, dict)]
        return id(document)

    def _of(self, key: int) -> set[Path]:
        """Return the marks below a part, as paths from it. Below a part that contains itself they are names at any
        depth, so that there is an end to them; the same names below all such parts, or a schema of thousands of them
        would take minutes."""
        if key not in self._known:
            if self._is_covered(key):
                paths: set[Path] = {()}
            elif key in self._looped:
                paths = self._below_loops()
            else:
                paths = {
                    path if step is None else (step, *path)
                    for step, inner in self._steps[key]
                    for path in self._of(inner)
                }
            self._known[key] = paths if len(paths) <= SENSITIVE_FIELDS_MAX else _widened(paths)
        return self._known[key]

    def _below_loops(self) -> set[Path]:
        if self._names is None:
            self._names = {
                (DEEP, step)
                for part in self._reach(*self._looped)
                for step, inner in self._steps[part]
                if step is not None and self._is_covered(inner)
            }
        return self._names

    def _is_covered(self, key: int) -> bool:
        """Whether a part, or one that describes the same place, has a mark."""
        if key not in self._covered:
            self._covered[key] = bool(self._reach(key, in_place=True) & self._marked)
        return self._covered[key]

    def _reach(self, *start: int, in_place: bool = False) -> set[int]:
        seen, waiting = set[int](), [*start]
        while waiting:
            key = waiting.pop()
            if key not in seen:
                seen.add(key)
                waiting += [inner for step, inner in self._steps[key] if step is None or not in_place]
        return seen

    def _in_loops(self) -> set[int]:
        """Return the parts that contain themselves, and those between two of these: what remains when parts that lead
        nowhere, and parts to which nothing leads, are taken away one after another."""
        left = set(self._parts)
        forth = {key: [inner for _, inner in self._steps[key]] for key in left}
        back: dict[int, list[int]] = {key: [] for key in left}
        for key, inners in forth.items():
            for inner in inners:
                back[inner].append(key)
        for onward, inward in ((forth, back), (back, forth)):
            count = {key: sum(each in left for each in onward[key]) for key in left}
            ends = [key for key in left if count[key] == 0]
            while ends:
                key = ends.pop()
                left.discard(key)
                for each in inward[key]:
                    if each in left:
                        count[each] -= 1
                        if count[each] == 0:
                            ends.append(each)
        return left

    def _in_place(self, schema: dict[str, Any]) -> Iterator[Any]:
        for word in _LISTS:
            parts = schema.get(word)
            yield from parts if isinstance(parts, list) else ()
        for word in _IN_PLACE:
            yield schema.get(word)
        for word in _BY_CONDITION:
            parts = schema.get(word)
            yield from parts.values() if isinstance(parts, dict) else ()
        for word in _REFERENCES:
            if isinstance(named := schema.get(word), str):
                yield self._target(named)

    def _target(self, reference: str) -> Any:
        """Return the part that a reference names: by its place, by its anchor, or the whole schema."""
        base, _, fragment = reference.partition("#")
        root = self._document
        if not isinstance(root, dict) or (base and base != str(root.get("$id", "")).rstrip("#")):
            return None
        if not fragment:
            return root
        if not fragment.startswith("/"):
            return self._anchored().get(fragment)
        found: Any = root
        for step in unquote(fragment)[1:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(name)
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found

    def _anchored(self) -> dict[str, Any]:
        if self._anchors is None:
            self._anchors = {}
            waiting: list[Any] = [self._document]
            while waiting:
                part = waiting.pop()
                if isinstance(part, dict):
                    for word in ("$anchor", "$dynamicAnchor"):
                        if isinstance(name := part.get(word), str):
                            self._anchors.setdefault(name, part)
                    waiting += part.values()
                elif isinstance(part, list):
                    waiting += part
        return self._anchors


def _is_marked(schema: dict[str, Any]) -> bool:
    return schema.get("sensitive") is True or schema.get("writeOnly") is True or schema.get("format") == "password"


def _below(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parts that describe something inside a value, each with its step. Patterns of names are not read: some
    would never end."""
    named = schema.get("properties")
    if isinstance(named, dict):
        yield from named.items()
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict):
        yield from ((ANY, part) for part in patterns.values())
    items = schema.get("items")
    if isinstance(items, dict):
        yield ANY, items
    for places in (items, schema.get("prefixItems")):
        if isinstance(places, list):
            yield from ((str(place), part) for place, part in enumerate(places))
    for word in _NAMES_UNKNOWN:
        yield ANY, schema.get(word)


# Paths as text


def _written(paths: set[Path]) -> tuple[str, ...]:
    paths = {_short(path) for path in paths}
    if len(paths) > SENSITIVE_FIELDS_MAX:
        paths = _widened(paths)
    return tuple(sorted("".join(f"/{_escaped(step)}" for step in path) for path in paths))


def _short(path: Path) -> Path:
    """Return a path without repeated "**", and of bounded length."""
    kept: list[str] = []
    for step in path:
        if not (step == DEEP and kept and kept[-1] == DEEP):
            kept.append(step)
    return tuple(kept) if len(kept) <= _STEPS_MAX else (DEEP, kept[-1])


def _widened(paths: set[Path]) -> set[Path]:
    names: set[Path] = {(DEEP, path[-1]) for path in paths if path}
    return names if len(names) <= SENSITIVE_FIELDS_MAX and () not in paths else {()}


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _steps(mark: str) -> Path:
    return () if mark == "" else tuple(map(_plain, mark.removeprefix("/").split("/")))


def _plain(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


# Masking


class _Node:
    """One step of the marks, all of them read as a tree."""

    __slots__ = ("is_deep", "is_end", "steps")

    def __init__(self, step: str = "") -> None:
        self.steps: dict[str, _Node] = {}
        self.is_deep = step == DEEP  # it stays at any further step
        self.is_end = False


@lru_cache(maxsize=256)
def _tree(marks: tuple[str, ...]) -> _Node | None:
    root = _Node()
    for mark in marks:
        node = root
        for step in _steps(mark):
            node = node.steps.setdefault(step, _Node(step))
        node.is_end = True
    return root if marks else None


def _masked(value: Any, nodes: list[_Node], depth: int) -> Any:
    nodes = _with_deep(nodes)
    if any(node.is_end for node in nodes) or depth == 0:
        return None if value is None else MASK
    match value:
        case dict():
            return {name: _masked(part, _after(nodes, name), depth - 1) for name, part in value.items()}
        case list():
            return [_masked(part, _after(nodes, str(place)), depth - 1) for place, part in enumerate(value)]
        case _:
            return value


def replaced(marks: tuple[str, ...], value: Any, new: Callable[[Path, Any], Any]) -> Any:
    """Return the value with every marked part replaced. A path has "*" for a place in a list."""
    node = _tree(marks)
    return value if node is None else _replaced(value, [node], (), new)


def _replaced(value: Any, nodes: list[_Node], path: Path, new: Callable[[Path, Any], Any]) -> Any:
    nodes = _with_deep(nodes)
    if any(node.is_end for node in nodes):
        return new(path, value)
    match value:
        case dict():
            return {name: _replaced(part, _after(nodes, name), (*path, name), new) for name, part in value.items()}
        case list():
            return [_replaced(part, _after(nodes, str(place)), (*path, ANY), new) for place, part in enumerate(value)]
        case _:
            return value


def covers(mark: str, names: tuple[str, ...]) -> bool:
    """Return whether a mark is at, above or below the field with these names."""
    steps = _steps(mark)
    if DEEP in steps:
        return True
    return all(step in (ANY, name) for step, name in zip(steps, names, strict=False))


def _with_deep(nodes: list[_Node]) -> list[_Node]:
    """Add what follows a "**" of no steps."""
    found = dict.fromkeys(nodes)
    waiting = list(nodes)
    while waiting:
        deep = waiting.pop().steps.get(DEEP)
        if deep is not None and deep not in found:
            found[deep] = None
            waiting.append(deep)
    return list(found)


def _after(nodes: list[_Node], name: str) -> list[_Node]:
    found: dict[_Node, None] = {}
    for node in nodes:
        for step in (name, ANY):
            if (each := node.steps.get(step)) is not None:
                found[each] = None
        if node.is_deep:
            found[node] = None
    return list(found)
