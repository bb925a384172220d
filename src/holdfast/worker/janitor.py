"""Retention, from inside a worker: now and then a pass in small steps, with rests in between."""

from __future__ import annotations

import asyncio
import logging
import random

from holdfast import retention
from holdfast.clock import Clock
from holdfast.errors import StoreMoved
from holdfast.files import Files
from holdfast.limits import RETIRE_INTERVAL_SECONDS, RETIRE_REST_SECONDS
from holdfast.retention import Retention
from holdfast.store.port import Store
from holdfast.trouble import HOPELESS, Trouble
from holdfast.words import count
from holdfast.worker import moved

log = logging.getLogger("holdfast.worker")
START_SECONDS = 5.0  # soon after the start, but not in its way
REST_FACTOR = 9  # times as long as a step took, for each worker: all of them together have a tenth of the store at most


class Janitor:
    def __init__(self, store: Store, clock: Clock, files: Files | None, keep: Retention, trouble: Trouble) -> None:
        self._store = store
        self._trouble = trouble
        self._clock = clock
        self._files = files
        self._keep = keep

    async def work(self) -> None:
        pause = START_SECONDS
        while True:
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            try:
                archived = await self.clean_up()
                pause = RETIRE_INTERVAL_SECONDS if archived else RETIRE_REST_SECONDS
            except StoreMoved as error:
                moved.say_once(error)
                pause = RETIRE_REST_SECONDS
            except HOPELESS:
                raise
            except Exception as error:  # it can wait; the jobs cannot
                self._trouble.met("retention", error, soon=False)
                pause = RETIRE_INTERVAL_SECONDS
            else:
                self._trouble.over("retention")

    async def clean_up(self) -> int:
        policy = retention.policy(self._keep, await self._store.job_types())
        rest = REST_FACTOR * max(1, len(await self._store.workers()))  # they all do this, maybe all at once
        archived = 0
        before = self._clock.monotonic()
        async for moved_now in retention.steps(self._store, self._clock, self._files, policy):
            archived += moved_now
            await asyncio.sleep(rest * max(0.0, self._clock.monotonic() - before))
            before = self._clock.monotonic()
        if archived:
            log.info("retention moved %s to the archive", count(archived, "job"))
        return archived
