"""Jobs as a client has them: the fields of the record, read from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from holdfast.job import FIELDS
from holdfast.statuses import Status

_MOMENTS = frozenset({name for name in FIELDS if name.endswith("_at")} | {"scheduled_for"})


class _Asks(Protocol):
    async def result(self, job_id: str, timeout: float | timedelta | None = None) -> Any: ...

    async def get(self, job_id: str) -> RemoteJob: ...


class RemoteView:
    """Attributes are the fields of the record. Times are UTC; statuses equal their strings."""

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = dict(fields)  # as the server sent them

    @property
    def job_id(self) -> str:
        return str(self.fields["job_id"])

    @property
    def status(self) -> Status:
        return Status(self.fields["status"])

    def __getattr__(self, name: str) -> Any:
        if name == "fields" or name not in self.fields:
            raise AttributeError(f"a job has no field {name!r}")
        value = self.fields[name]
        return datetime.fromisoformat(value) if name in _MOMENTS and value is not None else value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.fields.get('job_type')} {self.job_id} {self.status.value}>"


class RemoteJob(RemoteView):
    """A job's record, as it was when it was read. `job.result` is what the handler returned."""

    __slots__ = ()


class RemoteHandle(RemoteView):
    """What submit gives back: the job as it was stored, and the way to its result."""

    __slots__ = ("_client",)

    def __init__(self, client: _Asks, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._client = client

    async def result(self, timeout: float | timedelta | None = None) -> Any:
        """Wait for the end. JobFailed, JobCancelled or ResultTimeout where there is no result."""
        return await self._client.result(self.job_id, timeout)

    async def refresh(self) -> RemoteJob:
        """The record as it is now."""
        return await self._client.get(self.job_id)


class RemotePage(list[RemoteJob]):
    """Jobs that were found; `next` is the cursor for `after=`, or None at the end."""

    next: str | None = None
