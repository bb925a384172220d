"""Files of jobs as DynamoDB items: a head that names its parts.

Parts are written first, so that a reader never sees half a file.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

import msgspec

from backstay.clock import SystemClock
from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.address import Address
from backstay.engines.dynamodb.commit import Cancelled, Commit
from backstay.engines.dynamodb.expressions import Ask, equals, put, put_new, update
from backstay.engines.dynamodb.schema import Item, Key, Table
from backstay.engines.dynamodb.table import Tables
from backstay.engines.dynamodb.transport import Wire
from backstay.errors import StoreBusy
from backstay.files.in_database import OF_THE_JOB, Draft, RemoteFiles
from backstay.limits import DYNAMODB_FILE_BYTES_MAX

FILE_BYTES_MAX = DYNAMODB_FILE_BYTES_MAX
PART_BYTES = 300_000
PIECE_BYTES = 10 * PART_BYTES  # sent or read at once: a batch of requests holds 16 MB
CONNECTIONS = 8
INSTEAD = " in DynamoDB: open the app with artifacts=s3://bucket/prefix"
ROUNDS = 50


def files_of(address: Address) -> RemoteFiles:
    where = msgspec.structs.replace(address, pool=CONNECTIONS)
    return RemoteFiles(
        lambda: TableFiling(Tables(Wire(where), where.tables, form=where.form, shown=where.shown)),
        piece_bytes=PIECE_BYTES,
        size_max=FILE_BYTES_MAX,
        instead=INSTEAD,
    )


class TableFiling:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def add(self, draft: Draft, start: int, piece: bytes) -> None:
        await _add(self._tables, draft, start, piece)

    async def finish(self, draft: Draft, start: int, piece: bytes) -> None:
        await _finish(self._tables, draft, start, piece)

    async def drop(self, draft: Draft) -> None:
        await self._tables.delete_many(Table.RECORDS, await _parts(self._tables, draft, draft.made))

    async def append(self, job_id: str, name: str, content: bytes, size_max: int, append_id: str) -> None:
        await _append(self._tables, job_id, name, content, size_max, append_id)

    async def read(self, job_id: str, attempt: int, name: str, start: int, size_max: int) -> bytes | None:
        return await _read(self._tables, job_id, attempt, name, start, size_max)

    async def remove(self, job_ids: Sequence[str]) -> None:
        await _remove(self._tables, job_ids)

    async def close(self) -> None:
        await self._tables.wire.close()


async def _add(tables: Tables, draft: Draft, start: int, piece: bytes) -> None:
    parts = [
        _part(draft.job_id, draft.attempt, draft.name, draft.made, start + at, piece[at : at + PART_BYTES])
        for at in range(0, len(piece), PART_BYTES)
    ]
    if parts:
        await tables.put_many(Table.RECORDS, parts)


async def _finish(tables: Tables, draft: Draft, start: int, piece: bytes) -> None:
    await _add(tables, draft, start, piece)
    pk, sk = schema.file(draft.job_id, draft.attempt, draft.name)
    head = {"pk": pk, "sk": sk, "made": draft.made, "size": start + len(piece)}
    before = await tables.send(put(Table.RECORDS, head), returning="ALL_OLD")
    if before and before["made"] != draft.made:
        await tables.delete_many(Table.RECORDS, await _parts(tables, draft, before["made"]))


async def _append(tables: Tables, job_id: str, name: str, content: bytes, size_max: int, append_id: str) -> None:
    for number, start in enumerate(range(0, len(content), PIECE_BYTES)):  # as much as fits into a commit
        piece = content[start : start + PIECE_BYTES]
        await _append_piece(tables, job_id, name, piece, size_max, append_id, number)


async def _append_piece(
    tables: Tables, job_id: str, name: str, content: bytes, size_max: int, append_id: str, number: int
) -> None:
    """Append a piece. The part and the new size are one commit, so that no two pieces can have the same position."""
    key = schema.file(job_id, OF_THE_JOB, name)
    for _ in range(ROUNDS):
        [head] = await tables.get(Table.RECORDS, [key])
        size = 0 if head is None else head["size"]
        if size >= min(size_max, FILE_BYTES_MAX) or (head is not None and _is_done(head, append_id, number)):
            return
        lines = content if size + len(content) < FILE_BYTES_MAX else content + _the_end()
        commit = Commit(tables, "append", SystemClock().now())
        for at in range(0, len(lines), PART_BYTES):
            part = _part(job_id, OF_THE_JOB, name, "log", size + at, lines[at : at + PART_BYTES])
            commit.write(put_new(Table.RECORDS, part))
        seen = equals("size", None if head is None else size)
        sets = {"made": "log", "size": size + len(lines), "last": f"{append_id}|{number}"}
        commit.write(update(Table.RECORDS, key, sets=sets, condition=seen))
        try:
            await commit.run()
        except Cancelled:
            await asyncio.sleep(secrets.randbelow(20) / 1000)
            continue
        return
    raise StoreBusy(f"{tables.shown}: other processes keep writing to {name} of job {job_id}")


def _is_done(head: Item, append_id: str, number: int) -> bool:
    last, _, reached = str(head.get("last", "")).partition("|")
    return last == append_id and number <= int(reached)


def _the_end() -> bytes:
    return f"The log is cut here: {FILE_BYTES_MAX:,} bytes are kept{INSTEAD}\n".encode()


async def _read(tables: Tables, job_id: str, attempt: int, name: str, start: int, size_max: int) -> bytes | None:
    """Read from an offset; None if there is no such file."""
    [head] = await tables.get(Table.RECORDS, [schema.file(job_id, attempt, name)])
    if head is None:
        return None
    end = min(head["size"], start + size_max)
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
    """Return the key before the part that contains this byte."""
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
        ask = Ask(table=Table.RECORDS, hash=schema.files(job_id), only=("pk", "sk"), consistent=True)
        found = [(item["pk"], item["sk"]) async for item in tables.ask(ask)]
        await tables.delete_many(Table.RECORDS, found)


def _part(job_id: str, attempt: int, name: str, made: str, at: int, content: bytes) -> Item:
    partition, begins = _place(job_id, attempt, name, made)
    return {"pk": partition, "sk": f"{begins}{at:012d}", "at": at, "bytes": content}


def _place(job_id: str, attempt: int, name: str, made: str) -> tuple[str, str]:
    pk, sk = schema.file(job_id, attempt, name)
    return pk, f"{sk}|{made}|"


async def _parts(tables: Tables, draft: Draft, made: str) -> list[Key]:
    partition, begins = _place(draft.job_id, draft.attempt, draft.name, made)
    ask = Ask(table=Table.RECORDS, hash=partition, begins=begins, only=("pk", "sk"), consistent=True)
    return [(item["pk"], item["sk"]) async for item in tables.ask(ask)]
