"""Client of the chat service: users, what they wrote, and messages to them. Its responses decide how an attempt ends.

404 for a user, or any other 4xx, is final: `Discard`. 429 says when to retry: `Retry`.
Everything else (5xx, no answer) is an ordinary error, so the queue retries it with its backoff.
"""

import asyncio
import json
import logging
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from datetime import UTC, date, datetime, time
from email.utils import parsedate_to_datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, TypeAdapter, ValidationError

from backstay import Discard, Retry
from companion import settings


class UnknownUser(Discard):
    """The chat service does not know the user, or no longer does."""


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}") from None
    return name


def _minute(at: time) -> time:
    """Drop the seconds: schedules have none, so the summary would not be due when its schedule fires, and come a day
    late."""
    if at.tzinfo is not None:
        raise ValueError("a time of day is in the user's timezone, and names none of its own")
    return at.replace(second=0, microsecond=0)


UserId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
TimeZone = Annotated[str, AfterValidator(_zone)]
TimeOfDay = Annotated[time, AfterValidator(_minute)]


class User(BaseModel):
    user_id: UserId
    name: str
    timezone: TimeZone
    summary_at: TimeOfDay = time(7)
    since: date  # the first day that is summed up


class Entry(BaseModel):
    at: AwareDatetime
    text: str


class Message(BaseModel):
    token: str  # the same for every try: the receiver ignores repeats
    user_id: UserId
    text: str


class Receipt(BaseModel):
    received_at: AwareDatetime
    repeated: bool


WAIT_MAX = 86_400.0  # seconds: the longest delay before a retry

_log = logging.getLogger(__name__)
_listed = TypeAdapter(list[Any])
_id = TypeAdapter(UserId)
_entries = TypeAdapter(list[Entry])


async def users() -> list[str]:
    """Return the users. An invalid id is logged and skipped, so that it does not block all others."""
    known = []
    for each in _listed.validate_python(await _ask("/users")):
        try:
            known.append(_id.validate_python(each))
        except ValidationError:
            _log.warning("the chat service lists %.100r, which is no id of a user: left out", each)
    return known


async def user(user_id: str) -> User:
    try:
        return User.model_validate(await _ask(f"/users/{user_id}"))
    except _NotFound:
        raise UnknownUser(f"the chat service has no user {user_id!r}") from None


async def entries(user_id: str, begin: datetime, end: datetime) -> list[Entry]:
    span = urllib.parse.urlencode({"begin": begin.isoformat(), "end": end.isoformat()})
    try:
        return _entries.validate_python(await _ask(f"/users/{user_id}/entries?{span}"))
    except _NotFound:
        raise UnknownUser(f"the chat service has no user {user_id!r}") from None


async def send(message: Message) -> Receipt:
    return Receipt.model_validate(await _ask("/messages", message.model_dump()))


class _NotFound(Discard):
    """The resource does not exist."""


async def _ask(path: str, body: Any = None) -> Any:
    url = settings.chat_url() + path
    if not re.match(r"https?://", url):
        raise RuntimeError(f"COMPANION_CHAT_URL: {url!r} is not an http:// or https:// address")
    return json.loads(await call(url, body))


async def call(url: str, body: Any = None) -> bytes:
    """Return the response of a service, or raise what its response means for the attempt."""
    return await asyncio.to_thread(_blocking, url, body)


def _blocking(url: str, body: Any) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310  # checked above
    try:
        with urllib.request.urlopen(request, timeout=settings.CALL_SECONDS) as answer:  # noqa: S310
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            raise _meaning(error) from None


def _meaning(error: urllib.error.HTTPError) -> Exception:
    said = f"{error.code} {error.reason}: {error.read(500).decode(errors='replace')}"
    match error.code:
        case 404:
            return _NotFound(said)
        case 429:
            return Retry(said, after=come_again(error.headers.get("Retry-After")))
        case code if 400 <= code < 500:
            return Discard(said)
        case _:
            return ConnectionError(said)


def come_again(said: str | None) -> float:
    """Return the delay of Retry-After in seconds, given as a number or a date; our own delay if it is neither."""
    try:
        seconds = float(said or "")
    except ValueError:
        try:
            moment = parsedate_to_datetime(said or "")
        except ValueError:
            return settings.base_delay_seconds()
        seconds = max(0.0, (moment.astimezone(UTC) - datetime.now(UTC)).total_seconds())
    return min(seconds, WAIT_MAX) if seconds >= 0 and math.isfinite(seconds) else settings.base_delay_seconds()
