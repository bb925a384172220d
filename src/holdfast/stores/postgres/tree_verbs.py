"""The port's verbs on trees."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.store.types import Hold, Inserted, NewJob, Page, Verdict
from holdfast.stores.postgres import trees, unpacking
from holdfast.stores.postgres.running import Running


class TreeVerbs(Running):
    async def insert_children(self, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        return await self._write(
            "insert_children",
            lambda tx, repeat: trees.insert_children(tx, hold, jobs, now, self._store_now(now), repeat),
        )

    async def stage(self, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
        return await self._write("stage", lambda tx, _: trees.stage(tx, hold, part, jobs))

    async def _unpack(self, now: Instant, limit: int, job_id: str | None = None) -> int:
        """Store staged children of settled jobs, a part in each transaction, so that others come in between; how many
        jobs that were, about `limit` at most."""
        done = 0
        while done < limit:
            jobs = await self._at("unpack", now, lambda tx, at: unpacking.unpack(tx, now, at, job_id))
            if not jobs:
                break
            done += jobs
        return done

    async def children(self, job_id: str, after: str | None, limit: int, status: Status | None = None) -> Page:
        return await self._read(lambda tx: trees.children(tx, job_id, after, limit, status))
