"""Rules of schedules in words: "30 3 * * 1-5" is Monday to Friday at 03:30. Pure.

Only what can be said in a short sentence; of the rest, the next ticks say more than words would.
"""

from __future__ import annotations

import re

_EVERY = re.compile(r"@every (\d{1,6})(s|m|h|d)")
_UNITS = {"s": "second", "m": "minute", "h": "hour", "d": "day"}
_NICKNAMES = {
    "@yearly": "every year on 1 January at 00:00",
    "@annually": "every year on 1 January at 00:00",
    "@monthly": "on day 1 of every month at 00:00",
    "@weekly": "on Sunday at 00:00",
    "@daily": "every day at 00:00",
    "@midnight": "every day at 00:00",
    "@hourly": "every hour",
}
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_SHORT_DAYS = {name[:3].lower(): place for place, name in enumerate(_DAYS[:7])}
_SHORT_MONTHS = {name[:3].lower(): place + 1 for place, name in enumerate(_MONTHS)}


def said(expression: str) -> str | None:
    text = expression.strip().lower()
    if text in _NICKNAMES:
        return _NICKNAMES[text]
    if found := _EVERY.fullmatch(text):
        return _each(int(found[1]), _UNITS[found[2]])
    fields = text.split()
    if len(fields) != 5:
        return None
    minute, hour, day, month, weekday = fields
    when = _when(day, month, weekday)
    clock = _clock(minute, hour, when or "")
    return None if when is None or clock is None else f"{when} {clock}".strip()


def _each(number: int, unit: str) -> str:
    return f"every {unit}" if number == 1 else f"every {number:,} {unit}s"


def _clock(minute: str, hour: str, when: str) -> str | None:
    """At what time of these days; `when` is empty where it is every day."""
    if found := re.fullmatch(r"\*/([1-9]\d*)", minute):
        if hour != "*" or 60 % int(found[1]):
            return None
        return _each(int(found[1]), "minute")
    if minute == hour == "*":
        return "every minute"
    if not minute.isdecimal():
        return None
    if hour == "*":
        return _past("every hour", minute)
    if found := re.fullmatch(r"\*/([1-9]\d*)", hour):
        return _past(_each(int(found[1]), "hour"), minute) if 24 % int(found[1]) == 0 else None
    hours = hour.split(",")
    if not all(each.isdecimal() for each in hours):
        return None
    times = _listed([f"{int(each):02d}:{int(minute):02d}" for each in hours])
    return f"at {times}" if when else f"every day at {times}"


def _past(hours: str, minute: str) -> str:
    return hours if int(minute) == 0 else f"{hours}, {int(minute)} min past"


def _when(day: str, month: str, weekday: str) -> str | None:
    """On which days; empty: on all. A day of the month and one of the week together mean either, which nobody reads."""
    if day == month == weekday == "*":
        return ""
    if day == month == "*":
        return _weekdays(weekday)
    if weekday != "*" or not day.isdecimal():
        return None
    if month == "*":
        return f"on day {int(day)} of every month"
    number = _SHORT_MONTHS.get(month) or (int(month) if month.isdecimal() else 0)
    return f"every year on {int(day)} {_MONTHS[number - 1]}" if 1 <= number <= 12 else None


def _weekdays(field: str) -> str | None:
    if found := re.fullmatch(r"(\w+)-(\w+)", field):
        first, last = _day(found[1]), _day(found[2])
        return None if first is None or last is None else f"{first} to {last}"
    named = [_day(each) for each in field.split(",")]
    days = [each for each in named if each is not None]
    return f"on {_listed(days)}" if len(days) == len(named) else None


def _day(text: str) -> str | None:
    place = _SHORT_DAYS.get(text) if not text.isdecimal() else int(text)
    return _DAYS[place] if place is not None and place < len(_DAYS) else None


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
