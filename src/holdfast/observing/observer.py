"""What an observer is told. Every method may be left as it is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import msgspec

from holdfast.clock import MICROS, Instant
from holdfast.counted import counted
from holdfast.newjob import NewJob
from holdfast.statuses import Status
from holdfast.transition import ErrorEntry, Transition


class Attempted(Protocol):
    """A job as one attempt of it sees it."""

    @property
    def job_id(self) -> str: ...
    @property
    def job_type(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def payload(self) -> str:
        """JSON text, as it is stored: with whatever secrets are in it."""
        ...

    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def started_at(self) -> Instant | None: ...
    @property
    def worker_id(self) -> str | None: ...
    @property
    def subject(self) -> str | None: ...
    @property
    def traceparent(self) -> str | None: ...


class Ending(msgspec.Struct, frozen=True):
    """How an attempt ended."""

    outcome: str  # completed, retried, failed, cancelled, snoozed, given_back or waiting, as the metrics count them
    error: ErrorEntry | None  # set: it failed, for now or for good
    ran_seconds: float
    schema: str | None = None  # of the payload, where it failed and one is known: it marks what is secret

    @property
    def is_dead(self) -> bool:
        """Whether the job is a dead letter by this."""
        return self.error is not None and self.outcome == Status.FAILED.value


def ending_of(decided: Transition, schema: str | None) -> Ending:
    outcome = counted(decided.event, decided.target) or decided.target
    return Ending(outcome.value, decided.error, decided.ran_micros / MICROS, schema)


class Observer:
    def submitting(self, jobs: Sequence[NewJob]) -> AbstractContextManager[str | None]:
        """Around the commit that stores them. What it gives is stored with each as its `traceparent`."""
        return nullcontext()

    def running(self, jobs: Sequence[Attempted]) -> AbstractContextManager[str | None]:
        """Around an attempt, in the context of its handler; of a batch handler, around its call for all of these. What
        it gives stands for the attempt in a process that runs it elsewhere."""
        return nullcontext()

    def continuing(self, traceparent: str) -> AbstractContextManager[object]:
        """Around what belongs to something in another process: a handler that runs in a process of its own, a request
        that comes with a `traceparent`."""
        return nullcontext()

    def ended(self, job: Attempted, ending: Ending) -> None:
        """Its outcome is decided. Called within `running`, or alone: for a job whose worker died, for one that a remote
        worker has run, for one that was never begun."""
