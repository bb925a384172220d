"""Retention: how long ended jobs are kept, and the passes that archive and then delete them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta

import msgspec

from backstay import limits, settings
from backstay.clock import MICROS, Clock, micros
from backstay.core.checks import check_name
from backstay.core.port import Store
from backstay.core.records import JobType, Keep, RetentionPolicy
from backstay.errors import InvalidOption
from backstay.files.local import Files
from backstay.limits import RETIRE_BATCH_MAX, ROWS_DROPPED_MAX
from backstay.ops.audit import Actor, audited

Span = float | timedelta | None
_DAY = 86_400


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long jobs are kept after they end: seconds or a timedelta; None means forever. Then a job's key figures are
    archived, where `get` finds them for another `archive`."""

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
    """Return the retention option, or one span at a time: BACKSTAY_RETENTION_COMPLETED and so on, in seconds, or
    "never"."""
    if given is not None:
        if not isinstance(given, Retention):
            raise InvalidOption(f"retention={given!r:.80}: write retention=Retention(completed=…, failed=…)")
        policy(given, ())  # a wrong span is an error here, not in a worker's maintenance
        return given
    usual = Retention()
    spans = {
        name: settings.setting(f"retention_{name}", None, settings.span_or_never, getattr(usual, name))
        for name in Retention.__struct_fields__
    }
    return Retention(**spans)


def of(given: Retention | float | timedelta | None) -> Keep | None:
    """Return a handler's own retention: one span for every outcome, or one for each."""
    if given is None:
        return None
    if isinstance(given, Retention):
        return given.keep()
    span = _micros("retention", given)
    return Keep(span, span, span)


def ended_for(span: float | timedelta) -> Keep:
    """Archive jobs that ended at least this long ago; 0 includes those that ended at this very instant."""
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
            f"{name}={span!r}: use seconds or a timedelta, from 0 to 100 years, or None to keep them forever"
        )
    return found


def policy(retention: Retention, types: Iterable[JobType]) -> RetentionPolicy:
    """Return the policy for all types: a type's own span is stored with the type, so that any worker can apply it."""
    by_type = {each.job_type: each.keep for each in types if each.keep is not None}
    return RetentionPolicy(retention.keep(), by_type, retention.archive_micros)


async def steps(store: Store, clock: Clock, files: Files | None, policy: RetentionPolicy) -> AsyncIterator[int]:
    """Make one pass over all jobs in small steps; yield how many jobs each step archived."""
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
    """Remove files and result rows of archived jobs. The archive remembers them until that is done, so a crash in
    between leaves nothing behind."""
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


async def purge(
    store: Store,
    clock: Clock,
    files: Files | None,
    retention: Retention,
    older_than: float | timedelta | None = None,
    job_types: list[str] | None = None,
) -> int:
    """Archive ended jobs whose retention has expired now, and delete expired archive rows; return how many were
    archived."""
    chosen = policy(retention, await store.job_types())
    if older_than is not None:
        chosen = msgspec.structs.replace(chosen, keep=ended_for(older_than), by_type={})
    if isinstance(job_types, str):
        raise InvalidOption(f"job_types={job_types!r:.80}: give a list of names")
    if job_types:
        chosen = msgspec.structs.replace(chosen, job_types=tuple(check_name(each, "job type") for each in job_types))
    return sum([count async for count in steps(store, clock, files, chosen)])


async def purge_on_request(
    store: Store,
    clock: Clock,
    actor: Actor,
    files: Files | None,
    retention: Retention,
    older_than: float | timedelta | None,
    job_types: list[str] | None,
) -> int:
    """Purge for a person or program, with an audit entry."""
    target = " ".join(map(str, job_types)) if isinstance(job_types, list) and job_types else "all"
    before = None if older_than is None else {"older_than": str(older_than)}
    async with audited(store, clock, actor, "jobs.purge", target, before) as entry:
        archived = await purge(store, clock, files, retention, older_than, job_types)
        entry.after = {"archived": archived}
    return archived
