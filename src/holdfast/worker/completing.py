"""What a result makes of an attempt: stored with the job, in a file of its own, or refused for its size."""

from __future__ import annotations

import asyncio

from holdfast import codec
from holdfast.clock import Instant
from holdfast.files import Files
from holdfast.lifecycle import Completed, Discarded, ErrorEntry, Outcome
from holdfast.limits import RESULT_BYTES_MAX, RESULT_INLINE_BYTES_MAX


async def completion(job_id: str, attempt: int, result: str, files: Files | None, now: Instant) -> Outcome:
    if len(result) <= RESULT_INLINE_BYTES_MAX // 4:
        return Completed(result)
    raw = result.encode()
    if len(raw) <= RESULT_INLINE_BYTES_MAX:
        return Completed(result)
    if files is None or len(raw) > min(RESULT_BYTES_MAX, files.size_max):
        return Discarded(ErrorEntry(attempt, now, "ResultTooLarge", _limit(len(raw), files)))
    # Written before the completion commits, and named in it.
    stored = await asyncio.to_thread(files.write, job_id, attempt, ".result.json", raw)
    return Completed(None, codec.encode(stored).decode())


def _limit(size: int, files: Files | None) -> str:
    if files is not None and size <= RESULT_BYTES_MAX:
        return f"the result has {size:,} bytes; the limit is {files.size_max:,}{files.instead}"
    return f"the result has {size:,} bytes; the limit is {RESULT_BYTES_MAX:,} (RESULT_BYTES_MAX)"
