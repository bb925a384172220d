"""Files as items: a head that names its parts. Parts are put first, so that a reader never sees half a file."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import StoreBusy, StoreError
from holdfast.limits import MIB
from holdfast.stores.dynamodb import keys
from holdfast.stores.dynamodb.address import Address
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import Cancelled, Commit, put, put_new, update
from holdfast.stores.dynamodb.expressions import equals
from holdfast.stores.dynamodb.layout import Key, Table
from holdfast.stores.dynamodb.table import Tables
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Wire
from holdfast.stores.remote_files import OF_THE_JOB, RemoteFiles

FILE_BYTES_MAX = 16 * MIB  # every KiB is a write unit: what is larger belongs into a bucket
PART_BYTES = 300_000
CONNECTIONS = 8
ROUNDS = 50


def files_of(address: Address) -> RemoteFiles:
    where = msgspec.structs.replace(address, pool=CONNECTIONS)
    return RemoteFiles(lambda: TableFiling(Tables(Wire(where), where.tables, shards=where.shards, shown=where.shown)))


class TableFiling:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def write(self, job_id: str, attempt: int, name: str, content: bytes) -> None:
        await _write(self._tables, job_id, attempt, name, content)

    async def append(self, job_id: str, name: str, content: bytes, size_max: int, append_id: str) -> None:
        await _append(self._tables, job_id, name, content, size_max, append_id)

    async def read(self, job_id: str, attempt: int, name: str, start: int, size_max: int | None) -> bytes | None:
        return await _read(self._tables, job_id, attempt, name, start, size_max)

    async def remove(self, job_ids: Sequence[str]) -> None:
        await _remove(self._tables, job_ids)

    async def close(self) -> None:
        await self._tables.wire.close()


async def _write(tables: Tables, job_id: str, attempt: int, name: str, content: bytes) -> None:
    if len(content) > FILE_BYTES_MAX:
        raise StoreError(
            f"{name} has {len(content):,} bytes and DynamoDB keeps files of up to {FILE_BYTES_MAX:,}:"
            " open the app with artifacts=s3://bucket/prefix"
        )
    made = secrets.token_hex(8)
    starts = range(0, len(content), PART_BYTES)
    parts = [_part(job_id, attempt, name, made, at, content[at : at + PART_BYTES]) for at in starts]
    for first in range(0, len(parts), 10):  # a batch of requests ends at 16 MB
        await tables.put_many(Table.RECORDS, parts[first : first + 10])
    pk, sk = keys.file(job_id, attempt, name)
    head = {"pk": pk, "sk": sk, "made": made, "size": len(content)}
    before = await tables.send(put(Table.RECORDS, head), returning="ALL_OLD")
    if before and before["made"] != made:
        await tables.delete_many(Table.RECORDS, await _parts(tables, job_id, attempt, name, before["made"]))


async def _append(tables: Tables, job_id: str, name: str, content: bytes, size_max: int, append_id: str) -> None:
    """The part and the size that it makes are one commit: no two can be put at the same place."""
    if not content:
        return
    key = keys.file(job_id, OF_THE_JOB, name)
    for _ in range(ROUNDS):
        [head] = await tables.get(Table.RECORDS, [key])
        size = 0 if head is None else head["size"]
        if size >= min(size_max, FILE_BYTES_MAX) or (head is not None and head.get("last") == append_id):
            return
        commit = Commit(tables, "append", SystemClock().now())
        for at in range(0, len(content), PART_BYTES):
            part = _part(job_id, OF_THE_JOB, name, "log", size + at, content[at : at + PART_BYTES])
            commit.write(put_new(Table.RECORDS, part))
        seen = equals("size", None if head is None else size)
        sets = {"made": "log", "size": size + len(content), "last": append_id}
        commit.write(update(Table.RECORDS, key, sets=sets, condition=seen))
        try:
            await commit.run()
        except Cancelled:
            await asyncio.sleep(secrets.randbelow(20) / 1000)
            continue
        return
    raise StoreBusy(f"{tables.shown}: others keep writing to {name} of job {job_id}")


async def _read(tables: Tables, job_id: str, attempt: int, name: str, start: int, size_max: int | None) -> bytes | None:
    """From a byte on; None where there is no such file."""
    [head] = await tables.get(Table.RECORDS, [keys.file(job_id, attempt, name)])
    if head is None:
        return None
    end = head["size"] if size_max is None else min(head["size"], start + size_max)
    if start >= end:
        return b""
    pieces = []
    partition, begins = _place(job_id, attempt, name, head["made"])
    first = await _first(tables, partition, begins, start)
    ask = Ask(
        table=Table.RECORDS,
        hash=partition,
        begins=begins,
        above=first,
        up_to=f"{begins}{end - 1:012d}",
        consistent=True,
    )
    async for part in tables.ask(ask):
        at = part["at"]
        pieces.append(part["bytes"][max(0, start - at) : end - at])
    return b"".join(pieces)


async def _first(tables: Tables, partition: str, begins: str, start: int) -> str:
    """The key before the part in which this byte lies."""
    place = f"{begins}{start:012d}"
    ask = Ask(
        table=Table.RECORDS,
        hash=partition,
        begins=begins,
        up_to=place,
        backwards=True,
        page=1,
        only=("at",),
        consistent=True,
    )
    found, _ = await tables.page(ask)
    return f"{begins}{max(0, found[0]['at']):012d}"[:-1] if found else begins


async def _remove(tables: Tables, job_ids: Sequence[str]) -> None:
    for job_id in job_ids:
        ask = Ask(table=Table.RECORDS, hash=keys.files(job_id), only=("pk", "sk"), consistent=True)
        found = [(item["pk"], item["sk"]) async for item in tables.ask(ask)]
        await tables.delete_many(Table.RECORDS, found)


def _part(job_id: str, attempt: int, name: str, made: str, at: int, content: bytes) -> Item:
    partition, begins = _place(job_id, attempt, name, made)
    return {"pk": partition, "sk": f"{begins}{at:012d}", "at": at, "bytes": content}


def _place(job_id: str, attempt: int, name: str, made: str) -> tuple[str, str]:
    pk, sk = keys.file(job_id, attempt, name)
    return pk, f"{sk}|{made}|"


async def _parts(tables: Tables, job_id: str, attempt: int, name: str, made: str) -> list[Key]:
    partition, begins = _place(job_id, attempt, name, made)
    ask = Ask(table=Table.RECORDS, hash=partition, begins=begins, only=("pk", "sk"), consistent=True)
    return [(item["pk"], item["sk"]) async for item in tables.ask(ask)]
