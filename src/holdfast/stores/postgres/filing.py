"""Files as rows: a head, and parts that are read and written some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from holdfast.errors import StoreError
from holdfast.limits import GIB, KIB
from holdfast.stores.postgres.address import parse
from holdfast.stores.postgres.session import Session
from holdfast.stores.postgres.tx import Tx
from holdfast.stores.remote_files import Draft, RemoteFiles

T = TypeVar("T")
CONNECTIONS = 2  # a large file must not hold up the logs
PART_BYTES = 256 * KIB
PIECE_BYTES = 16 * PART_BYTES  # sent or asked for at once: well within the time of a statement, on a slow line too
FILE_BYTES_MAX = GIB  # it goes through the log of the server and into every backup


def files_of(url: str) -> RemoteFiles:
    address = msgspec.structs.replace(parse(url), pool=CONNECTIONS)
    return RemoteFiles(
        lambda: DatabaseFiling(Session(address)),
        piece_bytes=PIECE_BYTES,
        size_max=FILE_BYTES_MAX,
        instead=": open the app with artifacts=s3://bucket/prefix",
    )


class DatabaseFiling:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._opening = asyncio.Lock()
        self._opened = False

    async def add(self, draft: Draft, start: int, piece: bytes) -> None:
        await self._run(lambda tx: _add(tx, draft, start, piece), transaction=True)

    async def finish(self, draft: Draft, start: int, piece: bytes) -> None:
        await self._run(lambda tx: _finish(tx, draft, start, piece), transaction=True)

    async def drop(self, draft: Draft) -> None:
        await self._run(lambda tx: tx.execute("file_drop", draft.job_id, draft.attempt, _drafted(draft)))

    async def append(self, job_id: str, name: str, content: bytes, size_max: int, append_id: str) -> None:
        await self._run(lambda tx: tx.execute("file_append", job_id, name, content, size_max, append_id))

    async def read(self, job_id: str, attempt: int, name: str, start: int, size_max: int) -> bytes | None:
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


async def _add(tx: Tx, draft: Draft, start: int, piece: bytes) -> int:
    """Under a name that no reader asks for."""
    file_id: int | None = await tx.value("file_draft", draft.job_id, draft.attempt, _drafted(draft))
    if file_id is None:
        raise StoreError(f"job {draft.job_id} is gone: {draft.name} has nowhere to belong")
    starts = range(0, len(piece), PART_BYTES)
    parts = [piece[at : at + PART_BYTES] for at in starts]
    await tx.execute("file_fill", file_id, [start + at for at in starts], parts)
    return file_id


async def _finish(tx: Tx, draft: Draft, start: int, piece: bytes) -> None:
    place = draft.job_id, draft.attempt, draft.name
    await tx.execute("file_lock", "/".join(map(str, place)))
    if await tx.value("file_made", *place) == draft.made:
        return  # done before, with an answer that was lost
    file_id = await _add(tx, draft, start, piece)
    await tx.execute("file_drop", *place)
    await tx.execute("file_name", file_id, draft.name, start + len(piece), draft.made)


def _drafted(draft: Draft) -> str:
    return f"{draft.name}/{draft.made}"


async def _read(tx: Tx, job_id: str, attempt: int, name: str, start: int, size_max: int) -> bytes | None:
    """From a byte on; None where there is no such file."""
    head = await tx.row("file_size", job_id, attempt, name)
    if head is None:
        return None
    file_id, size = head
    end = min(size, start + size_max)
    pieces: list[bytes] = []
    at = start
    while at < end:
        parts = await tx.rows("file_parts", file_id, at, min(end, at + PIECE_BYTES))
        if not parts:
            break  # it was removed meanwhile
        pieces += [content[max(0, at - begins) : end - begins] for begins, content in parts]
        at = parts[-1][0] + len(parts[-1][1])
    return b"".join(pieces)
