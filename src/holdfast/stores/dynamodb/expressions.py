"""Conditions and changes as data; placeholders are given out only when a request is made. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from holdfast.stores.dynamodb.values import Item, Wired, encode_value


class Name(msgspec.Struct, frozen=True):
    """An attribute's name inside a condition."""

    name: str


class Value(msgspec.Struct, frozen=True):
    """A value inside a condition."""

    value: Any


Part = str | Name | Value


class Condition(msgspec.Struct, frozen=True):
    """A condition as a row of texts, names and values. `a & b` and `a | b` are what they say."""

    parts: tuple[Part, ...]

    def __and__(self, other: Condition) -> Condition:
        return self if self == other else Condition(("(", *self.parts, ") AND (", *other.parts, ")"))

    def __or__(self, other: Condition) -> Condition:
        return Condition(("(", *self.parts, ") OR (", *other.parts, ")"))


def equals(name: str, value: Any) -> Condition:
    """None: the attribute is not there."""
    return absent(name) if value is None else Condition((Name(name), " = ", Value(value)))


def differs(name: str, value: Any) -> Condition:
    return Condition((Name(name), " <> ", Value(value)))


def below(name: str, value: Any) -> Condition:
    return Condition((Name(name), " < ", Value(value)))


def above(name: str, value: Any) -> Condition:
    return Condition((Name(name), " > ", Value(value)))


def at_most(name: str, value: Any) -> Condition:
    return Condition((Name(name), " <= ", Value(value)))


def at_least(name: str, value: Any) -> Condition:
    return Condition((Name(name), " >= ", Value(value)))


def absent(name: str) -> Condition:
    return Condition(("attribute_not_exists(", Name(name), ")"))


def present(name: str) -> Condition:
    return Condition(("attribute_exists(", Name(name), ")"))


def begins(name: str, text: str) -> Condition:
    return Condition(("begins_with(", Name(name), ", ", Value(text), ")"))


def contains(name: str, member: str) -> Condition:
    return Condition(("contains(", Name(name), ", ", Value(member), ")"))


def one_of(name: str, values: Collection[Any]) -> Condition:
    listed: list[Part] = []
    for value in values:
        listed += [", ", Value(value)] if listed else [Value(value)]
    return Condition((Name(name), " IN (", *listed, ")"))


def size_at_most(name: str, size: int) -> Condition:
    """Of a set; one that is not there is empty."""
    return absent(name) | Condition(("size(", Name(name), ") <= ", Value(size)))


def size_below(name: str, size: int) -> Condition:
    return size_at_most(name, size - 1)


def unchanged(item: Item, first: str, *others: str) -> Condition:
    """What was read to decide is still so."""
    return all_of(equals(first, item.get(first)), *(equals(name, item.get(name)) for name in others))


def all_of(first: Condition, *others: Condition) -> Condition:
    for each in others:
        first = first & each
    return first


def any_of(first: Condition, *others: Condition) -> Condition:
    for each in others:
        first = first | each
    return first


class Expression(msgspec.Struct, frozen=True, kw_only=True):
    """What a write does to an item, and under which condition. `adds` are numbers or sets, `takes` members of sets."""

    sets: Mapping[str, Any] = {}
    removes: tuple[str, ...] = ()
    adds: Mapping[str, Any] = {}
    takes: Mapping[str, Any] = {}
    condition: Condition | None = None


def changes(old: Item, new: Item) -> Expression:
    """What makes `new` of `old`."""
    return Expression(
        sets={name: value for name, value in new.items() if value is not None and old.get(name) != value},
        removes=tuple(name for name, value in old.items() if value is not None and new.get(name) is None),
    )


def apply(expression: Expression, item: Item) -> Item:
    """The same on a plain item: what the server would make of it, conditions apart."""
    changed = {**item, **expression.sets}
    for name in expression.removes:
        changed.pop(name, None)
    for name, value in expression.adds.items():
        if isinstance(value, set | frozenset):
            changed[name] = set(changed.get(name, ())) | value
        else:
            changed[name] = changed.get(name, 0) + value
    for name, value in expression.takes.items():
        left = set(changed.pop(name, ())) - value
        if left:
            changed[name] = left
    return changed


class Placeholders:
    """Names and values of one request: #a for names, :a for values."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: list[Any] = []

    def name(self, name: str) -> str:
        return self._names.setdefault(name, f"#{len(self._names)}")

    def value(self, value: Any) -> str:
        self._values.append(value)
        return f":{len(self._values) - 1}"

    def condition(self, condition: Condition) -> str:
        return "".join(self._part(part) for part in condition.parts)

    def _part(self, part: Part) -> str:
        match part:
            case Name(name):
                return self.name(name)
            case Value(value):
                return self.value(value)
            case _:
                return part

    def update(self, expression: Expression) -> str:
        clauses = []
        if expression.sets:
            clauses.append("SET " + ", ".join(f"{self.name(n)} = {self.value(v)}" for n, v in expression.sets.items()))
        if expression.removes:
            clauses.append("REMOVE " + ", ".join(map(self.name, expression.removes)))
        if expression.adds:
            clauses.append("ADD " + ", ".join(f"{self.name(n)} {self.value(v)}" for n, v in expression.adds.items()))
        if expression.takes:
            pairs = (f"{self.name(n)} {self.value(v)}" for n, v in expression.takes.items())
            clauses.append("DELETE " + ", ".join(pairs))
        return " ".join(clauses)

    def attributes(self) -> Wired:
        """The two fields of the request that say what the placeholders stand for."""
        fields: Wired = {}
        if self._names:
            fields["ExpressionAttributeNames"] = {short: name for name, short in self._names.items()}
        if self._values:
            fields["ExpressionAttributeValues"] = {f":{i}": encode_value(v) for i, v in enumerate(self._values)}
        return fields
