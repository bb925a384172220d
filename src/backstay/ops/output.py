"""The output of a job as its readers get it: a page of entries, or all as they come, to the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backstay import codec
from backstay.clock import Moment, to_datetime
from backstay.core.output import START, OutputPlace, StoredPart
from backstay.core.port import Store
from backstay.core.records import Signal
from backstay.core.states import TERMINAL
from backstay.errors import InvalidOption, JobNotFound
from backstay.limits import FIND_LIMIT_MAX, OUTPUT_INTERVAL_SECONDS, OUTPUT_PARTS_READ_MAX, RESULT_POLL_SECONDS

SIGNALS = frozenset({Signal.OUTPUT, Signal.ENDED})


class OutputEntry(msgspec.Struct, frozen=True):
    """A value that a handler has streamed."""

    value: Any
    number: Annotated[int, Meta(description="1, 2, 3 … without a gap, from 1 again when the output begins again.")]
    attempt: int
    written_at: Moment
    cursor: Annotated[str, Meta(description="Send it as `after` to continue behind this entry.")]
    restarted: Annotated[
        bool, Meta(description="The handler began again: discard the entries before this one, of an earlier run.")
    ] = False


class OutputPage(list[OutputEntry]):
    """Entries of a job's output, in order. Pass `next` as `after=` to continue; `more` tells whether there are more
    already."""

    next: str | None = None
    more: bool = False


async def page(store: Store, job_id: str, after: str | None, limit: int) -> OutputPage:
    """Return the entries behind a cursor. Raise JobNotFound if there is no such job."""
    if not 1 <= limit <= FIND_LIMIT_MAX:
        raise InvalidOption(f"limit={limit!r}: use 1 to {FIND_LIMIT_MAX}, and `after` for the next page")
    place = OutputPlace.of(after)
    parts = await store.output(job_id, place, min(limit, OUTPUT_PARTS_READ_MAX))
    if not parts and (await store.statuses([job_id]))[0] is None:
        raise JobNotFound(f"no job {job_id}")
    found = OutputPage()
    found.next = after
    for part in parts:
        found += _entries(part, place, limit - len(found))
    if found:
        found.next = found[-1].cursor
        found.more = len(parts) == OUTPUT_PARTS_READ_MAX or found[-1].number < parts[-1].last
    return found


def _entries(part: StoredPart, after: OutputPlace, limit: int) -> list[OutputEntry]:
    continues = part.end.is_same_take(after)
    behind = after.number if continues else 0
    at = to_datetime(part.written_at)
    found: list[OutputEntry] = []
    for number, value in enumerate(part.entries, part.first):
        if number > behind and len(found) < limit:
            place = OutputPlace(part.attempt, part.take, number)
            restarted = number == 1 and after != START and not continues
            found.append(OutputEntry(codec.decode(bytes(value)), number, part.attempt, at, place.cursor, restarted))
    return found


async def follow(store: Store, job_id: str, after: str | None) -> AsyncGenerator[OutputEntry, None]:
    """Yield the entries behind a cursor, and those that are appended from now on, until the job has ended."""
    stir = asyncio.Event()
    unlisten = store.listen(SIGNALS, lambda _: stir.set())
    try:
        while True:
            stir.clear()
            [status] = await store.statuses([job_id])  # before its output: what was appended before its end is there
            found = await page(store, job_id, after, FIND_LIMIT_MAX)
            for entry in found:
                yield entry
            after = found.next
            if found.more:
                continue
            if status is None or status in TERMINAL:
                return
            await asyncio.sleep(OUTPUT_INTERVAL_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(RESULT_POLL_SECONDS):
                    await stir.wait()
    finally:
        unlisten()
