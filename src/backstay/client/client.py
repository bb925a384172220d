"""`Client`: the methods of an app over HTTP, with jobs, handles, pages and event streams.

Event streams are read line by line, and resumed when a connection breaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Unpack
from urllib.parse import quote

import httpx
import msgspec

from backstay import codec, ids
from backstay.client.http import PAUSE_SECONDS, TRIES, Requests, error_of, of_problem
from backstay.clock import Clock, SystemClock, seconds
from backstay.core.schedules import Backfill, Overlap, ScheduleOptions
from backstay.core.states import Status
from backstay.errors import (
    BackstayError,
    IllegalTransition,
    InvalidOption,
    JobCancelled,
    JobFailed,
    ResultGone,
    ResultTimeout,
)
from backstay.job import ClaimedDocument
from backstay.ops.jobs import BulkResult
from backstay.options import FindOptions, JobFilter, SubmitOptions

_MOMENTS = frozenset({name for name in ClaimedDocument.__struct_fields__ if name.endswith("_at")} | {"scheduled_for"})


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
    """What submit returns: the job as it was stored, with methods to wait for its result."""

    __slots__ = ("_client",)

    def __init__(self, client: Client, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._client = client

    async def result(self, timeout: float | timedelta | None = None) -> Any:
        """Wait until the job has ended. Raises JobFailed, JobCancelled or ResultTimeout if there is no result."""
        return await self._client.result(self.job_id, timeout)

    def stream(self, *, after: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield what its handler has streamed and still streams, until it has ended; see Client.stream_output."""
        return self._client.stream_output(self.job_id, after=after)

    async def record(self) -> RemoteJob:
        """Read the current record."""
        return await self._client.get(self.job_id)


class RemotePage(list[RemoteJob]):
    """The jobs that were found; `next` is the cursor to pass as `after=`, or None at the end."""

    next: str | None = None


_GONE = 204  # the stream had already ended


class JobEvent(msgspec.Struct, frozen=True):
    """An event: `state`, `progress`, `log`, or `end`, which is the last."""

    name: str
    event_id: str
    said: dict[str, Any]


async def events(
    requests: Requests, path: str, after: str | None, more_headers: Mapping[str, str] | None = None
) -> AsyncIterator[JobEvent]:
    """Yield events to the end of the stream. A broken connection is reopened, and the stream resumes after its last
    event."""
    failures = 0
    while True:
        headers = dict(more_headers or {})
        if after is not None:
            headers["Last-Event-ID"] = after
        try:
            async with requests.stream(path, headers) as response:
                if response.status_code == _GONE:
                    return
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                async for event in _read(response):
                    failures, after = 0, event.event_id
                    yield event
                    if event.name == "end":
                        return
        except httpx.TransportError as error:
            failures += 1
            if failures >= TRIES:
                raise requests.unreachable(error) from error
        await asyncio.sleep(PAUSE_SECONDS * 2 ** min(failures, 5))  # the server ended it: it is stopping or restarting


async def _read(response: httpx.Response) -> AsyncIterator[JobEvent]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "event" in fields:
            yield JobEvent(fields["event"], fields.get("id", ""), codec.decode(fields.get("data", "{}")))
        fields = {}


BATCH_MAX = 100  # jobs that the server accepts per request
Submission = tuple[str, Any] | tuple[str, Any, SubmitOptions]


class Client:
    """`async with Client("http://127.0.0.1:8000", key="bs_…") as client:`. `make_http`: returns an httpx.AsyncClient of
    yours, with a proxy or certificates."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        make_http: Callable[[], httpx.AsyncClient] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.requests = Requests(url, key, make_http)
        self._clock = clock or SystemClock()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
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
        """Store a job. A repeat with the same `idempotency_key`, even from another process, returns the same job."""
        body = _body(payload, options)
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        if idempotency_key is None:
            body.setdefault("job_id", self._new_id())  # makes it safe to repeat
        return RemoteHandle(
            self, await self.requests.send("POST", f"/jobs/{quote(job_type, safe='')}", body, headers=headers)
        )

    async def submit_many(
        self, jobs: Iterable[Submission], *, idempotency_key: str | None = None
    ) -> list[RemoteHandle | BackstayError]:
        """Store many jobs, a hundred at a time; return for each the job, or why it was rejected."""
        found: list[RemoteHandle | BackstayError] = []
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

    def _of_many(self, item: Mapping[str, Any]) -> RemoteHandle | BackstayError:
        job = item.get("job")
        return of_problem(item["problem"], item["status"]) if job is None else RemoteHandle(self, job)

    # Reading

    async def get(self, job_id: str) -> RemoteJob:
        """Return the job as it is now."""
        return RemoteJob(await self.requests.send("GET", _path(job_id)))

    async def find(self, **options: Unpack[FindOptions]) -> RemotePage:
        """Find jobs, newest first, or in claim order with order="priority"."""
        found = await self.requests.send("GET", "/jobs", params=options)
        page = RemotePage(RemoteJob(item) for item in found["items"])
        page.next = found["next"]
        return page

    async def tree(self, job_id: str) -> list[RemoteJob]:
        """Return a job and everything below it, each before its children, without payloads."""
        return [RemoteJob(item) for item in (await self.requests.send("GET", _path(job_id, "tree")))["items"]]

    async def explain(self, job_id: str) -> str:
        """Explain in one sentence why a job is not running, or how far it is."""
        return str((await self.requests.send("GET", _path(job_id, "explain")))["explanation"])

    async def result(self, job_id: str, timeout: float | timedelta | None = None) -> Any:
        """Wait until a job has ended, and return its result. Raises JobFailed, JobCancelled, JobNotFound or
        ResultTimeout."""
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                async for event in self.stream(job_id):
                    if event.name == "end":
                        break
        except TimeoutError:
            raise ResultTimeout(
                f"job {job_id} did not end within {seconds(timeout or 0):g} s; it is still active, ask again later"
            ) from None
        return _result(await self.get(job_id))

    def stream(self, job_id: str, after: str | None = None) -> AsyncIterator[JobEvent]:
        """Yield the events of a job until it ends; `after` is the event_id to resume from."""
        return events(self.requests, _path(job_id, "stream"), after)

    def stream_tree(self, job_id: str, after: str | None = None) -> AsyncIterator[JobEvent]:
        """Yield the events of a job and everything below it."""
        return events(self.requests, _path(job_id, "tree/stream"), after)

    async def output(self, job_id: str, *, after: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield what the handler has streamed so far: `value`, `number`, `attempt`, `cursor` of each entry."""
        while True:
            page = await self.requests.send("GET", _path(job_id, "output"), params={"after": after})
            for entry in page["items"]:
                yield entry
            if not page["more"]:
                return
            after = page["next"]

    async def stream_output(self, job_id: str, *, after: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield what the handler has streamed, and each entry that it still streams, until the job has ended. If the
        handler runs again, its output replaces that of the earlier run; its first entry is `restarted`."""
        path = _path(job_id, "output")
        async for event in events(self.requests, path, after, {"Accept": "text/event-stream"}):
            if event.name == "output":
                yield {name: value for name, value in event.said.items() if name != "job_id"}

    async def results(self, job_id: str, table: str, *, subject: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Yield the rows of a job in a result table, by key: `async for row in client.results(job_id, "points"):`"""
        after: str | None = None
        while True:
            params = {"subject": subject, "after": after}
            page = await self.requests.send("GET", _path(job_id, f"results/{quote(table, safe='')}"), params=params)
            for row in page["items"]:
                yield row
            if (after := page["next"]) is None:
                return

    async def artifacts(self, job_id: str) -> list[dict[str, Any]]:
        """List the files of a job: name, size, sha256, uri."""
        found: list[dict[str, Any]] = (await self.requests.send("GET", _path(job_id, "artifacts")))["items"]
        return found

    async def artifact(self, job_id: str, name: str) -> bytes:
        """Read a file of a job."""
        response = await self.requests.response("GET", _path(job_id, f"artifacts/{quote(name, safe='')}"))
        return response.content

    async def open_artifact(self, job_id: str, name: str) -> AsyncIterator[bytes]:
        """Read a file in chunks; for large files."""
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
            # A repeat of a cancel whose response was lost finds the job cancelled, as requested.
            job = await self.get(job_id)
            if expected_version is None and not subtree and job.status is Status.CANCELLED:
                return job
            raise

    async def retry(
        self,
        job_id: str,
        *,
        subtree: bool = False,
        forget_steps: bool = False,
        reason: str | None = None,
        expected_version: int | None = None,
    ) -> RemoteJob:
        """Retry an ended job, with its attempts reset. The request names the job's current version, so that a late
        repeat is refused instead of causing one more run."""
        version = expected_version if expected_version is not None or subtree else (await self.get(job_id)).version
        found = await self.requests.send(
            "POST",
            _path(job_id, "retry"),
            {"reason": reason, "forget_steps": forget_steps},
            params={"subtree": "true" if subtree else None},
            headers=_if_match(version),
        )
        return RemoteJob(found)

    async def send_event(
        self,
        job_id: str | None = None,
        name: str = "",
        payload: Any = None,
        *,
        key: str | None = None,
        event_id: str | None = None,
    ) -> dict[str, Any]:
        """Send an event to a job, or to a correlation key; see backstay.Backstay.send_event. If there is no
        `event_id`, one is made here, so that a request that is repeated has one effect."""
        if (job_id is None) == (key is None):
            raise InvalidOption("send_event: name either a job or key=…")
        body = {"payload": payload, "event_id": event_id or ids.new_id(SystemClock().now())}
        if job_id is None:
            found = await self.requests.send("POST", "/events", {**body, "key": key, "name": name})
        else:
            found = await self.requests.send("POST", _path(job_id, f"events/{quote(name, safe='')}"), body)
        return dict(found)

    async def steps(self, job_id: str) -> list[dict[str, Any]]:
        """Return what a job has recorded: steps, sleeps, and waits for events; see backstay.Backstay.steps."""
        return list((await self.requests.send("GET", _path(job_id, "steps")))["items"])

    async def update(
        self, job_id: str, payload: Any, *, reason: str | None = None, expected_version: int | None = None
    ) -> RemoteJob:
        """Give a job that waits another payload; see backstay.Backstay.update."""
        body = {"payload": payload, **({} if reason is None else {"reason": reason})}
        return RemoteJob(await self.requests.send("PATCH", _path(job_id), body, headers=_if_match(expected_version)))

    async def remove(self, job_id: str, *, reason: str | None = None, expected_version: int | None = None) -> None:
        """Erase a job for good, with its files, rows and history; see backstay.Backstay.remove."""
        headers = _if_match(expected_version)
        await self.requests.response("POST", _path(job_id, "remove"), {"reason": reason}, headers=headers)

    async def cancel_many(
        self,
        job_ids: Sequence[str] | None = None,
        *,
        created_until: datetime | None = None,
        dry_run: bool = False,
        reason: str | None = None,
        **conditions: Unpack[JobFilter],
    ) -> BulkResult:
        """Cancel up to 1,000 jobs, by id or by the conditions of find; see backstay.Backstay.cancel_many."""
        body = _chosen(job_ids, created_until, dry_run, reason, conditions)
        return await self._change_many("cancel", body, TRIES)

    async def retry_many(
        self,
        job_ids: Sequence[str] | None = None,
        *,
        created_until: datetime | None = None,
        dry_run: bool = False,
        forget_steps: bool = False,
        reason: str | None = None,
        **conditions: Unpack[JobFilter],
    ) -> BulkResult:
        """Retry up to 1,000 ended jobs, by id or by the conditions of find; see backstay.Backstay.retry_many. The
        request is sent once: a repeat could retry a job that has run and failed again."""
        tries = TRIES if dry_run else 1
        body = {**_chosen(job_ids, created_until, dry_run, reason, conditions), "forget_steps": forget_steps}
        return await self._change_many("retry", body, tries)

    async def schedules(self) -> list[dict[str, Any]]:
        """List the schedules by name, as the server sends them: each with its next ticks."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            page = await self.requests.send("GET", "/schedules", params={"after": after})
            found += page["items"]
            after = page["next"]
            if after is None:
                return found

    async def schedule(
        self,
        name: str,
        cron: str,
        job_type: str,
        payload: Any = None,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        overlap: Overlap = "queue",
        jitter: float | timedelta = 0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> dict[str, Any]:
        """Add or change a schedule; see backstay.Backstay.schedule."""
        rule = {"timezone": timezone, "missed": missed, "overlap": overlap, "jitter": jitter}
        bounds = {name: value for name, value in (("starts_at", starts_at), ("ends_at", ends_at)) if value is not None}
        body = _body(payload, {"cron": cron, "job_type": job_type, **rule, **bounds, **options})
        return dict(await self.requests.send("PUT", f"/schedules/{quote(name, safe='')}", body))

    async def unschedule(self, name: str) -> None:
        """Delete a schedule. The jobs it created remain."""
        await self.requests.send("DELETE", f"/schedules/{quote(name, safe='')}")

    async def pause_schedule(self, name: str) -> dict[str, Any]:
        """Stop a schedule from creating jobs until it is resumed."""
        return dict(await self.requests.send("POST", f"/schedules/{quote(name, safe='')}/pause"))

    async def resume_schedule(self, name: str) -> dict[str, Any]:
        """Resume with the next tick from now."""
        return dict(await self.requests.send("POST", f"/schedules/{quote(name, safe='')}/resume"))

    async def run_schedule(self, name: str) -> RemoteHandle:
        """Submit the job of a schedule now, in addition to its ticks. The request is sent once."""
        return RemoteHandle(self, await self.requests.send("POST", f"/schedules/{quote(name, safe='')}/run", tries=1))

    async def backfill(self, name: str, from_: datetime, to: datetime, *, dry_run: bool = False) -> Backfill:
        """Submit the job of each tick in this span that has none; see backstay.Backstay.backfill."""
        body = {"from": _sent(from_), "to": _sent(to), "dry_run": dry_run}
        return msgspec.convert(
            await self.requests.send("POST", f"/schedules/{quote(name, safe='')}/backfill", body), Backfill
        )

    async def _change_many(self, action: str, body: dict[str, Any], tries: int) -> BulkResult:
        return msgspec.convert(await self.requests.send("POST", f"/jobs/{action}", body, tries=tries), BulkResult)


def _chosen(
    job_ids: Sequence[str] | None,
    created_until: datetime | None,
    dry_run: bool,
    reason: str | None,
    conditions: JobFilter,
) -> dict[str, Any]:
    """Return the body of a change of many jobs."""
    asked = {**conditions, "created_until": created_until}
    return {
        "job_ids": None if job_ids is None else list(job_ids),
        "filter": {name: _sent(value) for name, value in asked.items() if value is not None} or None,
        "dry_run": dry_run,
        "reason": reason,
    }


def _result(job: RemoteJob) -> Any:
    match job.status:
        case Status.COMPLETED if job.archived_at is not None:
            raise ResultGone(f"job {job.job_id} completed, but its result was deleted by retention: submit it again")
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
        raise InvalidOption(
            "connection: your transaction cannot include a request to the server; submit with an app instead"
        )
    text = codec.to_json(payload)
    return {"payload": msgspec.Raw(text.encode()), **{name: _sent(value) for name, value in options.items()}}


def _sent(value: Any) -> Any:
    """Return an option as JSON."""
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
