"""The port's verbs on trees."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.store.types import Hold, Inserted, NewJob, Page, Verdict
from holdfast.stores.sqlite import trees, unpacking
from holdfast.stores.sqlite.running import Running


class TreeVerbs(Running):
    async def insert_children(self, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        return await self._write(
            "insert_children", lambda tx: trees.insert_children(tx, hold, jobs, now), essential=False
        )

    async def stage(self, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
        return await self._write("stage", lambda tx: trees.stage(tx, hold, part, jobs, now), essential=False)

    async def _unpack(self, now: Instant, limit: int, job_id: str | None = None) -> int:
        """Store staged children of settled jobs, a part in each transaction, so that others come in between; how many
        jobs that were, about `limit` at most."""
        done = 0
        while done < limit:
            jobs = await self._write("unpack", lambda tx: unpacking.unpack(tx, now, job_id), essential=False)
            if not jobs:
                break
            done += jobs
        return done

    async def children(self, job_id: str, after: str | None, limit: int, status: Status | None = None) -> Page:
        return await self._read(lambda c: trees.children(c, job_id, after, limit, status))
