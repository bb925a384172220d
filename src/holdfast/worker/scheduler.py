"""Schedules: at each tick, its job. Every worker looks; the store lets one of them through.

There may be thousands. They are read when one was saved, and again after a while; what is known of them in between is
enough to try, because the store takes a tick only from who has read the schedule as it stands.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from holdfast import failpoints, ticks
from holdfast.clock import MICROS, Clock, Instant
from holdfast.errors import QueueFull, StoreMoved
from holdfast.store.port import Store
from holdfast.store.types import Firing, Schedule, Verdict
from holdfast.trouble import HOPELESS, Trouble
from holdfast.waits import within
from holdfast.worker import moved

log = logging.getLogger("holdfast.worker")
LOOKING = "looking at schedules"


class Scheduler:
    def __init__(self, store: Store, clock: Clock, *, look_seconds: float, trouble: Trouble | None = None) -> None:
        self._store = store
        self._trouble = trouble or Trouble(log, clock)
        self._clock = clock
        self._look_seconds = look_seconds
        self._known: dict[str, Schedule] = {}
        self._changed = asyncio.Event()
        self._complained: set[tuple[str, int]] = set()

    def changed(self) -> None:
        self._changed.set()

    async def work(self) -> None:
        """Sleep until the next tick, then decide it."""
        good_for = 0.0  # seconds for which what is known will do
        while True:
            read = good_for <= 0 or self._changed.is_set()
            self._changed.clear()
            if read:
                good_for = self._look_seconds
            pause = good_for
            try:
                next_at = await (self.look() if read else self._decide())
                if next_at is not None:
                    pause = min(pause, max(0.0, (next_at - self._clock.now()) / MICROS))
            except HOPELESS:
                raise
            except Exception as error:
                self._trouble.met(LOOKING, error)
                pause = good_for = min(pause, 1.0)
            else:
                self._trouble.over(LOOKING)
            await within(pause, self._changed.wait())
            good_for -= pause

    async def look(self) -> Instant | None:
        """Read all schedules and decide every tick that is due; when the next one is."""
        self._known = {schedule.name: schedule for schedule in await self._store.schedules()}
        return await self._decide()

    async def _decide(self) -> Instant | None:
        due: list[Instant] = []
        for schedule in tuple(self._known.values()):
            if schedule.paused_at is None:
                due.append(await self._catch_up(schedule))
        return min(due, default=None)

    async def _catch_up(self, schedule: Schedule) -> Instant:
        """Under missed="all" there may be more ticks than one firing takes; then it is due again at once."""
        now = self._clock.now()
        try:
            firing = ticks.firing(schedule, now)
            if firing is None:
                return schedule.next_at
            try:
                verdict = await self._fire(firing, now)
            except QueueFull:
                if len(firing.jobs) < 2:
                    raise
                # A queue may never have room for all of them at once: one at a time, then.
                firing = ticks.firing(schedule, now, most=1) or firing
                verdict = await self._fire(firing, now)
        except StoreMoved as error:
            moved.say_once(error)
            return now + round(self._look_seconds * MICROS)
        except HOPELESS:
            raise
        except Exception as error:  # one that cannot be read, or is refused, must not stop the others
            self._complain(schedule, error)
            return now + round(self._look_seconds * MICROS)
        if verdict is not Verdict.APPLIED:
            await self._read_one(schedule.name)  # another worker was faster, or it was changed
            return now
        if firing.jobs:
            log.info("schedule %s: %d job%s", schedule.name, len(firing.jobs), "" if len(firing.jobs) == 1 else "s")
        self._known[schedule.name] = msgspec.structs.replace(schedule, next_at=firing.next_at)
        return firing.next_at

    async def _read_one(self, name: str) -> None:
        self._known.pop(name, None)
        self._known.update({schedule.name: schedule for schedule in await self._store.schedules([name])})

    async def _fire(self, firing: Firing, now: Instant) -> Verdict:
        failpoints.hit("fire.before")
        verdict = (await self._store.fire([firing], now))[0]
        failpoints.hit("fire.after")
        return verdict

    def _complain(self, schedule: Schedule, error: Exception) -> None:
        """Once for each tick, not at every look."""
        mark = (schedule.name, schedule.next_at)
        if mark not in self._complained:
            self._complained = {each for each in self._complained if each[0] != schedule.name} | {mark}
            log.error("schedule %s: its tick waits: %s", schedule.name, error)
