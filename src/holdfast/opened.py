"""What the parts of an app share: its clock, its store, and the few steps that all of them take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any

from holdfast import limits
from holdfast.checks import check_reason, check_text
from holdfast.clock import Clock
from holdfast.files import Files
from holdfast.handlers import Handler
from holdfast.job import Job, JobHandle
from holdfast.observing import Observers
from holdfast.retention import Retention
from holdfast.store.port import Store
from holdfast.store.types import JobRecord, JobType, NewJob


class Opened(ABC):
    clock: Clock
    observers: Observers | None
    _files: Files | None
    _lease_seconds: float
    _retention: Retention

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    async def get(self, job_id: str) -> Job: ...

    @abstractmethod
    async def result(self, job_id: str, timeout: float | timedelta | None = None) -> Any: ...

    @abstractmethod
    async def _target(self, job_type: str | Handler) -> Handler | JobType: ...

    @abstractmethod
    def _handle(self, job: NewJob, inserted: Any, now: int) -> JobHandle: ...

    @abstractmethod
    def _job(self, record: JobRecord) -> Job: ...


def check_words(by: str | None, reason: str | None) -> tuple[str | None, str | None]:
    """Who did it and why, as history keeps it."""
    return check_text("by", by, limits.NAME_LENGTH_MAX), check_reason(reason)
