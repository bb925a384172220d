"""Files of jobs as rows in PostgreSQL: a head, and parts that are read and written a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from backstay.engines.postgres.connection import Session, Tx, parse
from backstay.errors import StoreError
from backstay.files.in_database import Draft, RemoteFiles
from backstay.limits import GIB, KIB

T = TypeVar("T")
CONNECTIONS = 2  # a large file must not delay the logs
PART_BYTES = 256 * KIB
PIECE_BYTES = 16 * PART_BYTES  # sent or read at once: well within the statement timeout, even on a slow connection
FILE_BYTES_MAX = GIB  # it goes into the server's write-ahead log and every backup


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
    """Store a part under a name that no reader uses."""
    file_id: int | None = await tx.value("file_draft", draft.job_id, draft.attempt, _drafted(draft))
    if file_id is None:
        raise StoreError(f"job {draft.job_id} is gone: {draft.name} was not stored")
    starts = range(0, len(piece), PART_BYTES)
    parts = [piece[at : at + PART_BYTES] for at in starts]
    await tx.execute("file_fill", file_id, [start + at for at in starts], parts)
    return file_id


async def _finish(tx: Tx, draft: Draft, start: int, piece: bytes) -> None:
    place = draft.job_id, draft.attempt, draft.name
    await tx.execute("file_lock", "/".join(map(str, place)))
    if await tx.value("file_made", *place) == draft.made:
        return  # an earlier try was applied; its answer was lost
    file_id = await _add(tx, draft, start, piece)
    await tx.execute("file_drop", *place)
    await tx.execute("file_name", file_id, draft.name, start + len(piece), draft.made)


def _drafted(draft: Draft) -> str:
    return f"{draft.name}/{draft.made}"


async def _read(tx: Tx, job_id: str, attempt: int, name: str, start: int, size_max: int) -> bytes | None:
    """Read from an offset; None if there is no such file."""
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
            break  # removed in the meantime
        pieces += [content[max(0, at - begins) : end - begins] for begins, content in parts]
        at = parts[-1][0] + len(parts[-1][1])
    return b"".join(pieces)
