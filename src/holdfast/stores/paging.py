"""Pages of result rows: whose rows a job answers with, and where the next page begins. Pure; for engines with SQL."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.errors import InvalidOption, RowsWithdrawn
from holdfast.lifecycle import Status
from holdfast.store.tables import ResultTable, RowPage, RowQuery, StoredRow, Value

# status and attempt of the job; rows_of and rows_attempt where it reused another's; the attempt that one is at now, or
# ended at before retention took it
Sought = tuple[str, int, str | None, int | None, int | None]


def source(ask: RowQuery, sought: Sequence[object] | None) -> tuple[str | None, int]:
    """Under which job and attempt the rows lie that this one answers with; None where there are none to see."""
    job_id, attempt = _source(ask.job_id, sought)
    if ask.attempt is not None and attempt != ask.attempt:
        raise RowsWithdrawn(f"job {ask.job_id} has run again since the page before: read its rows from the start")
    return job_id, attempt


def _source(job_id: str, sought: Sequence[object] | None) -> tuple[str | None, int]:
    match sought:
        case [Status.COMPLETED.value, int() as attempt, None, _, _]:
            return job_id, attempt
        case [Status.COMPLETED.value, _, str() as donor, int() as attempt, now]:
            if now != attempt:
                became = "is gone" if now is None else "has run again since"
                raise RowsWithdrawn(
                    f"job {job_id} answers with the rows of job {donor}, which {became}: retry this one, too"
                )
            return donor, attempt
        case _:
            return None, 0


def page(table: ResultTable, found: Sequence[StoredRow], limit: int, attempt: int) -> RowPage:
    """Of one row more than was asked for: it tells whether there are more."""
    following = found[limit - 1].values[key_position(table)] if len(found) > limit else None
    return RowPage(tuple(found[:limit]), attempt, following)


def page_by_subject(table: ResultTable, found: Sequence[StoredRow], limit: int) -> RowPage:
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else _cursor(last.created_at, last.job_id, last.values[key_position(table)])
    return RowPage(tuple(found[:limit]), 0, following)


def key_position(table: ResultTable) -> int:
    return next(i for i, column in enumerate(table.columns) if column.name == table.key)


def _cursor(created_at: Instant, job_id: str, key: Value) -> str:
    return msgspec.json.encode((created_at, job_id, key)).decode()


def place(after: str) -> tuple[Instant, str, int | str]:
    """Where a page by subject has ended."""
    try:
        return msgspec.json.decode(after, type=tuple[int, str, int | str])
    except msgspec.DecodeError:
        raise InvalidOption(f"after={after!r:.60} is not a cursor of this search: pass `next` of a page") from None
