"""Assertions on submitted jobs. They read the store; a failure lists what is there and how it differs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, overload

import msgspec
import pydantic

from backstay import sync
from backstay.app import Backstay
from backstay.core.checks import check_priority, did_you_mean
from backstay.handlers import Handler
from backstay.job import FIELDS, Job
from backstay.limits import FIND_LIMIT_MAX

LISTED_MAX = 20  # jobs in the message of a failure: more than anyone reads
LINE_MAX = 300  # characters per job in that message

JobTypeRef = str | Handler | sync.BoundHandler


@overload
def assert_submitted(
    app: Backstay, job_type: JobTypeRef, payload: Any = None, *, count: int | None = None, **fields: Any
) -> Coroutine[Any, Any, list[Job]]: ...


@overload
def assert_submitted(
    app: sync.Backstay, job_type: JobTypeRef, payload: Any = None, *, count: int | None = None, **fields: Any
) -> list[Job]: ...


def assert_submitted(
    app: Backstay | sync.Backstay,
    job_type: JobTypeRef,
    payload: Any = None,
    *,
    count: int | None = None,
    **fields: Any,
) -> Any:
    """Assert that jobs of this type are in the store (`count` of them, or at least one); return them, oldest first.

    `payload` is a dict of names and values that it must contain, a function that is given the payload and returns
    whether it matches, or a value that it must equal. `fields` are fields of the record: `queue="mail",
    priority="high"`.
    """
    return _either(app, lambda inner: _assert(inner, _Wanted(job_type, payload, fields), count))


@overload
def assert_not_submitted(
    app: Backstay, job_type: JobTypeRef, payload: Any = None, **fields: Any
) -> Coroutine[Any, Any, None]: ...


@overload
def assert_not_submitted(app: sync.Backstay, job_type: JobTypeRef, payload: Any = None, **fields: Any) -> None: ...


def assert_not_submitted(
    app: Backstay | sync.Backstay, job_type: JobTypeRef, payload: Any = None, **fields: Any
) -> Any:
    """Assert that no such job is in the store, in any state.

    A type without a handler is a mistake in the test: such a job could not have been submitted, and the assertion would
    always pass.
    """

    async def check(inner: Backstay) -> None:
        __tracebackhide__ = True
        wanted = _Wanted(job_type, payload, fields)
        await _assert(inner, wanted, 0)
        known = await _known_types(inner)
        if wanted.job_type not in known:
            raise AssertionError(
                f"unknown job type {wanted.job_type!r} ({did_you_mean(wanted.job_type, sorted(known))})"
            )

    return _either(app, check)


def _either(app: Backstay | sync.Backstay, check: Callable[[Backstay], Coroutine[Any, Any, Any]]) -> Any:
    return app._call(check(app.inner)) if isinstance(app, sync.Backstay) else check(app)


async def _assert(app: Backstay, wanted: _Wanted, count: int | None) -> list[Job]:
    __tracebackhide__ = True  # pytest shows the line of the test
    jobs = await _all(app)
    of_type = [job for job in jobs if job.job_type == wanted.job_type]
    complaints = {job.job_id: wanted.complaints(job) for job in of_type}
    found = [job for job in of_type if not complaints[job.job_id]]
    if len(found) == count or (count is None and found):
        return found
    raise AssertionError(
        "\n".join(
            [
                f"expected {_how_many(count)} {wanted}; {len(found)} {'was' if len(found) == 1 else 'were'} submitted.",
                *_listed(of_type, complaints, wanted.job_type, await _known_types(app)),
                *_others(jobs, wanted.job_type),
            ]
        )
    )


async def _known_types(app: Backstay) -> set[str]:
    """Types with a handler here, and types that a worker of another program has announced."""
    return {*app.handlers, *(each.job_type for each in await app.store.job_types())}


async def _all(app: Backstay) -> list[Job]:
    """Return all jobs of a type, oldest first."""
    jobs: list[Job] = []
    after: str | None = None
    while True:
        page = await app.find(after=after, limit=FIND_LIMIT_MAX)
        jobs += page
        if page.next is None:
            return jobs[::-1]
        after = page.next


class _Wanted:
    def __init__(self, job_type: JobTypeRef, payload: Any, fields: Mapping[str, Any]) -> None:
        if unknown := fields.keys() - set(FIELDS):
            raise TypeError(f"a job has no field {', '.join(sorted(unknown))}; it has {', '.join(FIELDS)}")
        self.job_type = job_type if isinstance(job_type, str) else job_type.name
        self.payload = payload.model_dump(mode="json") if isinstance(payload, pydantic.BaseModel) else payload
        self.fields = dict(fields)
        if isinstance(self.fields.get("priority"), str):
            self.fields["priority"] = check_priority(self.fields["priority"])

    def complaints(self, job: Job) -> list[str]:
        """Return the mismatches as sentences."""
        wrong = [
            f"{name} is {found!r}, not {value!r}"
            for name, value in self.fields.items()
            if (found := getattr(job, name)) != value
        ]
        return _payload_complaints(self.payload, job.payload) + wrong

    def __str__(self) -> str:
        conditions = [f"{name}={value!r}" for name, value in self.fields.items()]
        if callable(self.payload):
            conditions.insert(0, f"a payload for which {_name(self.payload)} holds")
        elif self.payload is not None:
            conditions.insert(0, f"payload {self.payload!r}")
        return f"{self.job_type!r}" + (f" with {', '.join(conditions)}" if conditions else "")


def _payload_complaints(wanted: Any, found: Any) -> list[str]:
    if wanted is None:
        return []
    if callable(wanted):
        return [] if wanted(found) else [f"{_name(wanted)} says no"]
    if isinstance(wanted, Mapping) and isinstance(found, dict):
        plain = msgspec.to_builtins(wanted, str_keys=True)
        return [
            f"payload.{name} is {found[name]!r}, not {value!r}" if name in found else f"payload has no {name!r}"
            for name, value in plain.items()
            if name not in found or found[name] != value
        ]
    return [] if wanted == found else [f"payload is {found!r}, not {wanted!r}"]


def _name(function: Callable[..., Any]) -> str:
    """A lambda is named by its source, if that is one line."""
    name = getattr(function, "__name__", repr(function))
    if name != "<lambda>":
        return name
    try:
        lines = inspect.getsource(function).strip().splitlines()
    except (OSError, TypeError):
        return name
    return f"`{lines[0]}`" if len(lines) == 1 else name


def _how_many(count: int | None) -> str:
    match count:
        case None:
            return "at least one"
        case 0:
            return "no"
        case _:
            return f"exactly {count}"


def _listed(jobs: list[Job], complaints: Mapping[str, list[str]], job_type: str, known: set[str]) -> list[str]:
    if not jobs:
        unknown = (
            ""
            if job_type in known
            else f" No handler is registered for that type ({did_you_mean(job_type, sorted(known))})"
        )
        return [f"There is no job of type {job_type!r}.{unknown}"]
    lines = []
    for job in jobs[-LISTED_MAX:]:
        why = "; ".join(complaints[job.job_id]) or "fits"
        line = f"  {job.job_id} {job.status.value}, queue {job.queue}, priority {job.priority}, payload {job.payload!r}"
        lines.append(f"{line[:LINE_MAX]}\n    {why[:LINE_MAX]}")
    more = len(jobs) - len(lines)
    heading = f"Jobs of this type, oldest first{f' (without the first {more})' if more else ''}:"
    return [heading, *lines]


def _others(jobs: list[Job], job_type: str) -> list[str]:
    counts: dict[str, int] = {}
    for job in jobs:
        if job.job_type != job_type:
            counts[job.job_type] = counts.get(job.job_type, 0) + 1
    if not counts:
        return []
    return ["Other types: " + ", ".join(f"{name} ({number})" for name, number in sorted(counts.items()))]
