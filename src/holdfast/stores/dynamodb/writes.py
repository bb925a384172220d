"""One write to one item, as data: what commits are made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.expressions import (
    Condition,
    Expression,
    Placeholders,
    absent,
    changes,
    equals,
    size_at_most,
)
from holdfast.stores.dynamodb.layout import Key, Table
from holdfast.stores.dynamodb.values import Item, Wired, encode, size


class Kind(Enum):
    PUT = "Put"
    UPDATE = "Update"
    DELETE = "Delete"
    CHECK = "ConditionCheck"


class Write(msgspec.Struct, frozen=True):
    """`item` is the whole item that a put, or a change of a job, leaves there: index attributes are derived of it when
    the write is sent. `old_size` is the larger side of a change, which is what a transaction is charged with."""

    table: Table
    key: Key
    kind: Kind
    expression: Expression = Expression()
    item: Item | None = None
    old_size: int = 0

    @property
    def wid(self) -> str | None:
        """Who writes: an item that carries it was written by this very write."""
        found = self.item.get("wid") if self.item is not None else self.expression.sets.get("wid")
        return None if found is None else str(found)

    @property
    def size(self) -> int:
        if self.item is not None:
            return max(size(self.item), self.old_size) + keys.DERIVED_BYTES_MAX
        return size(self.expression.sets) + size(self.expression.adds) + self.old_size + 512


def put(table: Table, item: Item, condition: Condition | None = None) -> Write:
    return Write(table, key_of(table, item), Kind.PUT, Expression(condition=condition), item)


def put_new(table: Table, item: Item) -> Write:
    """Only where nothing is."""
    return put(table, item, absent(table.key_names[0]))


def change(old: Item, new: Item, *, also: Condition | None = None) -> Write:
    """Of a job, if it still is at the version of `old`. What differs is written; `parked` is, whatever `old` says: it
    changes without a version, and the index attributes must agree with it. So does the list of artifacts, which a note
    may have put where `old` does not know of it."""
    condition = equals("version", old["version"])
    made = changes(old, new)
    for one, other in (("artifacts", "artifacts_body"), ("artifacts_body", "artifacts")):
        if one in made.sets and other not in made.removes:
            made = msgspec.structs.replace(made, removes=(*made.removes, other))
    if "parked" not in new and "parked" not in made.removes:
        made = msgspec.structs.replace(made, removes=(*made.removes, "parked"))
    elif "parked" in new:
        made = msgspec.structs.replace(made, sets={**made.sets, "parked": new["parked"]})
    condition = condition if also is None else condition & also
    expression = msgspec.structs.replace(made, condition=condition)
    return Write(Table.JOBS, (new["job_id"],), Kind.UPDATE, expression, new, size(old))


def replace(old: Item, new: Item, *, also: Condition | None = None) -> Write:
    """Put `new` in the place of a job that still is at the version of `old`: what retention does."""
    condition = equals("version", old["version"])
    condition = condition if also is None else condition & also
    return Write(Table.JOBS, (new["job_id"],), Kind.PUT, Expression(condition=condition), new, size(old))


def update(
    table: Table,
    key: Key,
    *,
    sets: Mapping[str, Any] | None = None,
    removes: tuple[str, ...] = (),
    adds: Mapping[str, Any] | None = None,
    takes: Mapping[str, Any] | None = None,
    condition: Condition | None = None,
) -> Write:
    """Of single attributes. An item that is not there is made, unless the condition says otherwise."""
    given = {name: value for name, value in (sets or {}).items() if value is not None}
    expression = Expression(sets=given, removes=removes, adds=adds or {}, takes=takes or {}, condition=condition)
    return Write(table, key, Kind.UPDATE, expression)


def add(table: Table, key: Key, numbers: Mapping[str, int], condition: Condition | None = None) -> Write:
    return update(table, key, adds=dict(numbers), condition=condition)


def join_set(table: Table, key: Key, name: str, members: set[str], *, most: int | None) -> Write:
    """Add members to a set, where it then has `most` at the most."""
    condition = None if most is None else size_at_most(name, most - len(members))
    return update(table, key, adds={name: members}, condition=condition)


def leave_set(table: Table, key: Key, name: str, members: set[str]) -> Write:
    return update(table, key, takes={name: members})


def delete(table: Table, key: Key, condition: Condition | None = None) -> Write:
    return Write(table, key, Kind.DELETE, Expression(condition=condition))


def check(table: Table, key: Key, condition: Condition) -> Write:
    return Write(table, key, Kind.CHECK, Expression(condition=condition))


def key_of(table: Table, item: Item) -> Key:
    if table is Table.JOBS:
        return (item["job_id"],)
    return (item["pk"], item["sk"])


def key_item(table: Table, key: Key) -> Item:
    return dict(zip(table.key_names, key, strict=True))


def merged(first: Write, second: Write) -> Write:
    """Two writes to one item as one; a transaction takes each item once. Of two puts that rest on nothing the later
    stands."""
    if first.kind is second.kind is Kind.PUT and first.expression.condition is second.expression.condition is None:
        return second
    if first.kind is Kind.CHECK and second.kind is Kind.UPDATE:
        first, second = second, first
    if first.kind is not Kind.UPDATE or second.kind not in (Kind.UPDATE, Kind.CHECK):
        raise ValueError(f"two writes to one item that cannot be one: {first.kind.value} and {second.kind.value}")
    if first.item is not None and second.item is not None:
        raise ValueError("two changes of one job in one commit")
    one, other = first.expression, second.expression
    if set(one.sets) & set(other.sets):
        raise ValueError("two writes to one item that set the same attributes")
    adds = dict(one.adds)
    for name, value in other.adds.items():
        adds[name] = (
            value if name not in adds else (adds[name] | value if isinstance(value, set) else adds[name] + value)
        )
    takes = dict(one.takes)
    for name, value in other.takes.items():
        takes[name] = takes.get(name, set()) | value
    conditions = [each for each in (one.condition, other.condition) if each is not None]
    condition = None if not conditions else conditions[0] if len(conditions) == 1 else conditions[0] & conditions[1]
    expression = Expression(
        sets={**one.sets, **other.sets},
        removes=tuple(dict.fromkeys((*one.removes, *other.removes))),
        adds=adds,
        takes=takes,
        condition=condition,
    )
    item = first.item if first.item is not None else second.item
    return Write(first.table, first.key, Kind.UPDATE, expression, item, max(first.old_size, second.old_size))


def wire(write: Write, table_name: str, shards: int) -> Wired:
    """The body of a PutItem, UpdateItem or DeleteItem, or of the same in a transaction."""
    body: Wired = {"TableName": table_name, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    expression = write.expression
    derived: Item = {}
    if write.item is not None and write.table is Table.JOBS:
        derived = keys.derived(write.item, shards)
    holders = Placeholders()
    match write.kind:
        case Kind.PUT:
            body["Item"] = encode({**(write.item or {}), **derived})
        case Kind.UPDATE:
            body["Key"] = encode(key_item(write.table, write.key))
            if write.item is not None and write.table is Table.JOBS:
                kept = tuple(name for name in expression.removes if name not in keys.DERIVED)
                expression = msgspec.structs.replace(
                    expression,
                    sets={**{n: v for n, v in expression.sets.items() if n not in keys.DERIVED}, **derived},
                    removes=(*kept, *(name for name in keys.DERIVED if name not in derived)),
                )
            if text := holders.update(expression):
                body["UpdateExpression"] = text
        case Kind.DELETE | Kind.CHECK:
            body["Key"] = encode(key_item(write.table, write.key))
    if expression.condition is not None:
        body["ConditionExpression"] = holders.condition(expression.condition)
    else:
        del body["ReturnValuesOnConditionCheckFailure"]
    return {**body, **holders.attributes()}
