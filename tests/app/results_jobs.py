"""Handlers that keep files and put rows in child processes: they must stand at the top level of a module."""

import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from backstay import Backstay, BlockingContext, Context, ResultRow, Vector
from backstay.limits import MIB

_app = Backstay("sqlite:///unused.db")
PIECES = 12
KINDS = ("bytes", "text", "path", "file", "pieces")


class Point(ResultRow, table="points", key="number", subject="place", subject_index=True):
    number: int
    place: str = "here"
    at: Vector[2] | None = None


def pieces() -> Iterator[bytes]:
    for number in range(PIECES):
        yield bytes([number]) * MIB


async def pieces_async() -> AsyncIterator[bytes]:
    for piece in pieces():
        yield piece


WHOLE = b"".join(pieces())


def keep(ctx: BlockingContext, folder: str) -> None:
    """In every way that a handler in a thread or a process can hand a file over."""
    path = Path(folder, "given")
    path.write_bytes(WHOLE)
    ctx.artifact("bytes", WHOLE)
    ctx.artifact("text", "ä" * (len(WHOLE) // 2))
    ctx.artifact("path", path)
    with path.open("rb") as file:
        ctx.artifact("file", file)
    ctx.artifact("pieces", pieces())


async def keep_async(ctx: Context, folder: str) -> None:
    path = Path(folder, "given")
    path.write_bytes(WHOLE)
    await ctx.artifact("bytes", WHOLE)
    await ctx.artifact("text", "ä" * (len(WHOLE) // 2))
    await ctx.artifact("path", path)
    await ctx.artifact("file", io.BytesIO(WHOLE))
    await ctx.artifact("pieces", pieces_async())


def put(ctx: BlockingContext, count: int) -> int:
    points = ctx.results(Point)
    done = points.put(Point(number=n, place="odd" if n % 2 else "even", at=[n, 0.5]) for n in range(count))
    assert points.all(ctx.job_id) == []  # not even its own, before it has completed
    return done


@_app.job("keep_in_a_process", isolation="process", max_attempts=1)
def keep_in_a_process(payload: str, ctx: BlockingContext) -> None:
    keep(ctx, payload)


@_app.job("keep_in_an_async_process", isolation="process", max_attempts=1)
async def keep_in_an_async_process(payload: str, ctx: Context) -> None:
    await keep_async(ctx, payload)


@_app.job("put_in_a_process", isolation="process", max_attempts=1)
def put_in_a_process(payload: int, ctx: BlockingContext) -> int:
    return put(ctx, payload)
