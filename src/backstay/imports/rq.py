"""The queues of RQ in Redis: a hash for each job, and the stream of its results.

    backstay import rq redis://host:6379/0

A call is pickled unless the application chose the JSON serializer. It is read as far as it is plain data; see
`pickles`. RQ keeps how many retries are left, but not how many attempts have failed: a job that waits for another one
counts as having failed once. A job without retries has one attempt here too.
"""

from __future__ import annotations

import zlib
from base64 import b64decode
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from backstay.clock import MICROS
from backstay.core.states import Status
from backstay.errors import ConfigurationError
from backstay.imports.pickles import read_pickle
from backstay.imports.redis_reader import Command, RedisReader
from backstay.imports.source import RUNNING, Row, Unmappable, Work, document, known, moment, read, required, text
from backstay.limits import IMPORT_PAGE, RESULT_BYTES_MAX

_STATES = {
    "queued": Status.PENDING,
    "scheduled": Status.SCHEDULED,
    "deferred": Status.PENDING,
    "started": Status.PROCESSING,
    "finished": Status.COMPLETED,
    "failed": Status.FAILED,
    "stopped": Status.CANCELLED,
    "canceled": Status.CANCELLED,
}
_JOB = "rq:job:"
_SUCCESSFUL = "1"

Fields = dict[str, bytes]


class Rq:
    has_dependencies = True

    def __init__(self, address: str) -> None:
        self._redis = RedisReader(address, "a queue of RQ")
        self.location = self._redis.location

    async def open(self) -> None:
        await self._redis.open()
        if not await self._redis.ask("EXISTS", "rq:queues") and not await self._any_job():
            raise ConfigurationError(f"{self.location} has no queue of RQ: there is no key rq:queues")

    async def _any_job(self) -> bool:
        async for page in self._redis.keys(_JOB):
            if page:
                return True
        return False

    async def close(self) -> None:
        await self._redis.close()

    async def count(self) -> int:
        return len(await self._ids())

    async def _ids(self) -> list[str]:
        """Return the ids of all jobs. Their keys share a prefix with those of their dependents."""
        found: set[str] = set()
        async for page in self._redis.keys(_JOB):
            found.update(key.removeprefix(_JOB) for key in page)
        return sorted(
            each for each in found if not each.endswith((":dependents", ":dependencies")) and not each.startswith(":")
        )

    async def pages(self) -> AsyncIterator[list[Row]]:
        ids = await self._ids()
        for start in range(0, len(ids), IMPORT_PAGE):
            yield await self._page(ids[start : start + IMPORT_PAGE])

    def notes(self) -> list[str]:
        return ["callbacks, repeats and cron jobs are not imported: add schedules to the new application"]

    async def _page(self, ids: list[str]) -> list[Row]:
        asked: list[Command] = []
        for job_id in ids:
            asked += [
                ("HGETALL", f"{_JOB}{job_id}"),
                ("XREVRANGE", f"rq:results:{job_id}", "+", "-", "COUNT", 1),
            ]
        answers = iter(await self._redis.ask_all(asked))
        jobs = {job_id: (_fields(next(answers)), _latest(next(answers))) for job_id in ids}
        scheduled = [job_id for job_id, (job, _) in jobs.items() if job.get("status") == b"scheduled"]
        queues = {each: _said(jobs[each][0], "origin") for each in scheduled}
        scores: list[Command] = [("ZSCORE", f"rq:scheduled:{queue}", each) for each, queue in queues.items()]
        due = dict(zip(scheduled, await self._redis.ask_all(scores) if scores else [], strict=True))
        needed = sorted({each for job, _ in jobs.values() for each in _looked_up(job)})
        looks: list[Command] = [("HGET", f"{_JOB}{each}", "status") for each in needed]
        states = dict(zip(needed, await self._redis.ask_all(looks) if looks else [], strict=True))
        return [
            read(job_id, _said(job, "status"), partial(_work, job_id, job, result, due.get(job_id), states))
            for job_id, (job, result) in jobs.items()
            if job  # it may have expired meanwhile
        ]


def _work(job_id: str, job: Fields, result: Fields, score: bytes | None, states: dict[str, bytes | None]) -> Work:
    state = _said(job, "status") or "created"
    if state == "created":
        raise Unmappable("it was never put into a queue")
    status = known(_STATES, state)
    function, args, kwargs = _call(job)
    retried, left = _number(job, "number_of_retries"), _number(job, "retries_left")
    if state in ("queued", "scheduled") and job.get("started_at") and (retried or "retries_left" in job):
        status, retried = Status.RETRYING, max(1, retried)
    is_running = status is Status.PROCESSING
    is_over = status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
    has_started = is_over or is_running or status is Status.RETRYING
    created_at = required(_time(job, "created_at"), "created_at")
    started_at = _time(job, "started_at") if has_started else None
    ended = _time(job, "ended_at") or started_at or _time(job, "enqueued_at") or created_at
    has_run = is_running or status in (Status.COMPLETED, Status.FAILED) or (is_over and started_at is not None)
    attempt = retried + int(has_run)
    timeout = _said(job, "timeout")
    meta = _meta(job)
    tags = [f"group:{_said(job, 'group_id')}"] if job.get("group_id") else []
    tags += [f"{name}={value}" for name, value in meta.items() if isinstance(value, str) and value]
    return Work(
        source_id=job_id,
        state=state,
        job_type=function,
        payload=kwargs,
        args=args,
        status=status,
        queue=_said(job, "origin"),
        created_at=created_at,
        due_at=int(float(score) * MICROS) if score else None,
        started_at=started_at,
        ended_at=ended if is_over else None,
        attempt=attempt,
        failures=max(0, attempt - 1) if status is Status.COMPLETED else attempt,
        max_attempts=retried + left + 1,
        timeout_seconds=float(timeout) if timeout and timeout.isdigit() else None,
        result=_result(job, result) if status is Status.COMPLETED else None,
        error=_error(job, result) if not is_over or status is Status.FAILED else None,
        worker_id=_said(job, "worker_name") if started_at is not None else None,
        tags=tuple(tags),
        metrics={name: value for name, value in meta.items() if _is_number(value)},
        depends_on=tuple(each for each in _dependencies(job) if states.get(each) is not None),
        unfinished=_unfinished(job, states) if state == "deferred" else (),
        note=RUNNING if is_running else "",
    )


def _call(job: Fields) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return the function's name and its arguments."""
    call = _serialized(_inflated(job.get("data", b"")), "its call")
    if not (isinstance(call, list) and len(call) == 4 and isinstance(call[2], list) and isinstance(call[3], dict)):
        raise Unmappable("its call is not one of RQ")
    function, instance, args, kwargs = call
    if instance is not None:
        raise Unmappable("it calls a method of an object, which is pickled with it: let RQ run it")
    return str(function), tuple(args), kwargs


def _serialized(content: bytes, what: str) -> Any:
    return read_pickle(content, what) if content[:1] == b"\x80" else document(content, what)


def _inflated(content: bytes) -> bytes:
    """Return what was compressed, up to a limit: a few bytes can become gigabytes."""
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(content, RESULT_BYTES_MAX)
    except zlib.error:
        return content
    if inflating.unconsumed_tail:
        raise Unmappable("its call is larger than what can be stored here")
    return found


def _result(job: Fields, result: Fields) -> Any:
    if result.get("type") == _SUCCESSFUL.encode():
        value = result.get("return_value")
        return None if value is None else _serialized(b64decode(value), "its result")
    return _serialized(job["result"], "its result") if job.get("result") else None


def _error(job: Fields, result: Fields) -> str | None:
    """Return the traceback of the last attempt; older releases keep it in the job."""
    if result.get("exc_string"):
        return _inflated(b64decode(result["exc_string"])).decode("utf-8", "replace")
    return _inflated(job["exc_info"]).decode("utf-8", "replace") if job.get("exc_info") else None


def _meta(job: Fields) -> dict[str, Any]:
    said = _serialized(job["meta"], "its meta") if job.get("meta") else {}
    return said if isinstance(said, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _dependencies(job: Fields) -> list[str]:
    if job.get("dependency_ids"):
        return [str(each) for each in document(job["dependency_ids"], "dependency_ids")]
    return [job["dependency_id"].decode()] if job.get("dependency_id") else []


def _looked_up(job: Fields) -> list[str]:
    """Return the dependencies of a job; none if they cannot be read, for which the job itself is refused."""
    try:
        return _dependencies(job)
    except (Unmappable, TypeError, UnicodeDecodeError):
        return []


def _unfinished(job: Fields, states: dict[str, bytes | None]) -> tuple[str, ...]:
    """Return the jobs that it waits for. One that has expired had ended."""
    found = []
    for each in _dependencies(job):
        state = states.get(each)
        if state in (b"failed", b"stopped", b"canceled") and job.get("allow_dependency_failures") != b"1":
            raise Unmappable("it waits for a job that has failed or was canceled")
        if state not in (None, b"finished", b"failed", b"stopped", b"canceled"):
            found.append(each)
    return tuple(found)


def _fields(flat: list[bytes] | None) -> Fields:
    """Return a hash, or an entry of a stream, which come as a flat list."""
    pairs = zip((flat or [])[::2], (flat or [])[1::2], strict=True)
    return {name.decode("utf-8", "replace"): value for name, value in pairs}


def _latest(entries: list[list[Any]] | None) -> Fields:
    return _fields(entries[0][1]) if entries else {}


def _said(job: Fields, name: str) -> str | None:
    return text(job.get(name, b"").decode("utf-8", "replace"))


def _number(job: Fields, name: str) -> int:
    said = _said(job, name)
    return int(said) if said is not None and said.isdigit() else 0


def _time(job: Fields, name: str) -> int | None:
    return moment(_said(job, name), name)
