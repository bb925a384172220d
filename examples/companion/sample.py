"""Some users around the world, and what they wrote in the last days."""

import random
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from companion import days
from companion.chat import Entry, User

PEOPLE = {
    "ada": ("Ada", "Europe/London"),
    "chien": ("Chien-Shiung", "Asia/Shanghai"),
    "grace": ("Grace", "America/New_York"),
    "hedy": ("Hedy", "Europe/Vienna"),
    "katherine": ("Katherine", "America/Los_Angeles"),
    "mary": ("Mary", "Pacific/Auckland"),
    "radia": ("Radia", "Asia/Kathmandu"),
}
NOTES = (
    "read the paper on leases again",
    "long walk, then the proof came",
    "call the dentist on Friday",
    "lunch with the team, good soup",
    "the test failed for a good reason",
    "bought paint for the fence",
    "wrote to the editor",
    "slept badly",
)


def users(now: datetime, past_days: int) -> list[User]:
    return [_user(user_id, name, zone, now, past_days) for user_id, (name, zone) in PEOPLE.items()]


def _user(user_id: str, name: str, zone: str, now: datetime, past_days: int) -> User:
    """Return a user whose summary was due an hour ago, local time: this many days are due now, and no more for a
    day."""
    hour_ago = now.astimezone(ZoneInfo(zone)) - timedelta(hours=1)
    at = hour_ago.time().replace(second=0, microsecond=0)
    since, *_ = days.due(now, zone, at, date.min, past_days)
    return User(user_id=user_id, name=name, timezone=zone, summary_at=at, since=since)


def written(user: User, now: datetime) -> list[Entry]:
    draw = random.Random(user.user_id)
    begin, _ = days.span(user.since, user.timezone)
    moments = sorted(begin + timedelta(hours=draw.uniform(0, (now - begin).total_seconds() / 3600)) for _ in range(9))
    return [Entry(at=moment.astimezone(UTC), text=draw.choice(NOTES)) for moment in moments]
