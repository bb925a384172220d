"""Durable waits of a run: sleeps and events, recorded under names so that the next run gets past them."""

from __future__ import annotations

import msgspec

from backstay.clock import Clock, Instant
from backstay.core import waits
from backstay.core.port import Store
from backstay.core.records import Verdict
from backstay.core.waits import Ending, EventWait, Sleep, StepKind
from backstay.errors import ClaimLost, EventsFull, InvalidOption
from backstay.job import Waited
from backstay.limits import LISTENERS_MAX
from backstay.worker.run import Report, Run


class Waits:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def sleep(self, run: Run, name: str, micros: int) -> tuple[str, Instant] | None:
        """Return the name and the end of a sleep that is not over; None if it is. Its end is recorded when the handler
        first comes to it."""
        _refuse_effects(run)
        return await self.sleep_as(run, _nth(run, StepKind.SLEEP, name), micros)

    async def sleep_as(self, run: Report, step: str, micros: int) -> tuple[str, Instant] | None:
        """The same, under the name that tells it from other sleeps of the run."""
        recorded = await self._store.step(run.job.job_id, step, StepKind.SLEEP)
        now = self._clock.now()
        if recorded is None:
            sleep = Sleep(now + micros)
            await self._record(run, step, waits.encoded(sleep), StepKind.SLEEP)
        else:
            sleep = waits.sleep_of(recorded)
        return None if waits.is_over(sleep.until, now, run.job.scheduled_for) else (step, sleep.until)

    async def wait_for_event(
        self, run: Run, name: str, key: str | None, timeout_micros: int | None, schema: str | None
    ) -> Waited:
        """Return how a wait ended, or what the job has to wait for."""
        _refuse_effects(run)
        return await self.wait_as(run, _nth(run, StepKind.EVENT, name), name, key, timeout_micros, schema)

    async def wait_as(
        self, run: Report, step: str, name: str, key: str | None, timeout_micros: int | None, schema: str | None
    ) -> Waited:
        """The same, under the name that tells it from other waits of the run."""
        if (recorded := await self._store.step(run.job.job_id, step, StepKind.EVENT)) is not None:
            return Waited(step, waits.ending_of(recorded))
        wait = await self._begun(run, step, name, key, timeout_micros, schema)
        if wait.key is not None:
            await self._listen(run, wait)
        inbox = await self._store.inbox(run.job.job_id)
        if (found := _ending(inbox, wait)) is not None:
            return await self._end(run, step, found)
        if wait.until is None or not waits.is_over(wait.until, self._clock.now(), run.job.scheduled_for):
            return Waited(step, None, wait, inbox.seen)
        if wait.key is not None:  # what comes from here on goes to another; what has come since is received
            _check(run, await self._store.stop_listening(run.hold, wait, self._clock.now()))
            found = _ending(await self._store.inbox(run.job.job_id), wait)
        return await self._end(run, step, found or Ending())

    async def _begun(
        self, run: Report, step: str, name: str, key: str | None, timeout_micros: int | None, schema: str | None
    ) -> EventWait:
        """Return the wait as it was first recorded: its timeout counts from then on."""
        if (stored := await self._store.step(run.job.job_id, step, StepKind.WAIT)) is not None:
            before = EventWait.of(stored)
            return msgspec.structs.replace(before, schema=schema)
        now = self._clock.now()
        until = None if timeout_micros is None else now + timeout_micros
        wait = EventWait(name, step, now, key, until, schema)
        await self._record(run, step, wait.stored, StepKind.WAIT)
        return wait

    async def _listen(self, run: Report, wait: EventWait) -> None:
        verdict = await self._store.listen_for(run.hold, wait, self._clock.now())
        if verdict is Verdict.BLOCKED:
            raise EventsFull(
                f"{LISTENERS_MAX} jobs wait for events of the key {wait.key!r} (LISTENERS_MAX): use a key for each of"
                " what they wait for"
            )
        _check(run, verdict)

    async def _end(self, run: Report, step: str, ending: Ending) -> Waited:
        await self._record(run, step, waits.encoded(ending), StepKind.EVENT)
        return Waited(step, ending)

    async def _record(self, run: Report, step: str, answer: str, kind: StepKind) -> None:
        _check(run, await self._store.record_step(run.hold, step, answer, self._clock.now(), kind))


def _ending(inbox: waits.Inbox, wait: EventWait) -> Ending | None:
    if (found := waits.next_event(inbox, wait)) is None:
        return None
    event_id, sent = found
    return Ending(event_id, sent.payload, sent.sent_at, sent.by)


def _nth(run: Run, kind: StepKind, name: str) -> str:
    run.waits = run.waits if run.waits is not None else {}
    return waits.nth(run.waits, kind, name)


def _refuse_effects(run: Run) -> None:
    if run.effects or run.row_parts:
        raise InvalidOption(
            "rows and statements are published with the completion of the run that put them: put them after the last"
            " ctx.sleep() and ctx.wait_for_event()"
        )


def _check(run: Report, verdict: Verdict) -> None:
    if verdict is not Verdict.APPLIED:
        raise ClaimLost(f"a wait was not recorded: this run no longer holds job {run.job.job_id}")
