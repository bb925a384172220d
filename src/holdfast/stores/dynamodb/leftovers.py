"""What lies around a job that went to the archive: texts, steps, edges, lists. Nothing reads it any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from holdfast.stores.dynamodb import bodies, keys, linking, plan
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import delete
from holdfast.stores.dynamodb.expressions import equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Key, Table
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

_TOGETHER = 16


async def remove(ground: Ground, items: Sequence[Item]) -> None:
    for start in range(0, len(items), _TOGETHER):
        found = await asyncio.gather(*(_around(ground, item) for item in items[start : start + _TOGETHER]))
        await ground.tables.delete_many(Table.RECORDS, [key for of_one in found for key in of_one], lane=Lane.IDLE)
    for item in items:
        for pointer in plan.latest(item):
            own = delete(Table.RECORDS, pointer.key, equals("job_id", item["job_id"]))
            with contextlib.suppress(Failed):  # a later one has taken its place
                await ground.tables.update(own, lane=Lane.IDLE)


async def _around(ground: Ground, item: Item) -> list[Key]:
    job_id = item["job_id"]
    found: list[Key] = []
    if item.get("attempt"):
        found += await _all_in(ground, keys.steps(job_id))
    if bodies.names_of(item):
        found += await _all_in(ground, f"body|{job_id}")
    if item.get("awaited"):
        found += await _all_in(ground, keys.edges(job_id))
    if item.get("depends_on") or item.get("needs"):
        found += [keys.edge(parent, job_id) for parent in await linking.dependencies(ground, item)]
    if item.get("children"):
        found += await _all_in(ground, keys.kids(job_id))
    if item.get("needs"):
        found += await _all_in(ground, keys.needs(job_id)[0])
    return found


async def _all_in(ground: Ground, partition: str) -> list[Key]:
    ask = Ask(table=Table.RECORDS, hash=partition, only=("pk", "sk"))
    return [(row["pk"], row["sk"]) async for row in ground.tables.ask(ask, lane=Lane.IDLE)]
