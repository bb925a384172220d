"""Companion on a queue and a chat service of one test alone, with a clock that the test moves."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from companion import jobs
from companion.chat import Entry, User
from companion.receiver import Receiver

from backstay import Backstay, Job
from backstay.testing import ManualClock, drain

START = datetime(2026, 11, 16, 12, tzinfo=UTC)  # a Monday


def add_user(
    chat: Receiver, user_id: str, timezone: str = "Europe/Berlin", written: tuple[str, ...] = (), **more: Any
) -> None:
    entries = [Entry(at=datetime.fromisoformat(each), text=f"at {each}") for each in written]
    chat.add(
        User(user_id=user_id, timezone=timezone, **{"name": user_id.title(), "since": START.date(), **more}), entries
    )


class Stage:
    def __init__(self, app: Backstay, chat: Receiver, clock: ManualClock) -> None:
        self.app, self.chat, self.clock = app, chat, clock

    def knows(self, user_id: str, timezone: str = "Europe/Berlin", **more: Any) -> None:
        """The chat service does, from now on; nobody has looked yet."""
        add_user(self.chat, user_id, timezone, **{"since": self.clock.moment.date(), **more})

    async def sync(self) -> None:
        """Look at all users, and let what comes of it run."""
        await self.app.submit("sync_users", None)
        await drain(self.app)

    async def summaries(self, user_id: str | None = None) -> list[Job]:
        found = await self.app.find(job_type="daily_summary", subject=user_id, limit=1000)
        return sorted(found, key=lambda job: (str(job.subject), str(job.payload["day"])))

    async def days(self, user_id: str | None = None) -> list[str]:
        """Of which days there are summaries, without the year."""
        return [str(job.payload["day"])[5:] for job in await self.summaries(user_id)]

    async def submit(self, user_id: str = "ada", day: str = "2026-11-15") -> str:
        """A summary by hand."""
        payload = {"user_id": user_id, "day": day, "timezone": "Europe/Berlin"}
        return (await self.app.submit("daily_summary", payload, subject=user_id)).job_id


@asynccontextmanager
async def on_stage(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    clock = ManualClock(START)
    for name in [name for name in os.environ if name.startswith(("COMPANION_", "SENTRY_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(jobs.app, "url", url)
    monkeypatch.setattr(jobs.app, "clock", clock)
    with Receiver() as chat:
        monkeypatch.setenv("COMPANION_CHAT_URL", chat.url)
        async with jobs.app:
            yield Stage(jobs.app, chat, clock)
