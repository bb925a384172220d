"""When a schedule comes round: cron expressions in a time zone, and fixed spans. Pure.

Around a change of the clocks: a tick at a fixed time that is skipped comes right after the gap, and one whose hour
comes twice comes once; a tick of every so many minutes keeps its pace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from holdfast.clock import MICROS, Instant, to_datetime, to_instant
from holdfast.errors import InvalidSchedule

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = re.compile(r"@every (\d{1,6})(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# CronSim is given whole seconds; ticks lie on whole minutes, so that half a second decides nothing.
_DAY = 86_400 * MICROS
# How far back to look for the last tick, in turn: never past more than some thousand. 29 February can be 8 years away.
_LOOK_BACK_DAYS = (0.1, 2, 40, 370, 3_000)


class Cron:
    """One rule: `after` and `latest` say where its ticks are."""

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        self.expression = expression
        self.timezone = timezone
        self._zone = _zone(timezone)
        self._every = _every(expression)
        self._fields = "" if self._every else NICKNAMES.get(expression.strip().lower(), expression)
        if not self._every:
            try:
                if len(self._fields.split()) != 5:  # six would be read as one with seconds
                    raise CronSimError("Wrong number of fields")
                next(CronSim(self._fields, datetime(2024, 1, 1, tzinfo=self._zone)))
            except (CronSimError, ValueError) as error:
                if _is_a_day_that_never_comes(self._fields):
                    raise InvalidSchedule(
                        f"cron={expression!r:.80}: that day never comes: none of these months has it"
                    ) from None
                raise InvalidSchedule(
                    f"cron={expression!r:.80}: {str(error) or 'not a cron expression'}; write five fields"
                    ' (minute hour day month weekday) like "30 3 * * 1-5", or "@daily", or "@every 30s"'
                ) from None
            except StopIteration:
                raise InvalidSchedule(f"cron={expression!r:.80} never comes round") from None

    def after(self, instant: Instant) -> Instant:
        """The first tick later than this."""
        if self._every:
            return (instant // self._every + 1) * self._every
        return self._first(CronSim(self._fields, self._local(instant)), lambda tick: tick > instant)

    def latest(self, instant: Instant) -> Instant:
        """The last tick that is not later than this."""
        if self._every:
            return instant // self._every * self._every
        # Forwards only: backwards, the library can turn in circles where clocks change by half an hour.
        for days in _LOOK_BACK_DAYS:
            found = self.after(instant - round(days * _DAY))
            if found <= instant:
                while (following := self.after(found)) <= instant:
                    found = following
                return found
        raise InvalidSchedule(f"cron={self.expression!r:.80} has not come round for {_LOOK_BACK_DAYS[-1]} days")

    def _first(self, ticks: Iterable[datetime], fits: Callable[[Instant], bool]) -> Instant:
        """Within an hour that comes twice, one whose time is given in that hour may be on the other side of now."""
        return next(tick for tick in map(to_instant, ticks) if fits(tick))

    def _local(self, instant: Instant) -> datetime:
        return to_datetime(instant).astimezone(self._zone)


def parse(expression: str, timezone: str) -> Cron:
    try:
        return _parse(expression, timezone)
    except TypeError:  # a list does not go into the cache; Cron says what is wrong with it
        return Cron(expression, timezone)


@lru_cache(maxsize=1024)
def _parse(expression: str, timezone: str) -> Cron:
    return Cron(expression, timezone)


def _is_a_day_that_never_comes(fields: str) -> bool:
    """Each field can be read, but no month in question is long enough."""
    match fields.split():
        case [minute, hour, day, month, weekday]:
            alone = (f"{minute} {hour} {day} * {weekday}", f"{minute} {hour} * {month} {weekday}")
        case _:
            return False
    try:
        for each in alone:
            CronSim(each, datetime(2024, 1, 1))  # noqa: DTZ001 - only read, never asked for a tick
    except (CronSimError, ValueError):
        return False
    return True


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except Exception:  # a name can fail in many ways: no such file, a folder, a path outside, not text
        raise InvalidSchedule(f"timezone={name!r:.60}: use a name like Europe/Berlin or UTC") from None


def _every(expression: str) -> int | None:
    """The span in microseconds; its ticks are the multiples of it since the epoch, the same for every worker."""
    if not isinstance(expression, str):
        raise InvalidSchedule(f'cron={expression!r:.80}: write five fields like "30 3 * * 1-5", as text')
    found = _EVERY.fullmatch(expression.strip().lower())
    if found is None:
        return None
    seconds = int(found[1]) * _UNITS[found[2]]
    if seconds == 0:
        raise InvalidSchedule(f"cron={expression!r}: a span begins at one second")
    return seconds * MICROS
