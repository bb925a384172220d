"""The client: what an app has, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Unpack
from urllib.parse import quote

import httpx
import msgspec

from holdfast import codec, ids
from holdfast.client.records import RemoteHandle, RemoteJob, RemotePage
from holdfast.client.requesting import Requests, error_of, of_problem
from holdfast.client.streaming import JobEvent, events
from holdfast.clock import Clock, SystemClock, seconds
from holdfast.errors import (
    HoldfastError,
    IllegalTransition,
    InvalidOption,
    JobCancelled,
    JobFailed,
    ResultGone,
    ResultTimeout,
)
from holdfast.finding import FindOptions
from holdfast.statuses import Status
from holdfast.submission import SubmitOptions

BATCH_MAX = 100  # jobs that the server takes at once
Submission = tuple[str, Any] | tuple[str, Any, SubmitOptions]


class Client:
    """`async with Client("http://127.0.0.1:8000", key="hf_…") as client:`. `http`: an httpx.AsyncClient of yours."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        http: httpx.AsyncClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.requests = Requests(url, key, http)
        self._clock = clock or SystemClock()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.requests.close()

    # Submitting

    async def submit(
        self,
        job_type: str,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> RemoteHandle:
        """Store a job. `idempotency_key`: a repeat with the same one, even of another process, returns the same job."""
        body = _body(payload, options)
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        if idempotency_key is None:
            body.setdefault("job_id", self._new_id())  # what makes it safe to send again
        return RemoteHandle(
            self, await self.requests.send("POST", f"/jobs/{quote(job_type, safe='')}", body, headers=headers)
        )

    async def submit_many(
        self, jobs: Iterable[Submission], *, idempotency_key: str | None = None
    ) -> list[RemoteHandle | HoldfastError]:
        """Store many jobs, a hundred at a time: for each the job, or why it was refused."""
        found: list[RemoteHandle | HoldfastError] = []
        listed = [{"job_type": each[0], **_body(each[1], each[2] if len(each) > 2 else {})} for each in jobs]
        if idempotency_key is None:
            for body in listed:
                body.setdefault("job_id", self._new_id())
        for start in range(0, len(listed), BATCH_MAX):
            headers = {} if idempotency_key is None else {"Idempotency-Key": f"{idempotency_key}:{start}"}
            body = {"jobs": listed[start : start + BATCH_MAX]}
            answer = await self.requests.send("POST", "/jobs/batch", body, headers=headers)
            found += [self._of_many(item) for item in answer["items"]]
        return found

    def _new_id(self) -> str:
        return ids.new_id(self._clock.now())

    def _of_many(self, item: Mapping[str, Any]) -> RemoteHandle | HoldfastError:
        job = item.get("job")
        return of_problem(item["problem"], item["status"]) if job is None else RemoteHandle(self, job)

    # Reading

    async def get(self, job_id: str) -> RemoteJob:
        return RemoteJob(await self.requests.send("GET", _path(job_id)))

    async def find(self, **options: Unpack[FindOptions]) -> RemotePage:
        """Jobs, newest first, or in claim order with order="priority"."""
        found = await self.requests.send("GET", "/jobs", params=options)
        page = RemotePage(RemoteJob(item) for item in found["items"])
        page.next = found["next"]
        return page

    async def tree(self, job_id: str) -> list[RemoteJob]:
        """A job and all below it, each before its children; of each what a tree shows."""
        return [RemoteJob(item) for item in (await self.requests.send("GET", _path(job_id, "tree")))["items"]]

    async def explain(self, job_id: str) -> str:
        """In one sentence, why a job is not running, or where it is at."""
        return str((await self.requests.send("GET", _path(job_id, "explain")))["explanation"])

    async def result(self, job_id: str, timeout: float | timedelta | None = None) -> Any:
        """Wait until a job has ended; its result, or JobFailed, JobCancelled, JobNotFound, ResultTimeout."""
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                async for event in self.stream(job_id):
                    if event.name == "end":
                        break
        except TimeoutError:
            raise ResultTimeout(
                f"job {job_id} has not ended within {seconds(timeout or 0):g} s; it goes on, ask again later"
            ) from None
        return _result(await self.get(job_id))

    def stream(self, job_id: str, after: str | None = None) -> AsyncIterator[JobEvent]:
        """What happens to a job, to its end; `after` is the event_id to go on from."""
        return events(self.requests, _path(job_id, "stream"), after)

    def stream_tree(self, job_id: str, after: str | None = None) -> AsyncIterator[JobEvent]:
        """What happens to a job and all below it."""
        return events(self.requests, _path(job_id, "tree/stream"), after)

    async def results(self, job_id: str, table: str, *, subject: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """The rows of a job in a result table, by key: `async for row in client.results(job_id, "points"):`"""
        after: str | None = None
        while True:
            params = {"subject": subject, "after": after}
            page = await self.requests.send("GET", _path(job_id, f"results/{quote(table, safe='')}"), params=params)
            for row in page["items"]:
                yield row
            if (after := page["next"]) is None:
                return

    async def artifacts(self, job_id: str) -> list[dict[str, Any]]:
        """The files that a job kept: name, size, sha256, uri."""
        found: list[dict[str, Any]] = (await self.requests.send("GET", _path(job_id, "artifacts")))["items"]
        return found

    async def artifact(self, job_id: str, name: str) -> bytes:
        response = await self.requests.response("GET", _path(job_id, f"artifacts/{quote(name, safe='')}"))
        return response.content

    async def open_artifact(self, job_id: str, name: str) -> AsyncIterator[bytes]:
        """The same in pieces, for what is large."""
        path = _path(job_id, f"artifacts/{quote(name, safe='')}")
        try:
            async with self.requests.stream(path) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                async for piece in response.aiter_bytes():
                    yield piece
        except httpx.TransportError as error:
            raise self.requests.unreachable(error) from error

    # Changing

    async def cancel(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        reason: str | None = None,
        expected_version: int | None = None,
    ) -> RemoteJob:
        """Cancel a job in any active state; a running handler is stopped."""
        params = {"subtree": "true" if subtree else None, "reason": reason}
        headers = _if_match(expected_version)
        try:
            return RemoteJob(await self.requests.send("DELETE", _path(job_id), params=params, headers=headers))
        except IllegalTransition:
            # A repeat of a cancel whose answer was lost finds the job cancelled, which is what was asked for.
            job = await self.get(job_id)
            if expected_version is None and not subtree and job.status is Status.CANCELLED:
                return job
            raise

    async def retry(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        reason: str | None = None,
        expected_version: int | None = None,
    ) -> RemoteJob:
        """Run an ended job again, with a fresh budget of attempts: from the version that it has now, so that a repeat
        which comes late is refused, and not one run more."""
        version = expected_version if expected_version is not None or subtree else (await self.get(job_id)).version
        found = await self.requests.send(
            "POST",
            _path(job_id, "retry"),
            {"reason": reason},
            params={"subtree": "true" if subtree else None},
            headers=_if_match(version),
        )
        return RemoteJob(found)


def _result(job: RemoteJob) -> Any:
    match job.status:
        case Status.COMPLETED if job.archived_at is not None:
            raise ResultGone(f"job {job.job_id} completed, but its result went with its retention: submit it anew")
        case Status.COMPLETED:
            return job.result
        case Status.CANCELLED:
            raise JobCancelled(f"job {job.job_id} was cancelled", job_id=job.job_id)
        case _:
            raise JobFailed(
                f"job {job.job_id} failed after {job.failures} of {job.max_attempts} attempts: {job.last_error}",
                job_id=job.job_id,
                last_error=job.last_error,
            )


def _path(job_id: str, rest: str = "") -> str:
    return f"/jobs/{ids.canonical(job_id)}" + (f"/{rest}" if rest else "")


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}


def _body(payload: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    if "connection" in options:
        raise InvalidOption("connection: a transaction of yours ends at the server's door; submit with an app instead")
    text = codec.to_json(payload)
    return {"payload": msgspec.Raw(text.encode()), **{name: _sent(value) for name, value in options.items()}}


def _sent(value: Any) -> Any:
    """An option as JSON has it."""
    match value:
        case timedelta():
            return value.total_seconds()
        case datetime():
            if value.tzinfo is None:
                raise InvalidOption(f"{value!r} has no time zone: write datetime(..., tzinfo=UTC)")
            return value.isoformat()
        case str() | int() | float() | None:
            return value
        case Mapping():
            return dict(value)
        case Sequence() | set() | frozenset():
            return [_sent(each) for each in value]
        case _:
            return value.job_id if hasattr(value, "job_id") else value
