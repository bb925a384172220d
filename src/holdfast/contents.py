"""What a file is made of: bytes, a text, a path, an open file, or pieces that come one after another.

Whatever it is, no more than a piece of it is in memory at a time; only what was handed over whole is there whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.errors import ClaimLost, InvalidOption, StoreError
from holdfast.limits import MIB

Bytes = bytes | bytearray | memoryview
Content = Bytes | Iterable[Bytes]  # what a place for files takes
Source = str | os.PathLike[str] | BinaryIO | Content  # what a handler may hand over …
AsyncSource = Source | AsyncIterable[Bytes]  # … and one that is `async def`

PIECE_BYTES = MIB  # read at a time from a file


def content_of(name: str, source: Source) -> Content:
    """A text is itself, not the name of a file: a path is a Path."""
    match source:
        case str():
            return source.encode()
        case bytes() | bytearray() | memoryview():
            return source
        case os.PathLike():
            return _file(Path(source))
    if hasattr(source, "read"):
        return _pieces(name, iter(lambda: source.read(PIECE_BYTES) or None, None))
    if isinstance(source, Iterable):
        return _pieces(name, source)
    raise InvalidOption(
        f"artifact {name!r}: give bytes, a text, a Path, a file that is open for reading bytes, or an iterable of"
        f" bytes, not {type(source).__name__}"
    )


async def kept_in_thread(keep: Callable[[str, Content], str], name: str, source: AsyncSource) -> str:
    """Hand a file over to one who blocks; async pieces are made on the loop that runs now."""
    stopped = threading.Event()
    if isinstance(source, AsyncIterable):
        content: Content = _pieces(name, _made_on(asyncio.get_running_loop(), aiter(source)))
    else:
        content = content_of(name, source)
    try:
        return await asyncio.to_thread(keep, name, watched(content, stopped.is_set))
    except asyncio.CancelledError:
        stopped.set()  # the thread must not go on for somebody who is gone
        raise


def watched(content: Content, stopped: Callable[[], bool]) -> Content:
    """Pieces only as long as somebody wants them: an upload may take longer than the claim lasts."""
    if isinstance(content, Bytes):
        return content
    return until(content, stopped)


def until(content: Content, stopped: Callable[[], bool]) -> Iterator[Bytes]:
    """Its pieces, and after the last one a look too: what nobody wants at the end is not kept either."""
    for piece in (content,) if isinstance(content, Bytes) else content:
        if stopped():
            break
        yield piece
    if stopped():
        raise ClaimLost("this run was stopped, or has ended, while it wrote a file: nothing of it is kept")


def _file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def _pieces(name: str, pieces: Iterable[Any]) -> Iterator[Bytes]:
    for piece in pieces:
        if not isinstance(piece, Bytes):
            raise InvalidOption(
                f'artifact {name!r}: its pieces are {type(piece).__name__}, not bytes (open files "rb")'
            )
        yield piece


def _made_on(loop: asyncio.AbstractEventLoop, source: AsyncIterator[Bytes]) -> Iterator[Bytes]:
    async def one() -> Bytes | None:
        return await anext(source, None)

    while (piece := asyncio.run_coroutine_threadsafe(one(), loop).result()) is not None:
        yield piece


def in_pieces(content: Content, size: int) -> Iterator[bytes]:
    """Pieces of exactly this size; the last is always shorter, and empty where nothing is left for it."""
    if isinstance(content, Bytes):
        whole = memoryview(content).cast("B")
        for start in range(0, len(whole) + 1, size):
            yield bytes(whole[start : start + size])
        return
    kept = bytearray()
    for piece in content:
        view = memoryview(piece).cast("B")
        while view:
            taken = view[: size - len(kept)]
            kept += taken
            view = view[len(taken) :]
            if len(kept) == size:
                yield bytes(kept)
                kept.clear()
    yield bytes(kept)


class Tally:
    """The hash and the size of what goes by."""

    def __init__(self, name: str, size_max: int, instead: str = "") -> None:
        self.size = 0
        self._sum = hashlib.sha256()
        self._name = name
        self._size_max = size_max
        self._instead = instead  # where it belongs if it is larger

    def add(self, piece: Bytes) -> None:
        self.size += memoryview(piece).nbytes
        if self.size > self._size_max:
            raise StoreError(
                f"{self._name} has more than the {self._size_max:,} bytes that are kept here{self._instead}"
            )
        self._sum.update(piece)

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()


def checked(uri: str, size: int, sha256: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What was stored. Where it is not, StoreError comes instead of the last piece: whoever has read to the end has the
    right thing."""
    tally = Tally(uri, size)
    for piece in pieces:
        try:
            tally.add(piece)
        except StoreError:
            break
        if tally.size == size:
            break
        yield piece
    else:
        piece = b""
    if tally.size != size or tally.sha256 != sha256:
        raise StoreError(f"{uri} is not what was stored: its hash differs")
    if piece:
        yield piece
