"""DynamoDB conditions, queries and writes as data; placeholders are assigned when a request is built. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import msgspec

from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.attributes import MARKED, Form
from backstay.engines.dynamodb.schema import INDEXES, Item, Key, Table, Wired, encode, encode_value, size


class Name(msgspec.Struct, frozen=True):
    """The name of an attribute inside a condition."""

    name: str


class Value(msgspec.Struct, frozen=True):
    """A value inside a condition, and the field that it is a value of."""

    value: Any
    of: str = ""


Part = str | Name | Value


class Condition(msgspec.Struct, frozen=True):
    """A condition as a sequence of texts, names and values. Combine them with `a & b` and `a | b`."""

    parts: tuple[Part, ...]

    def __and__(self, other: Condition) -> Condition:
        return self if self == other else Condition(("(", *self.parts, ") AND (", *other.parts, ")"))

    def __or__(self, other: Condition) -> Condition:
        return Condition(("(", *self.parts, ") OR (", *other.parts, ")"))


def equals(name: str, value: Any) -> Condition:
    """Return the condition that an attribute has this value; None means that it is absent."""
    if value is None:
        return absent(name)
    if name not in MARKED:
        return _compared(name, "=", value)
    marked = Condition(("begins_with(", Name(name), ", ", Value(f"{value}#", name), ")"))
    return _compared(name, "=", value) | marked


def differs(name: str, value: Any) -> Condition:
    if name in MARKED:
        return Condition(("NOT (", *equals(name, value).parts, ")"))
    return _compared(name, "<>", value)


def below(name: str, value: Any) -> Condition:
    return _compared(name, "<", value)


def above(name: str, value: Any) -> Condition:
    return _compared(name, ">", value)


def at_most(name: str, value: Any) -> Condition:
    return _compared(name, "<=", value)


def _compared(name: str, how: str, value: Any) -> Condition:
    return Condition((Name(name), f" {how} ", Value(value, name)))


def absent(name: str) -> Condition:
    return Condition(("attribute_not_exists(", Name(name), ")"))


def present(name: str) -> Condition:
    return Condition(("attribute_exists(", Name(name), ")"))


def begins(name: str, text: str) -> Condition:
    return Condition(("begins_with(", Name(name), ", ", Value(text), ")"))


def one_of(name: str, values: Collection[Any]) -> Condition:
    if name in MARKED:
        return any_of(*(equals(name, each) for each in values))
    listed: list[Part] = []
    for value in values:
        listed += [", ", Value(value, name)] if listed else [Value(value, name)]
    return Condition((Name(name), " IN (", *listed, ")"))


def size_at_most(name: str, size: int) -> Condition:
    """Return the condition that a set has at most this many members; an absent set is empty."""
    return absent(name) | Condition(("size(", Name(name), ") <= ", Value(size)))


def unchanged(item: Item, first: str, *others: str) -> Condition:
    """Return the condition that attributes are unchanged since they were read."""
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
    """The effect of a write on an item, and its condition. `adds` are numbers or sets, `takes` members to remove from
    sets."""

    sets: Mapping[str, Any] = {}
    removes: tuple[str, ...] = ()
    adds: Mapping[str, Any] = {}
    takes: Mapping[str, Any] = {}
    condition: Condition | None = None


def changes(old: Item, new: Item) -> Expression:
    """Return the expression that turns `old` into `new`."""
    return Expression(
        sets={name: value for name, value in new.items() if value is not None and old.get(name) != value},
        removes=tuple(name for name, value in old.items() if value is not None and new.get(name) is None),
    )


def apply(expression: Expression, item: Item) -> Item:
    """Apply it to a plain item, as the server would, without checking conditions."""
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
    """Names and values of one request: #a for names, :a for values; those of jobs, with a form, as their table has
    them."""

    def __init__(self, form: Form | None = None) -> None:
        self._form = form
        self._names: dict[str, str] = {}
        self._values: list[Any] = []

    def name(self, name: str) -> str:
        name = name if self._form is None else self._form.name(name)
        return self._names.setdefault(name, f"#{len(self._names)}")

    def value(self, value: Any, of: str = "") -> str:
        self._values.append(value if self._form is None else self._form.value(of, value))
        return f":{len(self._values) - 1}"

    def condition(self, condition: Condition) -> str:
        return "".join(self._part(part) for part in condition.parts)

    def _part(self, part: Part) -> str:
        match part:
            case Name(name):
                return self.name(name)
            case Value(value, of):
                return self.value(value, of)
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
        """Return the two fields of the request that define the placeholders."""
        fields: Wired = {}
        if self._names:
            fields["ExpressionAttributeNames"] = {short: name for name, short in self._names.items()}
        if self._values:
            fields["ExpressionAttributeValues"] = {f":{i}": encode_value(v) for i, v in enumerate(self._values)}
        return fields


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A query. Bounds apply to the range key: `above` and `below` are exclusive, `since` and `up_to` are inclusive."""

    table: Table
    index: str | None = None
    hash: str
    begins: str | None = None
    above: str | None = None
    below: str | None = None
    since: str | None = None
    up_to: str | int | None = None  # a number where the key is one
    backwards: bool = False
    page: int | None = None
    only: tuple[str, ...] = ()
    where: Condition | None = None
    consistent: bool = False


def query(ask: Ask, table_name: str, form: Form) -> dict[str, Any]:
    """Return the body of the Query."""
    names = (INDEXES[ask.index].hash, INDEXES[ask.index].range) if ask.index else ask.table.key_names
    holders = Placeholders(form if ask.table is Table.JOBS else None)
    text = f"{holders.name(names[0])} = {holders.value(ask.hash, names[0])}{_bounds(ask, names[1], holders)}"
    body: dict[str, Any] = {"TableName": table_name, "KeyConditionExpression": text}
    if ask.index is not None:
        body["IndexName"] = ask.index
    if ask.backwards:
        body["ScanIndexForward"] = False
    if ask.page is not None:
        body["Limit"] = ask.page
    if ask.consistent:
        body["ConsistentRead"] = True
    if ask.only:
        body["ProjectionExpression"] = ", ".join(map(holders.name, ask.only))
    if ask.where is not None:
        body["FilterExpression"] = holders.condition(ask.where)
    return {**body, **holders.attributes()}


def _bounds(ask: Ask, range_name: str, holders: Placeholders) -> str:
    low, high = _low(ask), _high(ask)
    if ask.begins is not None and low == ask.begins and high == ask.begins + schema.HIGH:
        return f" AND begins_with({holders.name(range_name)}, {holders.value(ask.begins, range_name)})"
    if low is None and high is None:
        return ""
    name = holders.name(range_name)
    if low is None:
        return f" AND {name} <= {holders.value(high)}"
    if high is None:
        return f" AND {name} >= {holders.value(low)}"
    high = max(low, str(high))  # an empty range; DynamoDB refuses bounds in the wrong order
    return f" AND {name} BETWEEN {holders.value(low)} AND {holders.value(high)}"


def _low(ask: Ask) -> str | None:
    if ask.since is not None:
        return ask.since
    if ask.above is None or (ask.begins is not None and ask.begins > ask.above):
        return ask.begins
    return ask.above + "\x01"  # no key of ours continues like this, so it means: after that one


def _high(ask: Ask) -> str | int | None:
    if isinstance(ask.up_to, int):
        return ask.up_to
    ends = [end for end in (ask.up_to, None if ask.below is None else _before(ask.below)) if end is not None]
    if ask.begins is not None:
        ends.append(ask.begins + schema.HIGH)
    return min(ends, default=None)


def _before(text: str) -> str:
    """Return a bound directly before `text`: a Query cannot combine an exclusive bound with a second one."""
    return text[:-1] + chr(ord(text[-1]) - 1) + schema.HIGH


class Kind(Enum):
    PUT = "Put"
    UPDATE = "Update"
    DELETE = "Delete"
    CHECK = "ConditionCheck"


class Write(msgspec.Struct, frozen=True):
    """A write. `item` is the whole item after a put or a change of a job: index attributes are derived from it when the
    write is sent. `old_size` is the size before the change: a transaction is charged for the larger one."""

    table: Table
    key: Key
    kind: Kind
    expression: Expression = Expression()
    item: Item | None = None
    old_size: int = 0

    @property
    def wid(self) -> str | None:
        """Return the id of the write: an item that has it was written by this write."""
        found = self.item.get("wid") if self.item is not None else self.expression.sets.get("wid")
        return None if found is None else str(found)

    @property
    def size(self) -> int:
        if self.item is not None:
            return max(size(self.item), self.old_size) + schema.DERIVED_BYTES_MAX
        return size(self.expression.sets) + size(self.expression.adds) + self.old_size + 512


def put(table: Table, item: Item, condition: Condition | None = None) -> Write:
    return Write(table, key_of(table, item), Kind.PUT, Expression(condition=condition), item)


def put_new(table: Table, item: Item) -> Write:
    """Return a put that fails if the item exists."""
    return put(table, item, absent(table.key_names[0]))


def change(old: Item, new: Item, *, also: Condition | None = None) -> Write:
    """Return a change of a job, if it is still at the version of `old`. Differences are written. `parked` is always
    written, because it changes without a version and the index attributes must agree with it; so is the list of
    artifacts, which a note may have written since `old` was read."""
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
    """Return a put of `new` over a job that is still at the version of `old`, for retention."""
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
    """Return an update of single attributes. A missing item is created, unless the condition forbids it."""
    given = {name: value for name, value in (sets or {}).items() if value is not None}
    expression = Expression(sets=given, removes=removes, adds=adds or {}, takes=takes or {}, condition=condition)
    return Write(table, key, Kind.UPDATE, expression)


def add(table: Table, key: Key, numbers: Mapping[str, int], condition: Condition | None = None) -> Write:
    return update(table, key, adds=dict(numbers), condition=condition)


def join_set(table: Table, key: Key, name: str, members: set[str], *, most: int | None) -> Write:
    """Return an update that adds members to a set if it then has at most `most`."""
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
    """Combine two writes to one item: a transaction can have each item once. Of two unconditional puts the later
    counts."""
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


def wire(write: Write, table_name: str, form: Form) -> Wired:
    """Return the body of a PutItem, UpdateItem or DeleteItem, alone or in a transaction."""
    body: Wired = {"TableName": table_name, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    is_job = write.table is Table.JOBS
    expression = write.expression
    derived: Item = {}
    if write.item is not None and is_job:
        derived = schema.derived(write.item, form.shards)
    holders = Placeholders(form if is_job else None)
    match write.kind:
        case Kind.PUT:
            item = {**(write.item or {}), **derived}
            body["Item"] = encode(form.stored(item, write.key[0]) if is_job else item)
        case Kind.UPDATE:
            body["Key"] = encode(key_item(write.table, write.key))
            if write.item is not None and is_job:
                kept = tuple(name for name in expression.removes if name not in schema.DERIVED)
                expression = msgspec.structs.replace(
                    expression,
                    sets={**{n: v for n, v in expression.sets.items() if n not in schema.DERIVED}, **derived},
                    removes=(*kept, *(name for name in schema.DERIVED if name not in derived)),
                )
            if is_job:
                expression = msgspec.structs.replace(expression, sets=form.stored(expression.sets, write.key[0]))
            if text := holders.update(expression):
                body["UpdateExpression"] = text
        case Kind.DELETE | Kind.CHECK:
            body["Key"] = encode(key_item(write.table, write.key))
    if expression.condition is not None:
        body["ConditionExpression"] = holders.condition(expression.condition)
    else:
        del body["ReturnValuesOnConditionCheckFailure"]
    return {**body, **holders.attributes()}
