"""Days in the user's time zone: when they begin and end, and which summaries are due by now. Pure."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

DAY = timedelta(days=1)


def rule(at: time) -> str:
    """Return the cron rule of a summary at this time of day; in the user's time zone it follows daylight saving
    time."""
    return f"{at.minute} {at.hour} * * *"


def due(moment: datetime, timezone: str, at: time, since: date, at_most: int) -> list[date]:
    """Return the days whose summary is due by this moment, oldest first.

    A day ends at midnight, and its summary is due at `at` on the next day. Wall-clock times are compared, not elapsed
    hours: if 02:30 is skipped, the clock shows 03:00 when the schedule fires, which is late enough.
    """
    wall = moment.astimezone(ZoneInfo(timezone))
    last = wall.date() - (DAY if wall.time() >= at else 2 * DAY)
    first = max(since, last - (at_most - 1) * DAY)
    return [first + index * DAY for index in range((last - first).days + 1)]


def span(day: date, timezone: str) -> tuple[datetime, datetime]:
    """Return a day from midnight to midnight in the user's time zone, in UTC: 23, 24 or 25 hours. Its end is the start
    of the next day."""
    zone = ZoneInfo(timezone)
    begin, end = (datetime.combine(each, time(), zone).astimezone(UTC) for each in (day, day + DAY))
    return begin, end
