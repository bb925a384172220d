"""Audio files, stored by content hash: a song is one file, however often it is uploaded."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import AsyncIterable
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("analysis")
BYTES_MAX = 256 * 1024 * 1024


class TooLarge(ValueError):
    pass


class Audio:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, content_hash: str) -> Path:
        return self.folder / f"{content_hash}.audio"  # of any format: its content says which

    def sweep(self) -> int:
        """Remove uploads that a killed service has left half-written; return how many. One that is being written, here
        or by another service on this folder, is locked by its writer."""
        swept = 0
        for part in self.folder.glob("*.part"):
            with suppress(FileNotFoundError, BlockingIOError), part.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()
                swept += 1
        if swept:
            log.info("removed %d half-written upload%s", swept, "" if swept == 1 else "s")
        return swept

    async def keep(self, pieces: AsyncIterable[bytes]) -> tuple[str, int]:
        """Store the audio; return its hash and size. When this returns it is on disk: a job that names it finds it
        after any crash."""
        self.folder.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        await asyncio.to_thread(self.sweep)
        handle, name = _locked_part(self.folder)
        try:
            async for piece in pieces:
                size += len(piece)
                if size > BYTES_MAX:
                    raise TooLarge(f"over {BYTES_MAX // 2**20} MiB (BYTES_MAX)")
                digest.update(piece)
                await asyncio.to_thread(_write, handle, piece)
            await asyncio.to_thread(_publish, handle, name, self.path(digest.hexdigest()))
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise
        finally:
            os.close(handle)
        return digest.hexdigest(), size


def _locked_part(folder: Path) -> tuple[int, str]:
    """Return a new file to write to, which no sweep removes."""
    while True:
        handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # else a sweep came in between
            return handle, name
        os.close(handle)


def _write(handle: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _publish(handle: int, name: str, path: Path) -> None:
    """Sync the bytes first, then the name, then the folder."""
    os.fsync(handle)
    os.replace(name, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
