"""What remote workers get, as OpenAPI describes it. Nothing is validated against these."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from holdfast.server.documents import Job
from holdfast.statuses import Status

_OF_ALL_QUEUES = "Attempts since it started. Null where the worker also serves queues that the key does not see."


class Worker(BaseModel):
    worker_id: str
    host: str
    pid: int
    version: str
    queues: list[str]
    job_types: list[str]
    concurrency: int
    started_at: datetime
    heartbeat_at: datetime
    heartbeat_age_seconds: float
    stopping: bool
    running: list[str]
    limits: dict[str, int]
    busy: dict[str, int]
    batches: dict[str, int]
    versions: dict[str, int]
    ended: int | None = Field(description=_OF_ALL_QUEUES)
    failed: int | None = Field(description=_OF_ALL_QUEUES)
    average_time_ms: float | None
    stuck: list[str]
    lease_seconds: float | None = Field(description="How long a claim of this worker holds without a word from it.")


class Workers(BaseModel):
    items: list[Worker]


class Registered(Worker):
    lease_seconds: float = Field(description="How long a claim holds without a word from its worker.")
    heartbeat_seconds: float = Field(description="How often to say one.")


class Heartbeat(BaseModel):
    worker_id: str
    lease_expires_at: datetime = Field(description="Until when the claims hold that still do.")
    held: list[str]
    lost: list[str] = Field(description="Stop working on these: others have them, or they have ended.")
    cancelled: list[str] = Field(description="And on these: someone cancelled them.")


class Claimed(BaseModel):
    job: Job
    token: str = Field(description="What to name this claim by, and to keep to oneself.")


class Settled(BaseModel):
    """What became of the attempt: the same for a call and its repeats."""

    job_id: str
    attempt: int
    status: Status
    reason: str | None


class Extended(BaseModel):
    job_id: str
    attempt: int
    lease_expires_at: datetime


class Noted(BaseModel):
    job_id: str
    attempt: int
    lease_expires_at: datetime | None
