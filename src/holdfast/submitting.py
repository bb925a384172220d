"""Submitting jobs: one, or many in one commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import msgspec

from holdfast import ids, limits, trees
from holdfast.checks import check_name
from holdfast.clock import Instant
from holdfast.errors import DependencyCycle, InvalidOption, InvalidSubmission, UnknownJobType
from holdfast.handlers import Handler
from holdfast.job import JobHandle
from holdfast.observing.observers import submitting
from holdfast.opened import Opened
from holdfast.store.port import Store
from holdfast.store.types import Inserted, JobType, NewJob
from holdfast.submission import SubmitOptions, build, new_record

_KNOWN_SECONDS = 5.0  # how long a type that others handle is taken as it was read: a deploy may change it

Insert = Callable[[Sequence[NewJob], Instant], Awaitable[list[Inserted]]]
Submission = tuple[Any, Any] | tuple[Any, Any, SubmitOptions]


class Submitting(Opened):
    handlers: Mapping[str, Handler]
    _known_types: dict[str, JobType]
    _known_since: float

    async def submit(self, job_type: str | Handler, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle:
        """Store a job. Once this returns, the job is on disk."""
        store = self.store
        now = self.clock.now()
        target = await self._target(job_type)
        job = build(target, payload, ids.new_id(now), now, options)
        insert = _into(store, options.get("connection"))
        if self.observers is None:
            inserted = (await insert((job,), now))[0]
        else:
            with self.observers.submitting((job,)) as (job,):
                inserted = (await insert((job,), now))[0]
        return self._handle(job, inserted, now)

    async def submit_many(self, jobs: Iterable[Submission], *, connection: Any = None) -> list[JobHandle]:
        """Store many jobs in one commit, all or none: (type, payload) or (type, payload, {options}). With `connection`,
        all of them inside the caller's own transaction."""
        store = self.store
        now = self.clock.now()
        listed = list(jobs)
        if len(listed) > limits.SUBMIT_BATCH_MAX:
            raise InvalidSubmission(
                f"{len(listed):,} jobs at once; the limit is {limits.SUBMIT_BATCH_MAX:,}: split them"
            )
        built: list[NewJob] = []
        targets: dict[Any, Handler | JobType] = {}
        for position, (job_id, each) in enumerate(zip(ids.new_ids(len(listed), now), listed, strict=True)):
            try:
                job_type, payload, *rest = each
                target = targets.get(job_type)
                if target is None:
                    target = targets[job_type] = await self._target(job_type)
                built.append(build(target, payload, job_id, now, _of_one(rest)))
            except InvalidSubmission as error:
                error.args = (f"job {position} of {len(listed)}: {error}",)
                raise
            except (TypeError, ValueError):
                raise InvalidSubmission(
                    f"job {position} of {len(listed)}: give (type, payload) or (type, payload, options)"
                ) from None
        if not built:
            return []
        with submitting(self.observers, built) as observed:
            return await self._store_many(observed, now, _into(store, connection))

    async def _store_many(self, built: Sequence[NewJob], now: Instant, insert: Insert) -> list[JobHandle]:
        places = in_order(built)
        ordered = built if places is None else [built[place] for place in places]
        answers = await insert(ordered, now)
        inserted = (
            answers
            if places is None
            else [answer for _, answer in sorted(zip(places, answers, strict=True), key=_place)]
        )
        return [self._handle(job, each, now) for job, each in zip(built, inserted, strict=True)]

    async def _target(self, job_type: str | Handler) -> Handler | JobType:
        if isinstance(job_type, Handler):
            return job_type
        try:
            handler = self.handlers.get(job_type)
        except TypeError:  # a list, say, cannot even be looked up
            check_name(job_type, "job type")
            raise
        if handler is not None:
            return handler
        known = self._known_types.get(job_type)
        now = self.clock.monotonic()
        if known is None or now - self._known_since > _KNOWN_SECONDS:
            check_name(job_type, "job type")
            self._known_types = {each.job_type: each for each in await self.store.job_types()}
            self._known_since = now
            known = self._known_types.get(job_type)
        if known is None:
            names = ", ".join(sorted({*self.handlers, *self._known_types})) or "none yet"
            raise UnknownJobType(
                f"{job_type!r} has no handler here and no worker has announced one (known: {names}):"
                " register it with @app.job, or start its worker once"
            )
        return known

    def _handle(self, job: NewJob, inserted: Inserted, now: Instant) -> JobHandle:
        if inserted.existing is not None:
            return JobHandle(self, inserted.job_id, inserted.existing, deduplicated=True)
        if (
            inserted.job_id != job.job_id
        ):  # a duplicate that the caller's own transaction has made, and nobody else sees
            job = msgspec.structs.replace(job, job_id=inserted.job_id)
            return JobHandle(self, job.job_id, partial(new_record, job, inserted, now), deduplicated=True)
        return JobHandle(self, job.job_id, partial(new_record, job, inserted, now))


def in_order(jobs: Sequence[NewJob]) -> list[int] | None:
    """Positions such that each comes after those of the list that it depends on or belongs to; None where none does."""
    tied = [job for job in jobs if job.depends_on or job.parent_job_id is not None]
    if not tied:
        return None
    here = {job.job_id for job in jobs}
    if not any(here.intersection(_needs(job)) for job in tied):
        return None
    try:
        return trees.order([(job.job_id, _needs(job)) for job in jobs])
    except trees.Cycle as cycle:
        path = " → ".join(map(str, cycle.path))
        raise DependencyCycle(f"jobs {path} of {len(jobs)} wait for one another: nothing was stored") from None


def _needs(job: NewJob) -> tuple[str, ...]:
    return job.depends_on if job.parent_job_id is None else (*job.depends_on, job.parent_job_id)


def _into(store: Store, connection: Any) -> Insert:
    return store.insert if connection is None else partial(store.insert_in, connection)


def _place(answer: tuple[int, Inserted]) -> int:
    return answer[0]


def _of_one(rest: Sequence[SubmitOptions]) -> SubmitOptions:
    """The options of one of many."""
    options = rest[0] if rest else SubmitOptions()
    if options and options.get("connection") is not None:
        raise InvalidOption("connection is for all of them or for none: write submit_many(…, connection=…)")
    return options
