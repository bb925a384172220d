"""One Query as data, and its body. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.expressions import Condition, Placeholders
from holdfast.stores.dynamodb.layout import INDEXES, Table


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds are of the range key: `above` and `below` exclude theirs, `up_to` does not."""

    table: Table
    index: str | None = None
    hash: str
    begins: str | None = None
    above: str | None = None
    below: str | None = None
    up_to: str | None = None
    backwards: bool = False
    page: int | None = None
    only: tuple[str, ...] = ()
    where: Condition | None = None
    consistent: bool = False


def query(ask: Ask, table_name: str) -> dict[str, Any]:
    """The body of the Query."""
    names = (INDEXES[ask.index].hash, INDEXES[ask.index].range) if ask.index else ask.table.key_names
    holders = Placeholders()
    text = f"{holders.name(names[0])} = {holders.value(ask.hash)}{_bounds(ask, names[1], holders)}"
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
    if ask.begins is not None and low == ask.begins and high == ask.begins + keys.HIGH:
        return f" AND begins_with({holders.name(range_name)}, {holders.value(ask.begins)})"
    if low is None and high is None:
        return ""
    name = holders.name(range_name)
    if low is None:
        return f" AND {name} <= {holders.value(high)}"
    if high is None:
        return f" AND {name} >= {holders.value(low)}"
    high = max(low, high)  # nothing lies between then; DynamoDB refuses bounds in the wrong order
    return f" AND {name} BETWEEN {holders.value(low)} AND {holders.value(high)}"


def _low(ask: Ask) -> str | None:
    if ask.above is None or (ask.begins is not None and ask.begins > ask.above):
        return ask.begins
    return ask.above + "\x01"  # no key of ours goes on like this, so it means: after that one


def _high(ask: Ask) -> str | None:
    ends = [end for end in (ask.up_to, None if ask.below is None else _before(ask.below)) if end is not None]
    if ask.begins is not None:
        ends.append(ask.begins + keys.HIGH)
    return min(ends, default=None)


def _before(text: str) -> str:
    """Before `text`, and after every key of ours that is: a Query has no exclusive bound beside a second one."""
    return text[:-1] + chr(ord(text[-1]) - 1) + keys.HIGH
