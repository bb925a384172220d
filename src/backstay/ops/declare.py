"""Brings the stored schedules of an app in line with its code, when one of its workers starts.

It first stores that this code holds (see core/declarations.py), then changes the schedules one by one. Every change is
made only if the schedule is as it was read, and the schedules are read before the check that this code still holds: so
a worker that was overtaken by newer code in between changes nothing. A worker that dies halfway leaves the rest to the
next one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from backstay import failpoints
from backstay.clock import Clock, Instant
from backstay.core import access_keys, declarations, schedules
from backstay.core.declarations import Code, DeclaredSchedule, Standing
from backstay.core.port import Store
from backstay.core.records import Declaration, JobTemplate, JobType, Schedule, Verdict, WorkerRow
from backstay.errors import BackstayError, UnknownJobType, VersionConflict
from backstay.limits import NAME_LENGTH_MAX
from backstay.ops.audit import Actor, audited
from backstay.ops.edit import TRIES
from backstay.options import job_template

log = logging.getLogger("backstay")
WORKERS_PAGE = 1_000  # rows read at once


class Declarer:
    """Declares the schedules of one app. `declare` may be called again at any time."""

    def __init__(self, store: Store, clock: Clock, code: Code) -> None:
        self._store = store
        self._clock = clock
        self._code = code
        self._actor = Actor(f"code:{code.origin}"[:NAME_LENGTH_MAX])
        self._said: set[str] = set()

    @property
    def is_needed_again(self) -> bool:
        """Whether what is declared now may have to be declared again later: if the code declares anything."""
        return bool(self._code.schedules)

    async def declare(self) -> bool:
        """Return whether the stored schedules are those of this code. If not, another call may succeed later."""
        for _ in range(TRIES):
            stored = await self._stored()
            if stored is None and not self._code.schedules:
                return True
            differs = stored is not None and stored.digest != self._code.digest
            living = declarations.living(await self._workers(), self._clock.now()) if differs else []
            match declarations.standing(stored, self._code, living):
                case Standing.OLDER:
                    self._say(
                        "newer code has declared its schedules, and a worker with it lives: this worker changes none"
                    )
                    return False
                case Standing.FOREIGN:
                    self._say(
                        "another app has this name, and none of its job types: give each its own, Backstay(name=…)"
                    )
                    return False
                case Standing.NEWER:
                    holds = declarations.replaced(stored, self._code, self._clock.now())
                    if await self._save(holds, stored) is not Verdict.APPLIED:
                        continue
                    failpoints.hit("declare.saved")
                case Standing.CURRENT:
                    assert stored is not None  # noqa: S101 - it has this code's digest
                    holds = stored
            if (done := await self._apply(holds)) is not None:
                return done
        raise VersionConflict(f"the schedules of {self._code.origin} keep changing: try again")

    async def _stored(self) -> Declaration | None:
        return next((each for each in await self._store.declarations() if each.origin == self._code.origin), None)

    async def _save(self, declaration: Declaration, stored: Declaration | None) -> Verdict:
        return await self._store.save_declaration(declaration, None if stored is None else stored.version)

    async def _workers(self) -> list[WorkerRow]:
        found: list[WorkerRow] = []
        while True:
            after = found[-1].worker_id if found else ""
            page = await self._store.workers(after=after, limit=WORKERS_PAGE)
            found += page
            if len(page) < WORKERS_PAGE:
                return found

    async def _apply(self, holds: Declaration) -> bool | None:
        """Create, change and remove schedules; None if something has changed in between, and all must be read again."""
        names = sorted({*holds.names, *(each.name for each in self._code.schedules)})
        stored = {each.name: each for each in (await self._store.schedules(names) if names else [])}
        if await self._stored() != holds:
            return None
        done = True
        types = await self._types()
        for each in self._code.schedules:
            try:
                verdict = await self._define(each, stored.get(each.name), types)
            except BackstayError as error:
                self._say(f"schedule {each.name}: {error}")
                done = False
                continue
            if verdict is not Verdict.APPLIED:
                return None
        for gone in declarations.to_remove(stored.values(), self._code):
            failpoints.hit("declare.remove")
            if not await self._remove(gone):
                return None
        settled = declarations.settled(holds, self._code)
        if settled is not None and await self._save(settled, holds) is not Verdict.APPLIED:
            return None
        return done

    async def _types(self) -> Mapping[str, JobType]:
        """Return the announced types, if a schedule names one whose handler is not in this code."""
        if all(each.job is not None for each in self._code.schedules):
            return {}
        return {each.job_type: each for each in await self._store.job_types()}

    async def _define(self, wanted: DeclaredSchedule, stored: Schedule | None, types: Mapping[str, JobType]) -> Verdict:
        origin = self._code.origin
        if stored is not None and stored.declared_by != origin:
            owner = (
                f"the code of {stored.declared_by} declares it"
                if stored.declared_by
                else f'code did not make it: remove it ("backstay schedules remove {wanted.name}"), start a worker'
            )
            self._say(f"schedule {wanted.name} stays as it is, because {owner}; or give this one another name")
            return Verdict.APPLIED
        job = _job_of(wanted, types)
        changed = self._changed(wanted, stored, job, self._clock.now())
        if changed is None:
            return Verdict.APPLIED
        before = None if stored is None else access_keys.schedule(schedules.info(stored))
        async with audited(self._store, self._clock, self._actor, "schedule.put", wanted.name, before) as entry:
            failpoints.hit("declare.define")
            verdict = await self._store.save_schedule(changed, None if stored is None else stored.version)
            entry.after = access_keys.schedule(schedules.info(changed)) if verdict is Verdict.APPLIED else None
        if verdict is Verdict.APPLIED:
            log.info("schedule %s: declared by %s", wanted.name, origin)
        return verdict

    def _changed(
        self, wanted: DeclaredSchedule, stored: Schedule | None, job: JobTemplate, now: Instant
    ) -> Schedule | None:
        return schedules.defined(stored, wanted.name, wanted.when, job, now, declared_by=self._code.origin)

    async def _remove(self, schedule: Schedule) -> bool:
        before = access_keys.schedule(schedules.info(schedule))
        async with audited(self._store, self._clock, self._actor, "schedule.delete", schedule.name, before):
            verdict = await self._store.drop_schedule(schedule.name, schedule.version)
        if verdict is Verdict.APPLIED:
            log.info("schedule %s: removed, because %s no longer declares it", schedule.name, self._code.origin)
        return verdict is not Verdict.STALE

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s: %s", self._code.origin, text)


def _job_of(wanted: DeclaredSchedule, types: Mapping[str, JobType]) -> JobTemplate:
    if wanted.job is not None:
        return wanted.job
    if (job_type := types.get(wanted.job_type)) is None:
        raise UnknownJobType(f"no worker has announced the type {wanted.job_type} yet: it is declared when one has")
    return job_template(job_type, wanted.payload, wanted.options)  # type: ignore[arg-type]
