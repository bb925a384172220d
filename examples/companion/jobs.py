"""The jobs of Companion: `backstay --app companion.jobs:app worker` runs them.

Each user's schedule submits a plan. The plan submits the summaries that are due and were not submitted yet, one job per
user and day. Their dedup key, declared with the type, is kept forever, so neither a second plan, nor a change of time
zone, nor a second scheduler submits one again.
"""

import uuid
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from typing import Any

from pydantic import BaseModel

from backstay import Backoff, Backstay, Context, JobHandler, ScheduleNotFound
from backstay.handlers import HandlerOptions
from companion import chat, days, settings, slack
from companion.chat import Message, TimeOfDay, TimeZone, UnknownUser, User, UserId

app = Backstay(claim_limit=settings.claim_limit())  # on DynamoDB, workers poll every 30 seconds unless they are woken

TOKENS = uuid.UUID("5f4d9a52-7d0c-5b8e-9c1a-0e6f2b7a4c11")  # the namespace of our message tokens
OF_USER = "summary:"  # prefix of users' schedules


class SummaryOf(BaseModel):
    """A user's day; the time zone defines when it begins and ends."""

    user_id: UserId
    day: date
    timezone: TimeZone

    @property
    def key(self) -> str:
        return f"summary:{self.user_id}:{self.day}"


class PlanOf(BaseModel):
    user_id: UserId
    timezone: TimeZone
    summary_at: TimeOfDay
    since: date


class SyncOf(BaseModel):
    user_id: UserId


class DailySummary(JobHandler[SummaryOf]):
    async def handle(self, payload: SummaryOf, ctx: Context) -> dict[str, Any]:
        user = await chat.user(payload.user_id)
        written = await chat.entries(payload.user_id, *days.span(payload.day, payload.timezone))
        await ctx.progress(0.5, stage="sending")
        message = Message(token=token(payload), user_id=user.user_id, text=text(user, payload, written))
        # Once this is recorded, no later attempt sends; after a crash before that, the same token is sent again and
        # ignored.
        sent_at = await ctx.once("sent_at", lambda: _send(message))
        await ctx.progress(0.9, stage="sent")
        return {"token": message.token, "entries": len(written), "summary_sent_at": sent_at}


class PlanSummaries(JobHandler[PlanOf]):
    async def handle(self, payload: PlanOf, ctx: Context) -> list[str]:
        """Submit summaries due at the tick, up to a week back, which makes up for a downtime or a change of time
        zone."""
        moment = ctx.job.tick_at or ctx.job.created_at
        wanted = days.due(moment, payload.timezone, payload.summary_at, payload.since, settings.catch_up_days())
        summaries = [SummaryOf(user_id=payload.user_id, day=day, timezone=payload.timezone) for day in wanted]
        handles = await app.submit_many(("daily_summary", each) for each in summaries)
        return [str(day) for day, handle in zip(wanted, handles, strict=True) if not handle.deduplicated]


class UserSync(JobHandler[SyncOf]):
    async def handle(self, payload: SyncOf, ctx: Context) -> dict[str, Any]:
        """Update a user's schedule from the chat service: a new user, another time zone, a user who left."""
        name = schedule_of(payload.user_id)
        try:
            user = await chat.user(payload.user_id)
        except UnknownUser:
            with suppress(ScheduleNotFound):
                await app.unschedule(name)
            return {"user_id": payload.user_id, "known": False}
        plan = PlanOf(**user.model_dump(exclude={"name"}))
        schedule = await app.schedule(name, days.rule(user.summary_at), "plan_summaries", plan, timezone=user.timezone)
        # Summaries that were due before we knew the user, or before they changed time zone.
        await app.submit("plan_summaries", plan, dedup_key=f"plan:{user.user_id}")
        return {"user_id": user.user_id, "known": True, "timezone": user.timezone, "next_at": str(schedule.next_at)}


class SyncUsers(JobHandler[None]):
    async def handle(self, payload: None, ctx: Context) -> int:
        """Submit a sync for every user that the chat service lists, and for those that it no longer lists."""
        names = [each.name for each in await app.schedules()]
        scheduled = {name.removeprefix(OF_USER) for name in names if name.startswith(OF_USER)}
        everyone = scheduled.union(await chat.users())
        await sync(sorted(everyone))
        return len(everyone)


HANDLERS: dict[str, type[JobHandler[Any]]] = {
    "daily_summary": DailySummary,
    "plan_summaries": PlanSummaries,
    "user_sync": UserSync,
    "sync_users": SyncUsers,
}
# What a type derives from its payload holds however it is submitted: by a plan, over HTTP, by hand. One summary per
# user and day, forever; one sync of a user at a time.
RULES: dict[str, HandlerOptions] = {
    "daily_summary": {"subject": "{user_id}", "dedup_key": "summary:{user_id}:{day}", "dedup_for": "forever"},
    "plan_summaries": {"subject": "{user_id}"},
    "user_sync": {"subject": "{user_id}", "dedup_key": "sync:{user_id}"},
    "sync_users": {},
}
_EVERY: HandlerOptions = {
    "max_attempts": settings.max_attempts(),
    "backoff": Backoff(settings.base_delay_seconds(), 2, jitter=0),
    "timeout": 120,
}
for _name, _handler in HANDLERS.items():
    _options: HandlerOptions = {**_EVERY, **RULES[_name]}
    app.job(_name, **_options)(_handler)


async def sync(user_ids: Iterable[str]) -> None:
    """Submit the sync of a user, unless one is still active."""
    await app.submit_many(("user_sync", SyncOf(user_id=each)) for each in user_ids)


async def set_up() -> None:
    """Set up a deployment; repeating it changes nothing."""
    await app.schedule("sync-users", "@hourly", "sync_users")


def schedule_of(user_id: str) -> str:
    return OF_USER + user_id


def token(summary: SummaryOf) -> str:
    """Return the token of a summary, derived from user and day: every attempt, on any machine, sends the same one."""
    return str(uuid.uuid5(TOKENS, summary.key))


def text(user: User, summary: SummaryOf, written: list[chat.Entry]) -> str:
    if not written:
        return f"{user.name}, you wrote nothing on {summary.day:%A, %d %B}."
    lines = "\n".join(f"- {each.text}" for each in written)
    times = "once" if len(written) == 1 else f"{len(written)} times"
    return f"{user.name}, on {summary.day:%A, %d %B} you wrote {times}:\n{lines}"


async def _send(message: Message) -> str:
    send = chat.send if settings.slack_webhook_url() is None else slack.send
    receipt = await send(message)
    return receipt.received_at.isoformat()
