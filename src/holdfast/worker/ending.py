"""How a run leaves the worker: settled as it ended, stopped, or lost to someone else."""

from __future__ import annotations

import asyncio
import logging
import random

from holdfast import suspects
from holdfast.clock import MICROS, Clock, Instant
from holdfast.errors import EffectFailed
from holdfast.lifecycle import ErrorEntry, GivenBack, Outcome, Raised, Snoozed, Transition, decide
from holdfast.observing import Observers
from holdfast.store.port import Store
from holdfast.store.types import Verdict
from holdfast.trouble import Trouble
from holdfast.worker.execution import Execution
from holdfast.worker.executor import LOST, TIMED_OUT, Executor
from holdfast.worker.items import Call
from holdfast.worker.mistakes import clean, entry
from holdfast.worker.recorder import Recorder
from holdfast.worker.run import Run
from holdfast.worker.settler import Settler
from holdfast.worker.slots import Slots

log = logging.getLogger("holdfast.worker")
STOP_SECONDS = 5.0  # how long a cancelled handler may take to let go before its slot counts as stuck
HALVE_SECONDS = 1.0  # how long a thread with a batch that timed out has to look at ctx.cancelled, if it is to be halved


class Ending:
    def __init__(
        self,
        worker_id: str,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        executor: Executor,
        trouble: Trouble,
        observers: Observers | None,
    ) -> None:
        self._worker_id = worker_id
        self._clock = clock
        self._recorder = recorder
        self._executor = executor
        self._observers = observers
        self.slots: Slots  # what starts runs, which needs this one to give them back
        self.settler = Settler(store, clock, self._settled, self._effect_failed, trouble)
        self.ended = self.failed = self.busy_micros = 0  # attempts, for whoever asks how this worker does

    # By itself

    async def finish(self, run: Run, outcome: Outcome) -> None:
        """What cannot be settled as it ended is a failure; what cannot be settled at all is let go, and rescued."""
        try:
            await self._finish(run, outcome)
        except Exception as error:
            log.exception("%s job %s could not be settled", run.job.job_type, run.job.job_id)
            try:
                run.unsay()
                self.settle(run, Raised(entry(error, run.job.attempt, self._clock.now())))
            except Exception:
                log.exception("%s job %s is let go; its lease runs out", run.job.job_type, run.job.job_id)
                self.slots.forget(run)

    async def _finish(self, run: Run, outcome: Outcome) -> None:
        run.settling = True  # its outcome is known: a stop that comes while its log is written must not lose it
        if run.dirty:
            await self._recorder.write_log(run)
        self.settle(run, outcome)

    def give_back(self, run: Run, reason: str) -> None:
        self.settle(run, GivenBack(reason))

    def put_off(self, run: Run) -> None:
        """Another suspect runs here."""
        now = self._clock.now()
        pause = suspects.put_off_micros(run.job.lost_at or now, now, random.random())
        self.settle(run, Snoozed(pause, suspects.REASON, costs=False))

    def settle(self, run: Run, outcome: Outcome) -> None:
        run.settling = True
        self.settler.put(run, self._decide(run, outcome, self._clock.now()))

    def _decide(self, run: Run, outcome: Outcome, now: Instant) -> Transition:
        transition = decide(
            run.job,
            outcome,
            now=now,
            backoff=run.handler.backoff,
            draw=random.random(),
            token=run.token,
            by=self._worker_id,
            **run.said(),
        )
        if self._observers is not None:
            schema = None if transition.error is None else run.handler.describe(now).payload_schema
            self._observers.ended(run.job, transition, schema)
        self.ended += 1
        self.busy_micros += transition.ran_micros
        if transition.error is not None:
            self.failed += 1
            log.warning(
                "%s job %s attempt %d → %s%s: %s",
                run.job.job_type,
                run.job.job_id,
                run.job.attempt,
                transition.target.value,
                "" if transition.scheduled_for is None else f" in {(transition.scheduled_for - now) / MICROS:.3g} s",
                transition.reason,
            )
        elif log.isEnabledFor(logging.DEBUG):  # a line per job is too much for every day: there are thousands a second
            log.debug(
                "%s job %s attempt %d → %s after %.3g s",
                run.job.job_type,
                run.job.job_id,
                run.job.attempt,
                transition.target.value,
                transition.ran_micros / MICROS,
            )
        return transition

    def _effect_failed(self, run: Run, error: EffectFailed) -> Transition:
        """The handler's own SQL broke the completion: that is a failure of the attempt."""
        now = self._clock.now()
        failure = ErrorEntry(run.job.attempt, now, "EffectFailed", clean(str(error)))
        run.unsay_effects()
        return self._decide(run, Raised(failure), now)

    def _settled(self, run: Run, verdict: Verdict | None) -> None:
        """None: it was let go."""
        if self.slots.held.get(run.job.job_id) is run:
            del self.slots.held[run.job.job_id]
        if run not in self.slots.stuck:
            self.slots.forget_running(run)
            self.slots.clear_of_suspicion(run)
        if verdict is not None and verdict is not Verdict.APPLIED:
            log.warning(
                "job %s attempt %d: its outcome was refused (%s); another run or a cancellation came first",
                run.job.job_id,
                run.job.attempt,
                verdict.value,
            )

    # Before its time

    def stop(self, execution: Execution, reason: str) -> None:
        """Stop a handler. One that cannot be stopped keeps its slot, but its jobs are settled without it."""
        if execution.is_over:
            return
        execution.stop(reason)
        if execution.cancelled is None:
            asyncio.get_running_loop().call_later(STOP_SECONDS, self._abandon, execution)
        elif reason == TIMED_OUT and isinstance(execution, Call) and len(execution.firsts) > 1:
            asyncio.get_running_loop().call_later(HALVE_SECONDS, self._abandon, execution)
        else:
            self._abandon(execution)

    def _abandon(self, execution: Execution) -> None:
        if isinstance(execution, Call):
            if not execution.ended:
                for item in execution.items:
                    self._abandon_run(item, execution)
        elif isinstance(execution, Run):
            self._abandon_run(execution, execution)

    def _abandon_run(self, run: Run, execution: Execution) -> None:
        if run.settling or run.task is None or run.task.done():
            return
        self.slots.stuck.add(run)
        log.warning(
            "%s job %s attempt %d does not stop: its slot stays taken until its handler returns",
            run.job.job_type,
            run.job.job_id,
            run.job.attempt,
        )
        if not run.lost:
            self.settle(run, self._executor.stopped(run, execution))

    def lose(self, run: Run) -> None:
        """The store says that this claim no longer holds."""
        if run.is_over or self.slots.held.get(run.job.job_id) is not run:
            return
        log.warning(
            "%s job %s attempt %d: cancelled, or taken over by another worker; its handler is told to stop",
            run.job.job_type,
            run.job.job_id,
            run.job.attempt,
        )
        run.lost = True
        del self.slots.held[run.job.job_id]
        if run.task is None:
            self.slots.drop(run)
            return
        run.stop(LOST)
        self.slots.stuck.add(run)
