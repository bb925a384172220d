"""Settles runs: decides what their outcome means, and writes it; in batches when they outpace commits.

A run that is stopped before its end is settled here too: at its timeout, and when the worker shuts down.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from backstay import codec, failpoints
from backstay.clock import MICROS, Clock
from backstay.core.lifecycle import Completed, GivenBack, Outcome, Raised, complete, decide
from backstay.core.port import Store
from backstay.core.records import ErrorEntry, Transition, Verdict
from backstay.errors import EffectFailed, StoreBusy, StoreMoved
from backstay.limits import SETTLE_BATCH_MAX, UNSETTLED_MAX
from backstay.observers import Observers
from backstay.ops.wait import HOPELESS, OF_THE_STORE, Trouble
from backstay.worker import errors
from backstay.worker.errors import entry
from backstay.worker.recorder import Recorder
from backstay.worker.run import TIMED_OUT, Call, Execution, Run, Runs

log = logging.getLogger("backstay.worker")
STOP_SECONDS = 5.0  # how long a cancelled handler may take to let go before its slot counts as stuck
HALVE_SECONDS = 1.0  # how long a thread with a batch that timed out has to look at ctx.cancelled, if it is to be halved
ISOLATE_AFTER = 3  # tries of a batch, before one of its jobs is suspected
PAUSE_SECONDS = 0.2
PAUSE_SECONDS_MAX = 1.0  # leases run out meanwhile: what was done must be settled before another is sent to do it


class Settler:
    def __init__(
        self,
        worker_id: str,
        store: Store,
        clock: Clock,
        runs: Runs,
        recorder: Recorder,
        observers: Observers | None,
        trouble: Trouble,
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._clock = clock
        self._runs = runs
        self._recorder = recorder
        self._observers = observers
        self._trouble = trouble
        self.ended = self.failed = self.busy_micros = 0  # attempts, for the worker's heartbeat
        self._not_begun = 0  # of these, given back before they began
        self.waiting: list[tuple[Run, Transition]] = []  # decided, not written
        # So much waits that no more jobs should be claimed. What runs faster than the store takes it would pile up in
        # memory, with a lease each, and would all run again after a crash.
        self.is_behind = False
        self.on_room: Callable[[], object] = lambda: None  # called when it is behind no longer
        self._apart: set[asyncio.Task[None]] = set()
        self._is_writing = False
        self._stir = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    # Decide

    async def finish(self, run: Run, outcome: Outcome) -> None:
        """Settle a run that has ended, after its log is written."""
        run.settling = True  # its outcome is known: a stop that comes while its log is written must not lose it
        if run.dirty:
            try:
                await self._recorder.write_log(run)
            except Exception as error:
                log.exception("the log of %s job %s could not be written", run.job.job_type, run.job.job_id)
                self.fail(run, error)
                return
        self.conclude(run, outcome)

    def conclude(self, run: Run, outcome: Outcome) -> None:
        """Settle a run that has ended and has no log to write first."""
        try:
            self.settle(run, outcome)
        except Exception as error:
            log.exception("%s job %s could not be settled", run.job.job_type, run.job.job_id)
            self.fail(run, error)

    def fail(self, run: Run, error: BaseException) -> None:
        """Settle as failed a run that could not be settled normally. If that fails too, it is let go, and rescued when
        its lease expires."""
        try:
            run.unsay()
            self.settle(run, Raised(entry(error, run.job.attempt, self._clock.now())))
        except Exception:
            log.exception("giving up on %s job %s; its lease will expire", run.job.job_type, run.job.job_id)
            self._runs.forget(run)

    def settle(self, run: Run, outcome: Outcome) -> None:
        run.settling = True
        transition = self._decide(run, outcome)
        if not self.waiting:
            self._stir.set()
            self._idle.clear()
        self.waiting.append((run, transition))
        self.is_behind = len(self.waiting) >= UNSETTLED_MAX

    def give_back(self, run: Run, reason: str) -> None:
        """Give back a job that has not begun."""
        self._not_begun += 1
        self.settle(run, GivenBack(reason))

    @property
    def ran(self) -> int:
        """How many attempts have begun and ended."""
        return self.ended - self._not_begun

    def _decide(self, run: Run, outcome: Outcome) -> Transition:
        now = self._clock.now()
        said = run.said()
        if not said and isinstance(outcome, Completed):
            transition = complete(run.job, outcome, now, run.token, self._worker_id)
        else:
            transition = decide(
                run.job,
                outcome,
                now=now,
                backoff=run.handler.backoff,
                draw=random.random(),
                token=run.token,
                by=self._worker_id,
                **said,
            )
        if self._observers is not None:
            marks = () if transition.error is None else (*run.handler.sensitive, *run.handler.marked)
            self._observers.ended(run.job, transition, marks)
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
        """The handler's own SQL broke the completion: settle the attempt as failed."""
        failure = ErrorEntry(run.job.attempt, self._clock.now(), "EffectFailed", codec.clean(str(error)))
        run.unsay_effects()
        return self._decide(run, Raised(failure))

    # Write

    async def drained(self) -> None:
        await self._idle.wait()

    async def work(self) -> None:
        while True:
            await self._stir.wait()
            self._stir.clear()
            self._is_writing = True
            try:
                while self.waiting:
                    size = _fitting(self.waiting)
                    batch = self.waiting[:size]
                    del self.waiting[:size]
                    if self.is_behind and len(self.waiting) < UNSETTLED_MAX:
                        self.is_behind = False
                        self.on_room()
                    await self._settle(batch)
            except asyncio.CancelledError:
                for task in self._apart:
                    task.cancel()
                raise
            finally:
                self._is_writing = False
                if not self._apart:
                    self._idle.set()

    async def _settle(self, batch: list[tuple[Run, Transition]], until: float | None = None) -> None:
        """Try until the store has answered. The guards make every repetition safe, and no other worker can settle these
        jobs. `until` is when to let a job go that the store cannot take; it is set only for a job that is settled
        alone."""
        transitions = [transition for _, transition in batch]
        if failpoints.armed:
            failpoints.hit("settle.before")
        tries = 0
        while True:
            try:
                verdicts = await self._store.apply(transitions, self._clock.now())
                if self._trouble.lasts:
                    self._trouble.over("settling")
                break
            except EffectFailed as error:
                transitions = [
                    self._effect_failed(run, error) if run.job.job_id == error.job_id else transition
                    for (run, _), transition in zip(batch, transitions, strict=True)
                ]
            except StoreMoved as error:  # it moved without these jobs: their leases had run out, and others have them
                errors.say_once(error)
                verdicts = [Verdict.STALE] * len(batch)
                break
            except HOPELESS:
                raise  # the worker stops, and the leases run out
            except Exception as error:
                tries += 1
                if isinstance(error, StoreBusy) and len(batch) > 1:
                    self._settle_apart(batch, transitions)
                    return
                if tries >= ISOLATE_AFTER and not isinstance(error, OF_THE_STORE):
                    if until is None:
                        self._settle_apart(batch, transitions)
                        return
                    if transitions[0].effects:
                        run = batch[0][0]
                        transitions = [self._effect_failed(run, EffectFailed(str(error), job_id=run.job.job_id))]
                    elif self._clock.monotonic() >= until:
                        self._let_go(batch[0][0], error)
                        return
                self._trouble.met("settling", error)
                pause = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2 ** min(tries - 1, 10))
                await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
        if failpoints.armed:
            failpoints.hit("settle.after")
        applied = Verdict.APPLIED
        for (run, _), verdict in zip(batch, verdicts, strict=True):
            self._runs.forget(run)
            if verdict is not applied:
                log.warning(
                    "job %s attempt %d: its outcome was rejected (%s): another run or a cancellation came first",
                    run.job.job_id,
                    run.job.attempt,
                    verdict.value,
                )

    def _settle_apart(self, batch: list[tuple[Run, Transition]], transitions: list[Transition]) -> None:
        """Settle these jobs separately, because one of them is locked or the store cannot take it: the others and later
        ones do not wait for it. Work is not discarded before the lease is over, whatever the store answers."""
        for (run, _), transition in zip(batch, transitions, strict=True):
            lease_seconds = max(0, run.job.lease_expires_at - run.job.started_at) / MICROS
            until = self._clock.monotonic() + lease_seconds
            task = asyncio.get_running_loop().create_task(self._settle([(run, transition)], until))
            self._apart.add(task)
            task.add_done_callback(self._settled_apart)

    def _settled_apart(self, task: asyncio.Task[None]) -> None:
        self._apart.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a job cannot be settled; giving up on it, its lease will expire: %s", error)
        if not self._apart and not self.waiting and not self._is_writing:
            self._idle.set()

    def _let_go(self, run: Run, error: Exception) -> None:
        log.error(
            "job %s attempt %d has ended, but its outcome could not be stored before its lease expired: the job will"
            " run again: %s",
            run.job.job_id,
            run.job.attempt,
            error,
        )
        self._runs.forget(run)

    # Before the end

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
        self._runs.stuck.add(run)
        log.warning(
            "%s job %s attempt %d does not stop: its slot stays occupied until its handler returns",
            run.job.job_type,
            run.job.job_id,
            run.job.attempt,
        )
        if not run.lost:
            self.settle(run, execution.stopped(run.job.attempt, self._clock.now()))


def _fitting(waiting: list[tuple[Run, Transition]]) -> int:
    """Return how many fit into one commit; children and statements count like jobs."""
    if len(waiting) <= 1:
        return len(waiting)
    weight = 0
    for count, (_, transition) in enumerate(waiting):
        weight += 1 + len(transition.children) + len(transition.effects)
        if weight > SETTLE_BATCH_MAX and count:
            return count
    return len(waiting)
