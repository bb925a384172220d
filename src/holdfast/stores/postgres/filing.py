"""Files as rows: a head, and parts that are read and written some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from holdfast.errors import StoreError
from holdfast.limits import KIB
from holdfast.stores.postgres.address import parse
from holdfast.stores.postgres.session import Session
from holdfast.stores.postgres.tx import Tx
from holdfast.stores.remote_files import RemoteFiles

T = TypeVar("T")
CONNECTIONS = 2  # a large file must not hold up the logs
PART_BYTES = 256 * KIB
PARTS_AT_ONCE = 16  # 4 MiB: well within the time that a statement has, on a slow line too


def files_of(url: str) -> RemoteFiles:
    address = msgspec.structs.replace(parse(url), pool=CONNECTIONS)
    return RemoteFiles(lambda: DatabaseFiling(Session(address)))


class DatabaseFiling:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._opening = asyncio.Lock()
        self._opened = False

    async def write(self, job_id: str, attempt: int, name: str, content: bytes) -> None:
        await self._run(lambda tx: _write(tx, job_id, attempt, name, content), transaction=True)

    async def append(self, job_id: str, name: str, content: bytes, size_max: int, append_id: str) -> None:
        await self._run(lambda tx: tx.execute("file_append", job_id, name, content, size_max, append_id))

    async def read(self, job_id: str, attempt: int, name: str, start: int, size_max: int | None) -> bytes | None:
        return await self._run(lambda tx: _read(tx, job_id, attempt, name, start, size_max))

    async def remove(self, job_ids: Sequence[str]) -> None:
        await self._run(lambda tx: tx.execute("file_remove", list(job_ids)))

    async def close(self) -> None:
        await self._session.close()

    async def _run(self, verb: Callable[[Tx], Awaitable[T]], *, transaction: bool = False) -> T:
        async with self._opening:
            if not self._opened:
                await self._session.open()
                self._opened = True
        return (await self._session.run(lambda tx, _: verb(tx), transaction=transaction, name="file"))[0]


async def _write(tx: Tx, job_id: str, attempt: int, name: str, content: bytes) -> None:
    """Inside a transaction: nobody sees a part of it before the whole is there."""
    file_id = await tx.value("file_put", job_id, attempt, name, len(content))
    await tx.execute("file_clear", file_id)
    starts = range(0, len(content), PART_BYTES)
    for first in range(0, len(starts), PARTS_AT_ONCE):
        some = starts[first : first + PARTS_AT_ONCE]
        await tx.execute("file_fill", file_id, list(some), [content[at : at + PART_BYTES] for at in some])
    if not await tx.value("file_owner", job_id):  # last, so that a cancel need not wait for a long upload
        raise StoreError(f"job {job_id} is gone: {name} has nowhere to belong")


async def _read(tx: Tx, job_id: str, attempt: int, name: str, start: int, size_max: int | None) -> bytes | None:
    """From a byte on; None where there is no such file."""
    head = await tx.row("file_size", job_id, attempt, name)
    if head is None:
        return None
    file_id, size = head
    end = size if size_max is None else min(size, start + size_max)
    pieces: list[bytes] = []
    at = start
    while at < end:
        parts = await tx.rows("file_parts", file_id, at, min(end, at + PARTS_AT_ONCE * PART_BYTES))
        if not parts:
            break  # it was removed meanwhile
        pieces += [content[max(0, at - begins) : end - begins] for begins, content in parts]
        at = parts[-1][0] + len(parts[-1][1])
    return b"".join(pieces)
