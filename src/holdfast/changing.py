"""Changing jobs from outside: by people, and by programs that do not hold them."""

from __future__ import annotations

from holdfast import ids, lifecycle, limits
from holdfast.checks import check_text
from holdfast.editing import check_version, edit, retry_dead
from holdfast.family_tree import record_of
from holdfast.job import Job
from holdfast.lifecycle import TERMINAL
from holdfast.opened import Opened, check_words
from holdfast.subtrees import Subtrees


class Changing(Opened):
    async def cancel(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        reason: str | None = None,
        by: str | None = None,
        expected_version: int | None = None,
    ) -> Job:
        """Cancel a job in any active state; a running handler is stopped. `subtree`: and what is active below it."""
        by, reason = check_words(by, reason)
        if not (subtree and expected_version is None and await self._has_ended(job_id)):
            await edit(
                self.store,
                self.clock,
                job_id,
                expected_version,
                lambda job, _: lifecycle.cancel(job, by=by, reason=reason),
            )
        if subtree:
            top = await record_of(self.store, ids.canonical(job_id))
            await Subtrees(self.store, self.clock, by, reason).cancel(top)
        return await self.get(job_id)

    async def retry(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        reason: str | None = None,
        by: str | None = None,
        expected_version: int | None = None,
    ) -> Job:
        """Run an ended job again, with a fresh budget of attempts. `subtree`: all of it and below it that failed or was
        cancelled; what has completed is kept."""
        by, reason = check_words(by, reason)
        if subtree:
            top = await record_of(self.store, ids.canonical(job_id))
            check_version(top, expected_version)
            await Subtrees(self.store, self.clock, by, reason).retry(top)
            return await self.get(job_id)
        await edit(
            self.store,
            self.clock,
            job_id,
            expected_version,
            lambda job, now: lifecycle.manual_retry(job, now=now, by=by, reason=reason),
        )
        return await self.get(job_id)

    async def rerun(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> Job:
        """Run again from here: this job, all below it, what in its tree depends on one of these, and then its parents.
        What comes before it is kept and read again."""
        by, reason = check_words(by, reason)
        job = await record_of(self.store, ids.canonical(job_id))
        await Subtrees(self.store, self.clock, by, reason).rerun(job)
        return await self.get(job_id)

    async def _has_ended(self, job_id: str) -> bool:
        return (await record_of(self.store, ids.canonical(job_id))).status in TERMINAL

    async def retry_dead(
        self, *, job_type: str | None = None, error_type: str | None = None, by: str | None = None
    ) -> int:
        """Run many dead letters again: all, or those of a type or an error. How many."""
        for name, value in (("job_type", job_type), ("error_type", error_type), ("by", by)):
            check_text(name, value, limits.KEY_LENGTH_MAX)
        return await retry_dead(self.store, self.clock, job_type, error_type, by)
