"""Calls a batch handler and returns an outcome for each job; a call that fails as a whole is bisected.

Everything happens within one attempt of each job: only a job that fails alone is charged with a failure.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from backstay import failpoints
from backstay.clock import Clock, Instant
from backstay.context import batch_context
from backstay.core.lifecycle import Discarded, GivenBack, Outcome, Raised, RetryAsked
from backstay.errors import BackstayError, InvalidResult, ResultTooLarge
from backstay.outcomes import Directive
from backstay.worker import errors
from backstay.worker.channels import LoopChannel, ThreadChannel
from backstay.worker.encoder import Unencoded, at_once, encoded
from backstay.worker.errors import CallBroke, entry, is_error, one_each, outcome_of
from backstay.worker.executor import Executor
from backstay.worker.run import LOST, SHUT_DOWN, TIMED_OUT, Call, Item, Runs
from backstay.worker.settler import Settler

log = logging.getLogger("backstay.worker")
TIMEOUTS_MAX = 1  # per batch, before its jobs go back to run alone: halves that hang take their whole time, each
Answer = Outcome | str  # a result as JSON text


class _Broken(msgspec.Struct, frozen=True):
    """A call that failed as a whole. The error is wrapped, because even comparing it may run code of its own."""

    error: BaseException


class Caller:
    def __init__(
        self,
        clock: Clock,
        runs: Runs,
        settler: Settler,
        executor: Executor,
    ) -> None:
        self._clock = clock
        self._runs = runs
        self._settler = settler
        self._executor = executor

    async def call(self, items: Sequence[Item]) -> None:
        """Call the handler for these jobs. When this returns, each of them is settled or lost."""
        try:
            await self._call(items)
        except Exception as error:  # of our own: no claim may be held for ever
            log.exception("a batch of %s could not be called", items[0].job.job_type)
            for item in items:
                if not item.is_over:
                    item.unsay_effects()
                    await self._settler.finish(item, Raised(entry(error, item.job.attempt, self._clock.now())))

    async def _call(self, items: Sequence[Item]) -> None:
        left = [(list(items), True)]
        timeouts = 0
        while left:
            group, may_share = left.pop()
            group = await self._readable(group)
            if not group:
                continue
            copies = _copies(group) if may_share and group[0].handler.same_once else {}  # type: ignore[attr-defined]
            call = Call([item for item in group if item not in copies], list(copies))
            answers = await self._answers(call)
            if isinstance(answers, list):
                if again := await self._answered(call, answers, copies):
                    left.append((again, False))
                continue
            for item in call.items:
                item.unsay_effects()
            timeouts += call.stop_reason == TIMED_OUT
            if call.stop_reason == LOST:
                continue
            if call.stop_reason == SHUT_DOWN or (self._runs.stopping and len(call.firsts) > 1):
                await self._give_back([*call.items, *(item for rest, _ in left for item in rest)])
                return
            if len(call.firsts) == 1 or timeouts > TIMEOUTS_MAX:
                await self._broken(call, answers.error)
                continue
            failpoints.hit("batch.between")
            left += reversed(_halves(call, copies, may_share))

    async def _readable(self, items: Sequence[Item]) -> list[Item]:
        """Return the jobs that are still ours and whose payload the handler can read. One that it cannot read fails
        alone."""
        found = []
        for item in items:
            if item.is_over:
                continue
            try:
                item.payload = item.handler.decode(item.job.payload, item.job.payload_version)
            except Exception as error:  # of its model, whatever that does
                await self._settler.finish(item, Raised(entry(error, item.job.attempt, self._clock.now())))
            else:
                found.append(item)
        return found

    async def _answers(self, call: Call) -> list[Answer] | _Broken:
        """Return the handler's answer to each job, or the error that broke the call. Never raises."""
        call.begun = True
        self._runs.calls.add(call)
        try:
            failpoints.hit("handler.before")
            answers = await self._invoke(call)
            failpoints.hit("handler.after")
            return answers if not call.is_stopped else _Broken(TimeoutError())
        except Directive as error:  # of the whole call: a service that is away, say
            return [outcome_of(error, item.job, self._clock.now()) for item in call.firsts]
        except asyncio.CancelledError as error:
            if call.is_stopped and call.task is not None:
                call.task.uncancel()  # by us, and heard: its halves run in the same task
            return _Broken(error)
        except BaseException as error:
            return _Broken(error)
        finally:
            call.ended = True
            self._runs.calls.discard(call)

    async def _invoke(self, call: Call) -> list[Answer]:
        handler = call.handler
        payloads = [item.payload for item in call.firsts]
        match handler.isolation:
            case "async":
                self._executor.deadlines.watch(call)
                errors.current.set(call)
                channels = [LoopChannel(item, self._executor.services, call) for item in call.firsts]
                context = batch_context(True, channels, lambda: call.is_stopped)
                function, takes_context = handler.entry(None)
                value = await (function(payloads, context) if takes_context else function(payloads))
                return await self._encoded(call, answers_of(value, call, self._clock.now()))
            case "thread":
                return await self._in_thread(call, payloads)
            case "process":
                channels = [LoopChannel(item, self._executor.services, call) for item in call.firsts]
                return await self._executor.processes.run_many(
                    call, channels, self._clock, self._executor.deadlines.watch
                )

    async def _in_thread(self, call: Call, payloads: list[Any]) -> list[Answer]:
        handler = call.handler
        channels = [ThreadChannel(item, self._executor.services, call) for item in call.firsts]
        call.cancelled = threading.Event()
        context = batch_context(False, channels, lambda: call.is_stopped)
        self._executor.deadlines.watch(call)

        def run() -> list[Answer | Unencoded]:
            errors.current.set(call)
            function, takes_context = handler.entry(None)
            value = function(payloads, context) if takes_context else function(payloads)
            return answers_of(value, call, self._clock.now())

        return await self._encoded(call, await self._executor.threads.run(contextvars.copy_context(), run))

    async def _encoded(self, call: Call, answers: list[Answer | Unencoded]) -> list[Answer]:
        return [
            await self._encode(answer, item) if isinstance(answer, Unencoded) else answer
            for answer, item in zip(answers, call.firsts, strict=True)
        ]

    async def _encode(self, answer: Unencoded, item: Item) -> Answer:
        try:
            return await encoded(answer)
        except Exception as error:  # of this answer alone
            return outcome_of(error, item.job, self._clock.now(), item.handler.rules)

    # Settle

    async def _answered(self, call: Call, answers: list[Answer], copies: dict[Item, Item]) -> list[Item]:
        """Settle each job, and return those to call again. Identical jobs share an answer, unless the first one's run
        had effects of its own: then the copies are called for theirs."""
        by_first = dict(zip(call.firsts, answers, strict=True))
        by_first |= await self._effects_failed([item for item in call.firsts if isinstance(by_first[item], str)])
        again = [copy for copy, first in copies.items() if first.has_effects]
        for item, answer in [*by_first.items(), *((copy, by_first[first]) for copy, first in copies.items())]:
            if not item.is_over and item not in again:
                await self._settler.finish(item, await self._outcome(item, answer))
        return again

    async def _effects_failed(self, items: Sequence[Item]) -> dict[Item, Answer]:
        """Write what has to be stored before the completions. Return the outcomes of the jobs for which this failed."""
        failed: dict[Item, Exception] = await self._executor.services.rows.publish(items)
        for item in items:
            if (item.family or item.output is not None) and item not in failed:
                try:
                    if item.family:
                        await self._executor.services.children.flush(item)
                    await self._executor.services.outputs.flush(item)
                except BackstayError as error:
                    failed[item] = error
        return {item: outcome_of(error, item.job, self._clock.now()) for item, error in failed.items()}

    async def _outcome(self, item: Item, answer: Answer) -> Outcome:
        if isinstance(answer, str):
            try:
                text = item.handler.stored_result(answer)
            except BackstayError as error:
                return outcome_of(error, item.job, self._clock.now())
            return await self._executor.completed(item, text)
        if isinstance(answer, Raised | RetryAsked | Discarded):  # a copy's own attempt, not the first one's
            return msgspec.structs.replace(
                answer, error=msgspec.structs.replace(answer.error, attempt=item.job.attempt)
            )
        return answer

    async def _broken(self, call: Call, error: BaseException) -> None:
        """Fail each of these jobs with the error of the call: no other job can have caused it."""
        for item in call.items:
            if item.is_over:
                continue
            if call.is_stopped:
                outcome = call.stopped(item.job.attempt, self._clock.now())
            elif type(error) is CallBroke:
                outcome = error.outcome(item.job.attempt, self._clock.now())
            else:
                outcome = outcome_of(error, item.job, self._clock.now(), call.handler.rules)
            await self._settler.finish(item, outcome)

    async def _give_back(self, items: Sequence[Item]) -> None:
        for item in items:
            if not item.is_over:
                await self._settler.finish(item, GivenBack(SHUT_DOWN))


def answers_of(value: Any, call: Call, now: Instant) -> list[Answer | Unencoded]:
    """Convert the handler's list into what is stored for each job: a value or an outcome."""
    values = one_each(value, len(call.firsts), call.handler.name)
    return [_answer(each, item, now) for each, item in zip(values, call.firsts, strict=True)]


def _answer(value: Any, item: Item, now: Instant) -> Answer | Unencoded:
    if is_error(value):
        return outcome_of(value, item.job, now, item.handler.rules)
    try:
        return at_once(value)
    except (InvalidResult, ResultTooLarge) as error:
        return outcome_of(error, item.job, now, item.handler.rules)


def _copies(items: Sequence[Item]) -> dict[Item, Item]:
    """Return the jobs that are identical to an earlier one of the batch, each with that one."""
    firsts: dict[tuple[str, int], Item] = {}
    found: dict[Item, Item] = {}
    for item in items:
        first = firsts.setdefault((item.job.payload, item.job.payload_version), item)
        if first is not item:
            found[item] = first
    return found


def _halves(call: Call, copies: dict[Item, Item], may_share: bool) -> list[tuple[list[Item], bool]]:
    middle = len(call.firsts) // 2
    halves = []
    for firsts in (call.firsts[:middle], call.firsts[middle:]):
        halves.append(([*firsts, *(copy for copy, first in copies.items() if first in firsts)], may_share))
    return halves
