"""Health of the queue and its workers: the figures of `GET /stats`, requested from the API inside this process."""

from __future__ import annotations

from datetime import datetime

import httpx
from pydantic import BaseModel

from backstay.server import asgi
from rules.jobs import app

MINUTES = 24 * 60
NAMES = {100: "urgent", 75: "high", 50: "normal", 25: "low"}


class Group(BaseModel):
    """Jobs of one priority and state; ended jobs of the last day only."""

    status: str
    priority: int
    count: int
    average_time_ms: float | None
    newest_at: datetime
    oldest_at: datetime

    @property
    def priority_name(self) -> str:
        return NAMES.get(self.priority, str(self.priority))


class Performance(BaseModel):
    """What a currently registered worker did in the last day."""

    worker_id: str
    completed: int
    average_time_ms: float | None
    failures: int


class Health(BaseModel):
    queue_health: list[Group]  # most urgent first
    workers: list[Performance]


async def health() -> Health:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi(app)), base_url="http://127.0.0.1") as api:
        answer = await api.get("/stats", params={"minutes": MINUTES})
    answer.raise_for_status()
    return Health.model_validate_json(answer.content)
