"""The worker's part of the port for workers on other machines, on whose behalf a server claims and settles.

Nothing here is audited, as with local workers, except job types that a remote worker announces: other people's submits
are checked against them.
"""

from __future__ import annotations

from collections.abc import Sequence

from backstay.clock import MICROS, Clock, Instant
from backstay.core import waits
from backstay.core.lifecycle import Outcome, Sleeping, WaitingForEvent
from backstay.core.output import OutputPart
from backstay.core.port import Store
from backstay.core.records import ClaimedJob, ClaimRequest, Hold, JobType, Note, Query, Transition, Verdict, WorkerRow
from backstay.core.states import Status
from backstay.core.suspicion import Held
from backstay.core.waits import EventWait, StepKind
from backstay.errors import ClaimLost
from backstay.files.local import Files
from backstay.job import Waited
from backstay.limits import FIND_LIMIT_MAX
from backstay.ops import manage
from backstay.ops.audit import By, actor
from backstay.ops.wait import Trouble
from backstay.worker.recorder import Recorder
from backstay.worker.run import Report
from backstay.worker.waits import Waits


class RemoteWork:
    """One per app. Times are read here: a remote worker's own clock never counts."""

    def __init__(self, store: Store, clock: Clock, files: Files | None) -> None:
        self._store, self._clock, self._files = store, clock, files
        self._waits = Waits(store, clock)

    async def beat(self, row: WorkerRow) -> None:
        """Store what a worker is and does now."""
        await self._store.beat(row)

    async def forget(self, worker_id: str) -> None:
        """Delete a worker that has stopped."""
        await self._store.forget([worker_id], self._clock.now())

    async def announce(self, changes: Sequence[tuple[JobType | None, JobType]], by: By) -> None:
        """Store job types: each as it was, None if it is new, and as it should be."""
        await manage.announce_types(self._store, self._clock, actor(by), changes)

    async def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        return await self._store.claim(request, self._clock.now())

    async def wait_alone(self, request: ClaimRequest) -> bool:
        """Return whether jobs wait to run alone that this worker could claim."""
        return bool(await self._store.wait_alone(request))

    async def held(self, worker_id: str) -> list[Held]:
        """Return what a worker holds, for as long as it has."""
        page = await self._store.find(Query(worker=worker_id, status=Status.PROCESSING, limit=FIND_LIMIT_MAX))
        now = self._clock.now()
        return [Held(job.suspicion, False, max(0, now - (job.started_at or now)) / MICROS) for job in page.items]

    async def settle(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        return await self._store.apply(transitions, now)

    async def extend(self, holds: Sequence[Hold], until: Instant, now: Instant) -> list[Verdict]:
        return await self._store.extend(holds, until, now) if holds else []

    async def note(self, note: Note) -> Verdict:
        """Store the progress and the last log lines of a running job."""
        [verdict] = await self._store.note([note], self._clock.now())
        return verdict

    async def append_output(self, part: OutputPart) -> Verdict:
        """Append to the output of a running job."""
        [verdict] = await self._store.append_output([part], self._clock.now())
        return verdict

    async def step(self, report: Report, name: str, answer: str | None) -> str | None:
        """Return the recorded answer of a step; with an answer, record it first. Raises ClaimLost."""
        if answer is not None:
            hold, now = report.hold, self._clock.now()
            if await self._store.record_step(hold, name, answer, now) is not Verdict.APPLIED:
                raise ClaimLost(f"step {name!r}: this run no longer holds job {hold.job_id}")
        return await self._store.step(report.job.job_id, name)

    async def sleep(self, report: Report, step: str, micros: int) -> tuple[str, Instant] | None:
        """See `Waits.sleep_as`."""
        return await self._waits.sleep_as(report, step, micros)

    async def wait_for_event(
        self, report: Report, step: str, name: str, key: str | None, timeout_micros: int | None, schema: str | None
    ) -> Waited:
        """See `Waits.wait_as`."""
        return await self._waits.wait_as(report, step, name, key, timeout_micros, schema)

    async def suspended(self, job_id: str, step: str, seen: int | None) -> Outcome | None:
        """Return the outcome of an attempt that sleeps, or waits for an event having seen so many, from what it has
        recorded; None if it has recorded no such wait."""
        if seen is None:
            recorded = await self._store.step(job_id, step, StepKind.SLEEP)
            return None if recorded is None else Sleeping(step, waits.sleep_of(recorded).until)
        recorded = await self._store.step(job_id, step, StepKind.WAIT)
        return None if recorded is None else WaitingForEvent(EventWait.of(recorded), seen)

    async def statuses(self, job_ids: Sequence[str]) -> list[Status | None]:
        return await self._store.statuses(job_ids) if job_ids else []

    async def write_log(self, report: Report, trouble: Trouble) -> None:
        """Append the log lines of a report to the job's log file."""
        recorder = Recorder(self._store, self._clock, self._files, {}, trouble)
        await recorder.write_log(report)
        await recorder.close(0.0)
