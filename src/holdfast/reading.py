"""Reading jobs, and waiting for them to end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Unpack

import msgspec

from holdfast import ids
from holdfast.clock import seconds
from holdfast.errors import (
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotOpen,
    ResultGone,
    ResultTimeout,
)
from holdfast.family_tree import Tree, load, record_of
from holdfast.files import read_result
from holdfast.finding import FindOptions, query
from holdfast.job import HistoryEntry, Job, rolled_up
from holdfast.lifecycle import TERMINAL, Status
from holdfast.opened import Opened
from holdfast.store.types import DeadGroup, JobRecord, WorkerRow
from holdfast.waiting import Waiting
from holdfast.worker.run import Run

_RUNNING_MAX = 100  # children whose own progress counts for their parent's; of more, whether they have ended


class Page(list[Job]):
    """Jobs that were found; `next` is the cursor for `after=`, or None at the end."""

    next: str | None = None


class Reading(Opened):
    _waiting: Waiting | None
    _live: dict[str, Run]

    async def get(self, job_id: str) -> Job:
        """The job as it is now, with live progress where it runs in this process."""
        job_id = ids.canonical(job_id)
        record = (await self.store.get([job_id]))[0]
        if record is None:
            raise JobNotFound(f"no job {job_id}")
        return self._job(await self._with_progress(record))

    async def _with_progress(self, record: JobRecord) -> JobRecord:
        """A parent that says nothing of its own is as far as its children are."""
        if record.progress or not record.open_children or record.status in TERMINAL:
            return record
        running: list[JobRecord] = []
        for status in (Status.PROCESSING, Status.WAITING):  # which may be a parent itself
            running += (await self.store.children(record.job_id, None, _RUNNING_MAX, status)).items
        return msgspec.structs.replace(record, progress=rolled_up(record, running))

    def _job(self, record: JobRecord) -> Job:
        run = self._live.get(record.job_id)
        if run is not None and record.status is Status.PROCESSING and run.job.attempt == record.attempt:
            record = msgspec.structs.replace(
                record,
                progress=record.progress if run.progress is None else run.progress,
                stage=record.stage if run.stage is None else run.stage,
                logs=run.logs_json() or record.logs,
                metrics=run.metrics_json() or record.metrics,
                artifacts=run.artifacts_json() or record.artifacts,
            )
        files = self._files
        return Job(record, None if files is None else lambda: read_result(files, record.result_artifact))

    def seen_live(self, job: Job) -> Job | None:
        """The same record with what its run says by now, from memory; None where it does not run in this process."""
        return self._job(job.record) if job.job_id in self._live else None

    async def find(self, **options: Unpack[FindOptions]) -> Page:
        """Jobs, newest first, or in claim order with order="priority"."""
        found = await self.store.find(query(**options))
        page = Page([self._job(record) for record in found.items])
        page.next = found.next
        return page

    async def tree(self, job_id: str) -> Tree:
        """A job and all below it, up to 1,000 jobs: `tree.job`, `tree.children`, `tree.jobs` by id, `tree.complete`."""
        return await load(self.store, await record_of(self.store, ids.canonical(job_id)), self._job)

    async def history(self, job_id: str) -> list[HistoryEntry]:
        """Every transition: who, when, which attempt, why. Beyond 200, the first and the last hundred."""
        return (await self.get(job_id)).history

    async def counts(self) -> dict[str, int]:
        """Jobs per state."""
        return await self.store.counts()

    async def dead(self, limit: int = 100) -> list[DeadGroup]:
        """The dead letters, grouped by type and error."""
        return await self.store.dead(limit)

    async def workers(self) -> list[WorkerRow]:
        return await self.store.workers()

    async def result(self, job_id: str, timeout: float | timedelta | None = None) -> Any:
        """Wait until a job has ended; its result, or JobFailed, JobCancelled, JobNotFound, ResultTimeout."""
        job_id = ids.canonical(job_id)
        if self._waiting is None:
            raise NotOpen("the app is not open: use it inside `async with app:`")
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                record = await self._waiting.ended(job_id)
        except TimeoutError:
            raise ResultTimeout(
                f"job {job_id} has not ended within {seconds(timeout or 0):g} s; it goes on, ask again later"
            ) from None
        if record is None:
            raise JobNotFound(f"no job {job_id}")
        match record.status:
            case Status.COMPLETED if record.archived_at is not None:
                raise ResultGone(f"job {job_id} completed, but its result went with its retention: submit it anew")
            case Status.COMPLETED:
                return await asyncio.to_thread(lambda: self._job(record).result)
            case Status.CANCELLED:
                reason = record.history[-1].reason if record.history else None  # the archive keeps none
                raise JobCancelled(
                    f"job {job_id} was cancelled{f': {reason}' if reason else ''}",
                    job_id=job_id,
                    reason=reason,
                )
            case _:
                raise JobFailed(
                    f"job {job_id} failed after {record.failures} of {record.max_attempts} attempts:"
                    f" {record.last_error}",
                    job_id=job_id,
                    last_error=record.last_error,
                )
