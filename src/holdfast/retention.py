"""How long ended jobs stay, and the passes that move them on: to the archive, then out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta

import msgspec

from holdfast import limits, settings
from holdfast.clock import MICROS, Clock, micros
from holdfast.errors import InvalidOption
from holdfast.files import Files
from holdfast.limits import RETIRE_BATCH_MAX, ROWS_DROPPED_MAX
from holdfast.store.port import Store
from holdfast.store.types import JobType, Keep, RetentionPolicy

Span = float | timedelta | None
_DAY = 86_400


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long jobs are kept from their end on: seconds or a timedelta; None: for ever.

    Then key figures of a job go to the archive, where `get` finds them for `archive` more.
    """

    completed: Span = limits.KEEP_COMPLETED_DAYS * _DAY
    failed: Span = limits.KEEP_FAILED_DAYS * _DAY
    cancelled: Span = limits.KEEP_CANCELLED_DAYS * _DAY
    archive: Span = limits.KEEP_ARCHIVE_DAYS * _DAY

    def keep(self) -> Keep:
        return Keep(
            _micros("completed", self.completed), _micros("failed", self.failed), _micros("cancelled", self.cancelled)
        )

    @property
    def archive_micros(self) -> int | None:
        return _micros("archive", self.archive)


def default(given: Retention | None) -> Retention:
    """By option whole, or one span at a time: HOLDFAST_RETENTION_COMPLETED and so on, in seconds, or "never"."""
    if given is not None:
        if not isinstance(given, Retention):
            raise InvalidOption(f"retention={given!r:.80}: write retention=Retention(completed=…, failed=…)")
        policy(given, ())  # a wrong span is an error here, not in a worker's upkeep
        return given
    usual = Retention()
    spans = {
        name: settings.setting(f"retention_{name}", None, settings.span_or_never, getattr(usual, name))
        for name in Retention.__struct_fields__
    }
    return Retention(**spans)


def of(given: Retention | float | timedelta | None) -> Keep | None:
    """A handler's own: one span for every end, or one for each."""
    if given is None:
        return None
    if isinstance(given, Retention):
        return given.keep()
    span = _micros("retention", given)
    return Keep(span, span, span)


def ended_for(span: float | timedelta) -> Keep:
    """For so long at least: of 0, also what ended at this very instant."""
    over = (_micros("older_than", span) or 0) - 1
    return Keep(over, over, over)


def _micros(name: str, span: Span) -> int | None:
    if span is None:
        return None
    try:
        found = micros(span)
    except (TypeError, ValueError, OverflowError):
        found = -1
    if not 0 <= found <= limits.RETENTION_DAYS_MAX * _DAY * MICROS:
        raise InvalidOption(
            f"{name}={span!r}: use seconds or a timedelta, not below 0 and up to a hundred years, or None for ever"
        )
    return found


def policy(retention: Retention, types: Iterable[JobType]) -> RetentionPolicy:
    """For everyone: a type's own span is stored with the type, so that any worker may do the work."""
    by_type = {each.job_type: each.keep for each in types if each.keep is not None}
    return RetentionPolicy(retention.keep(), by_type, retention.archive_micros)


async def steps(store: Store, clock: Clock, files: Files | None, policy: RetentionPolicy) -> AsyncIterator[int]:
    """One pass over all jobs in small steps; yields how many jobs each has archived."""
    await remove_files(store, files)
    after: str | None = None
    while True:
        done = await store.retire(policy, clock.now(), RETIRE_BATCH_MAX, after)
        if done.archived:
            await remove_files(store, files)
        yield done.archived
        after = done.next
        if after is None:
            return


async def remove_files(store: Store, files: Files | None) -> None:
    """And result rows, of archived jobs. The archive remembers until it is done: a crash in between leaves nothing
    behind."""
    while job_ids := await store.with_files(RETIRE_BATCH_MAX):
        await _drop_rows(store, job_ids)
        gone = list(job_ids) if files is None else await asyncio.to_thread(files.remove, job_ids)
        if gone:
            await store.cleaned(gone)
        if len(gone) < len(job_ids):
            return  # what cannot be removed now is tried again in the next pass


async def _drop_rows(store: Store, job_ids: Sequence[str]) -> None:
    for job in await store.get(job_ids):
        if job is not None and job.result_tables and job.rows_of is None:
            while await store.drop_rows(job.job_id, ROWS_DROPPED_MAX):
                pass
