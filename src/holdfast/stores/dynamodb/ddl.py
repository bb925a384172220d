"""Making, changing and deleting tables, which takes DynamoDB a while each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.dynamodb.errors import Answer, Refused, Unanswered, answer, translate
from holdfast.stores.dynamodb.table import Lane, Tables

ACTIVE_SECONDS = 600.0  # an index of a large table takes its time
LOOK_SECONDS = 0.25  # between looks at a table that is being made, at first
LOOK_SECONDS_MAX = 5.0
DDL_SECONDS = 30.0

Described = dict[str, Any]


async def run(tables: Tables, operation: str, body: dict[str, Any]) -> bool:
    """False: someone else is at it."""
    try:
        await tables.wire.persist(operation, body, lane=Lane.USUAL, seconds=DDL_SECONDS)
    except Refused as refused:
        if answer(refused) is Answer.IN_USE:
            return False
        if operation == "DeleteTable" and answer(refused) is Answer.GONE:
            return False
        raise translate(refused, tables.shown) from None
    except Unanswered as unanswered:
        raise translate(unanswered, tables.shown) from None
    return True


async def active(tables: Tables, name: str) -> Described:
    """The table, once it can be used."""
    found = await _until(tables, name, _is_active)
    if found is None:
        raise StoreError(f"{name} vanished while it was made")
    return found


async def gone(tables: Tables, name: str) -> None:
    await _until(tables, name, lambda found: found is None)


def _is_active(found: Described | None) -> bool:
    if found is None or found.get("TableStatus") != "ACTIVE":
        return False
    return all(each.get("IndexStatus") == "ACTIVE" for each in found.get("GlobalSecondaryIndexes", ()))


async def _until(tables: Tables, name: str, is_so: Callable[[Described | None], bool]) -> Described | None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ACTIVE_SECONDS
    pause = LOOK_SECONDS
    while True:
        found = await described(tables, name)
        if is_so(found):
            return found
        if loop.time() > deadline:
            raise StoreUnavailable(f"{name} is not ready after ten minutes: run holdfast migrate again")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LOOK_SECONDS_MAX)


async def described(tables: Tables, name: str) -> Described | None:
    """None: there is no such table."""
    try:
        return await describe(tables, name)
    except Refused as refused:
        raise translate(refused, tables.shown) from None


async def describe(tables: Tables, name: str) -> Described | None:
    """The same for those who want to know why they may not ask."""
    try:
        reply = await tables.wire.persist("DescribeTable", {"TableName": name}, lane=Lane.USUAL, seconds=8.0)
    except Refused as refused:
        if answer(refused) is Answer.GONE:
            return None
        raise
    except Unanswered as unanswered:
        raise translate(unanswered, tables.shown) from None
    found: Described = reply["Table"]
    return found
