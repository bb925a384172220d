"""The schedules page: cron rules in words, next runs, and run, pause, resume or remove a schedule.

Only rules that fit a short phrase are described, such as "30 3 * * 1-5", Monday to Friday at 03:30; for the rest, the
next runs say more than words would.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from fastapi import Depends, Request, Response

from backstay.clock import to_datetime
from backstay.core import sensitive
from backstay.core.checks import count
from backstay.core.schedules import ScheduleInfo
from backstay.dashboard import page
from backstay.dashboard.page import moment_of
from backstay.errors import InvalidOption, ScheduleNotFound
from backstay.server import visibility
from backstay.server.auth import App, By, Who, needs

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


def described(expression: str) -> str | None:
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
    """The time of day; `when` is empty if the rule applies every day."""
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
    times = _joined([f"{int(each):02d}:{int(minute):02d}" for each in hours])
    return f"at {times}" if when else f"every day at {times}"


def _past(hours: str, minute: str) -> str:
    return hours if int(minute) == 0 else f"{hours} at {int(minute)} min past"


def _when(day: str, month: str, weekday: str) -> str | None:
    """The days; empty: every day. A day of the month with one of the week means either: None, since that confuses."""
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
    return f"on {_joined(days)}" if len(days) == len(named) else None


def _day(text: str) -> str | None:
    place = _SHORT_DAYS.get(text) if not text.isdecimal() else int(text)
    return _DAYS[place] if place is not None and place < len(_DAYS) else None


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


TICKS_SHOWN = 3  # enough to see that a rule does what it should

router = page.pages()


class Line(msgspec.Struct, frozen=True):
    schedule: ScheduleInfo
    words: str | None
    payload: Any
    ticks: list[str]  # in the schedule's time zone


@router.get("/schedules", dependencies=[Depends(needs("read"))])
async def index(request: Request, app: App, who: Who, after: str = "") -> Response:
    marks = await visibility.all_marks(app)
    seen, following = await visibility.schedules_page(app, who, after)
    now = to_datetime(app.clock.now())
    lines = [
        Line(
            each,
            described(each.cron),
            sensitive.masked(marks.get(each.job_type, ()), each.payload),
            [_local(tick, each.timezone) for tick in each.ticks(now, TICKS_SHOWN)],
        )
        for each in seen
    ]
    return page.render(request, "schedules.html", live="all", lines=lines, after=after, following=following)


def _local(moment: datetime, timezone: str) -> str:
    return f"{moment.astimezone(ZoneInfo(timezone)):%a %d %b %Y, %H:%M:%S}"


@router.post("/schedules/{name}/{verb}", dependencies=[Depends(needs("admin"))])
async def change(request: Request, app: App, who: Who, by: By, name: str, verb: str) -> Response:
    form = await page.read(request)
    await visibility.schedule_named(app, who, name)
    try:
        match verb:
            case "run":
                job = await app.run_schedule(name, by=by, created_by=page.creator(who))
                return page.redirect(request, f"/jobs/{job.job_id}", f"Job created by schedule {name}.")
            case "pause":
                await app.pause_schedule(name, by=by)
                notice = f"Schedule {name} paused."
            case "resume":
                await app.resume_schedule(name, by=by)
                notice = f"Schedule {name} resumed."
            case "backfill":
                since, until = moment_of("from", form.text("from")), moment_of("to", form.text("to"))
                if since is None:
                    raise InvalidOption("give the first time of the span", option="from")
                found = await app.backfill(name, since, until or to_datetime(app.clock.now()), by=by)
                notice = f"{count(len(found.submitted), 'job')} submitted for {count(found.ticks, 'tick')} of {name}."
            case "remove":
                await app.unschedule(name, by=by)
                notice = f"Schedule {name} removed. Jobs it created are kept."
            case _:
                raise ScheduleNotFound(f"unknown schedule action {verb!r:.40}")
    except page.REFUSALS as error:
        return page.refused(request, form, error, "/schedules")
    return page.redirect_to(request, page.back(request, form, "/schedules"), notice)
