"""Keys of the HTTP API: few, in one partition."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.store.types import ApiKey, Verdict
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb import keys as places
from holdfast.stores.dynamodb.commit import put, put_new
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.table import Ask, Failed
from holdfast.stores.dynamodb.values import Item


async def save_key(ground: Ground, key: ApiKey, new: bool) -> Verdict:
    pk, sk = places.api_key(key.key_id)
    fields = {name: value for name, value in msgspec.to_builtins(key).items() if value is not None}
    item = {**fields, "pk": pk, "sk": sk, "wid": items.new_wid()}
    try:
        await ground.tables.update(put_new(Table.RECORDS, item) if new else put(Table.RECORDS, item), verb="save_key")
    except Failed as failed:
        return Verdict.APPLIED if failed.item is not None and _key(failed.item) == key else Verdict.STALE
    return Verdict.APPLIED


async def keys(ground: Ground, ids: Sequence[str]) -> list[ApiKey]:
    found: list[Item | None]
    if ids:
        found = await ground.tables.get(Table.RECORDS, [places.api_key(each) for each in dict.fromkeys(ids)])
    else:
        found = [
            row async for row in ground.tables.ask(Ask(table=Table.RECORDS, hash=places.API_KEYS, consistent=True))
        ]
    return sorted((_key(item) for item in found if item is not None), key=lambda key: key.key_id)


def _key(item: Item) -> ApiKey:
    return msgspec.convert(item, ApiKey)


async def drop_keys(ground: Ground, ids: Sequence[str]) -> None:
    await ground.tables.delete_many(Table.RECORDS, [places.api_key(each) for each in ids])
