"""Removes a job for good: with its files, rows, steps and history, in the jobs and in the archive.

One line of the audit trail is left, with the id of the job and who removed it, and nothing of what it contained.

Rows and files go first: what is left of a job names them, so that a removal that was interrupted can be repeated. A job
that waits is cancelled before, with everything that follows from that.
"""

from __future__ import annotations

import asyncio

from backstay import ids
from backstay.clock import Clock
from backstay.core import lifecycle
from backstay.core.checks import check_reason
from backstay.core.port import Store
from backstay.core.records import JobRecord, Verdict
from backstay.core.states import TERMINAL, Status
from backstay.errors import IllegalTransition, JobNotFound, StoreError, VersionConflict
from backstay.files.local import Files
from backstay.limits import ROWS_DROPPED_MAX
from backstay.ops.audit import Actor, audited
from backstay.ops.edit import TRIES, check_version, edit, record_of


async def remove(
    store: Store,
    clock: Clock,
    actor: Actor,
    files: Files | None,
    job_id: str,
    *,
    reason: str | None,
    expected_version: int | None,
) -> None:
    job_id = ids.canonical(job_id)
    async with audited(store, clock, actor, "job.remove", job_id) as entry:
        why = check_reason(reason)
        record = await record_of(store, job_id)
        check_version(record, expected_version)
        await _refuse_needed(store, record)
        if record.status not in TERMINAL:
            await edit(
                store, clock, record, expected_version, lambda job, _: lifecycle.cancel(job, by=actor.by, reason=why)
            )
            record = await record_of(store, job_id)
        await _remove(store, clock, files, record)
        entry.after = None if why is None else {"reason": why}


async def _refuse_needed(store: Store, record: JobRecord) -> None:
    if record.status is Status.PROCESSING:
        raise IllegalTransition(
            f"job {record.job_id} is running: cancel it first, and remove it when its handler has stopped"
        )
    if record.archived_at is None and (await store.children(record.job_id, None, 1)).items:
        raise IllegalTransition(f"job {record.job_id} has children, which would lose their parent: remove those first")


async def _remove(store: Store, clock: Clock, files: Files | None, record: JobRecord) -> None:
    job_id = record.job_id
    for attempt in range(TRIES):
        if attempt:
            record = await record_of(store, job_id)
        if record.status not in TERMINAL:
            raise VersionConflict(f"job {job_id} was started again meanwhile: it is {record.status.value}")
        if record.result_tables and record.rows_of is None:
            while await store.drop_rows(job_id, ROWS_DROPPED_MAX):
                pass
        if files is not None and not await asyncio.to_thread(files.remove, [job_id]):
            raise StoreError(f"the files of job {job_id} cannot be removed now: see the log, and try again")
        match await store.remove(job_id, record.version, clock.now()):
            case Verdict.APPLIED:
                return
            case Verdict.GONE:
                raise JobNotFound(f"no job {job_id}")
            case Verdict.BLOCKED:
                raise IllegalTransition(
                    f"job {job_id} cannot be removed yet: jobs still wait on it, or are being released by its end; try"
                    " again in a moment"
                )
            case _:
                continue  # it has changed since it was read
    raise VersionConflict(f"job {job_id} kept changing: try again")
