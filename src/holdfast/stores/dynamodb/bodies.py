"""Texts over 200 bytes lie in items of their own, so that claims, heartbeats and settlements write one small item
whatever the payload's size. A body is put before the commit that names it: where that fails it is litter, and swept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.errors import StoreError
from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.layout import Key, Table
from holdfast.stores.dynamodb.table import Lane, Tables
from holdfast.stores.dynamodb.values import Item

INLINE_BYTES_MAX = 200
ARTIFACTS_INLINE_BYTES_MAX = 64_000
PART_CHARS = 75_000  # of up to 4 bytes: 300 KB of an item's 400
# What may lie outside: the attribute, the one that names its body, and up to how many bytes it stays.
_SPILLED = (
    ("payload", "body", INLINE_BYTES_MAX),
    ("result", "result_body", INLINE_BYTES_MAX),
    ("artifacts", "artifacts_body", ARTIFACTS_INLINE_BYTES_MAX),
)
Texts = Mapping[Key, str]


class Missing(StoreError):
    """A text that an item names is not there. Of one that has just been retired, another look tells."""


def spill(item: Item) -> tuple[Item, list[Item]]:
    """The item with long texts named instead, and the records that hold them. A body's name is that of the write
    (`wid`), so that a repeat never overwrites what another has written."""
    records: list[Item] = []
    for name, pointer, most in _SPILLED:
        text = item.get(name)
        if text is None or len(text) * 4 <= most or len(text.encode()) <= most:
            continue
        parts = [text[i : i + PART_CHARS] for i in range(0, len(text), PART_CHARS)]
        body = f"{item['wid']}.{name[0]}.{len(parts)}"
        for number, part in enumerate(parts):
            pk, sk = keys.body(item["job_id"], body, number)
            records.append({"pk": pk, "sk": sk, "text": part})
        item = {key: value for key, value in item.items() if key != name} | {pointer: body}
    return item, records


async def put(tables: Tables, records: list[Item], *, lane: Lane = Lane.USUAL) -> None:
    if records:
        await tables.put_many(Table.RECORDS, records, lane=lane)


async def fetch(
    tables: Tables, items: Iterable[Item], *, names: tuple[str, ...] = ("payload", "result", "artifacts")
) -> Texts:
    """The parts of all bodies that these items name."""
    wanted = [
        key
        for item in items
        for name, pointer, _ in _SPILLED
        if name in names and pointer in item
        for key in _parts(item, item[pointer])
    ]
    found = await tables.get(Table.RECORDS, wanted)
    return {key: part["text"] for key, part in zip(wanted, found, strict=True) if part is not None}


def payload(item: Item, texts: Texts) -> str:
    return _text(item, "payload", "body", texts) or "null"


def result(item: Item, texts: Texts) -> str | None:
    return _text(item, "result", "result_body", texts)


def artifacts(item: Item, texts: Texts) -> str | None:
    return _text(item, "artifacts", "artifacts_body", texts)


def names_of(item: Item) -> list[Key]:
    """The records that hold the texts of this item."""
    return [key for _, pointer, _ in _SPILLED if pointer in item for key in _parts(item, item[pointer])]


def _text(item: Item, name: str, pointer: str, texts: Texts) -> str | None:
    if pointer not in item:
        found = item.get(name)
        return None if found is None else str(found)
    parts = _parts(item, item[pointer])
    if any(key not in texts for key in parts):
        raise Missing(
            f"job {item['job_id']}: a part of its {name} is missing: restore the table of records from a backup, or"
            " submit the job again"
        )
    return "".join(texts[key] for key in parts)


def _parts(item: Item, body: str) -> list[Key]:
    return [keys.body(item["job_id"], body, number) for number in range(int(body.rpartition(".")[2]))]
