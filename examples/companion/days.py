"""Days as a user lives them: when they begin and end, and which of them should have been summed up by now. Pure."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

DAY = timedelta(days=1)


def rule(at: time) -> str:
    """The schedule of a summary at this time of day; read in the user's time zone, it moves with their clocks."""
    return f"{at.minute} {at.hour} * * *"


def due(moment: datetime, timezone: str, at: time, since: date, at_most: int) -> list[date]:
    """The days whose summary should have been sent by this moment, oldest first.

    A day is over at midnight, and its summary comes at `at` on the day after. The time on the wall is compared, not
    the hours that have passed: where 02:30 is skipped the clock shows 03:00 when the schedule fires, and that is late
    enough.
    """
    wall = moment.astimezone(ZoneInfo(timezone))
    last = wall.date() - (DAY if wall.time() >= at else 2 * DAY)
    first = max(since, last - (at_most - 1) * DAY)
    return [first + index * DAY for index in range((last - first).days + 1)]


def span(day: date, timezone: str) -> tuple[datetime, datetime]:
    """From midnight to midnight where the user is, in UTC: 23, 24 or 25 hours. The end of a day begins the next."""
    zone = ZoneInfo(timezone)
    begin, end = (datetime.combine(each, time(), zone).astimezone(UTC) for each in (day, day + DAY))
    return begin, end
