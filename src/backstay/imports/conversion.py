"""Turns the work of another system into jobs as they are stored.

Pure, and without a clock: the same work always becomes the same job.

A job that a worker of the source was running goes back to the line as a rescued one does: its attempt counts as a
failure, and it is retried at once. It always has one attempt left, because an import must not end a job.

What the source does not say is taken from the job type, if the new application has announced it: queue, time limit,
attempts, concurrency, and the hash by which identical jobs are recognised.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from backstay import codec, ids, limits
from backstay.clock import MICROS, Instant
from backstay.core.checks import (
    check_job_type,
    check_max_attempts,
    check_name,
    check_payload_size,
    check_priority,
    check_text,
    check_timeout,
)
from backstay.core.derivation import render
from backstay.core.dumps import Adopted, EdgeDump, GuardDump, JobDump
from backstay.core.records import ErrorEntry, HistoryEvent, JobRecord, JobType, NewJob
from backstay.core.states import ACTIVE, TERMINAL, Event, Status
from backstay.errors import InvalidOption, InvalidResult, InvalidSubmission, PayloadTooLarge, ResultTooLarge
from backstay.files.local import Files, StoredFile
from backstay.imports.source import Unmappable, Work
from backstay.options import content_hash_of

_NAMESPACE = uuid.UUID("b7d5f2a4-6f0e-5a53-9c1d-0f4f3f6c9a11")  # of ids that are derived from those of a source
RESULT_FILE = ".result.json"
INTERRUPTED = "Interrupted"
_ERROR_TYPE = re.compile(r"((?:\w+\.)*[A-Z]\w*): (.*)", re.DOTALL)
_QUEUE, _PRIORITY, _TIMEOUT, _ATTEMPTS = "default", 50, 3600 * MICROS, 5


class Conversion(msgspec.Struct, frozen=True):
    """The settings of an import: the source's name, the job types known here, new names of types, and a queue for all
    jobs."""

    source: str
    types: Mapping[str, JobType]
    renamed: Mapping[str, str] = {}
    queue: str | None = None

    def job_id(self, source_id: str) -> str:
        """Return the id under which a job is stored: its own, or one derived from it if that is not a UUID."""
        try:
            return ids.canonical(source_id)
        except InvalidSubmission:
            return str(uuid.uuid5(_NAMESPACE, f"{self.source}:{codec.clean(source_id)}"))

    def name(self, work: Work) -> str:
        return self.renamed.get(work.job_type, work.job_type)

    def takes(self, work: Work, files: Files | None) -> bool:
        """Return whether this can be stored as a job."""
        try:
            self.adopted(work, files)
        except Unmappable:
            return False
        return True

    def adopted(self, work: Work, files: Files | None) -> tuple[Adopted, bytes | None]:
        """Return the job to store, and the content of its result file if the result is too large for the record.
        Unmappable with the reason if it cannot be stored."""
        try:
            return self._adopted(work, files)
        except (InvalidSubmission, InvalidResult, ResultTooLarge) as error:
            raise Unmappable(_reason(error)) from None

    def _adopted(self, work: Work, files: Files | None) -> tuple[Adopted, bytes | None]:
        record = self._record(work)
        edges = [
            EdgeDump(self.job_id(each), each not in work.unfinished, False) for each in dict.fromkeys(work.depends_on)
        ]
        announced = self.types.get(record.job_type)
        is_rated = announced is not None and announced.rate is not None and record.status in ACTIVE
        record, content = _with_result(record, work.result, files)
        dump = JobDump(
            record=msgspec.structs.replace(record, rate_key=record.job_type if is_rated else None),
            edges=tuple(sorted(edges)),
            unmet=sum(not edge.met for edge in edges) if record.status is Status.WAITING else 0,
            rate=announced.rate if announced is not None and is_rated else None,
        )
        guard = None
        if work.dedup_key is not None and (record.status in ACTIVE or work.dedup_until is not None):
            guard = GuardDump(work.dedup_key, record.job_id, work.dedup_until)
        return Adopted(dump, guard), content

    def _record(self, work: Work) -> JobRecord:
        name = check_job_type(self.name(work))
        announced = self.types.get(name)
        job_id = self.job_id(work.source_id)
        payload = check_payload_size(codec.to_json(_payload(work, announced)))
        status = _status(work)
        failures = work.failures
        max_attempts = work.max_attempts or (announced.max_attempts if announced else _ATTEMPTS)
        if status in ACTIVE:
            max_attempts = max(max_attempts, failures + 1)
        due_at = _due_at(work)
        history = _history(work, status)
        errors = _errors(work)
        tags = list(work.tags) if job_id == work.source_id.lower() else [*work.tags, work.source_id]
        key, limit = name, announced.concurrency_limit if announced is not None else None
        if work.lock is not None:
            key, limit = work.lock, 1
        if status not in ACTIVE:
            limit = None
        timeout = announced.timeout_micros if announced else _TIMEOUT
        return JobRecord(
            job_id=job_id,
            job_type=name,
            queue=check_name(self.queue or work.queue or (announced.queue if announced else _QUEUE), "queue"),
            priority=check_priority(
                work.priority if work.priority is not None else announced.priority if announced else _PRIORITY
            ),
            payload=payload,
            payload_version=announced.version if announced else 1,
            status=status,
            attempt=work.attempt,
            version=max(work.version or 0, len(history)),
            failures=failures,
            max_attempts=check_max_attempts(max_attempts),
            snoozes=0,
            give_backs=0,
            timeout_micros=timeout if work.timeout_seconds is None else check_timeout(work.timeout_seconds),
            created_at=work.created_at,
            updated_at=history[-1].at,
            scheduled_for=due_at,
            started_at=work.started_at,
            completed_at=history[-1].at if status in TERMINAL else None,
            lease_expires_at=None,
            subject=check_text(
                "subject", work.subject or _derived("subject", announced, payload), limits.KEY_LENGTH_MAX
            ),
            tags=_tags(tags),
            created_by=check_text("created_by", work.created_by, limits.NAME_LENGTH_MAX),
            job_stage=check_text("stage", work.stage, limits.STAGE_LENGTH_MAX),
            dedup_key=check_text("dedup_key", work.dedup_key, limits.KEY_LENGTH_MAX),
            content_hash=self._content_hash(work, announced, payload),
            concurrency_key=check_text("lock", key, limits.KEY_LENGTH_MAX) if limit is not None else None,
            concurrency_limit=limit,
            worker_id=check_text("worker_id", work.worker_id, limits.NAME_LENGTH_MAX),
            worker_version=check_text("worker_version", work.worker_version, limits.NAME_LENGTH_MAX),
            progress=1.0 if status is Status.COMPLETED else 0.0 if _was_running(work) else float(work.progress),
            stage=_stage(work, status),
            error_type=errors[-1].type if errors else None,
            last_error=_last_error(work, errors),
            errors=errors,
            logs=_logs(work),
            log_location=None if work.log_location is None else codec.clean(work.log_location),
            metrics=_metrics(work),
            history=_numbered(history, work.version),
        )

    def _content_hash(self, work: Work, announced: JobType | None, payload: str) -> str | None:
        if (derived := _derived("content_hash", announced, payload)) is not None:
            return check_text("content_hash", derived, limits.KEY_LENGTH_MAX)
        if announced is not None and announced.reuse_by:
            try:
                return content_hash_of(announced, announced.job_type, payload)
            except InvalidSubmission:
                return None  # it lacks a field, so no job can be identical to it
        return check_text("content_hash", work.content_hash, limits.KEY_LENGTH_MAX)

    def submit_of(self, adopted: Adopted, work: Work, depends_on: Sequence[str]) -> NewJob:
        """Return a job that waits for others as a submit. It has not started yet, so nothing is lost."""
        record = adopted.job.record
        shared = {name: getattr(record, name) for name in NewJob.__struct_fields__ if hasattr(record, name)}
        return NewJob(
            **shared,
            special=True,
            own_id=True,
            dedup_until=work.dedup_until,
            depends_on=tuple(depends_on),
            rate=adopted.job.rate,
        )


def _payload(work: Work, announced: JobType | None) -> Any:
    """Return the payload. Positional arguments get the names of the payload model's fields, in their order; if there is
    no such model, they are the list `args`."""
    if not work.args:
        return work.payload
    names = () if announced is None or announced.payload_schema is None else _fields(announced.payload_schema)
    by_name = dict(zip(names, work.args, strict=False)) if len(names) >= len(work.args) else {}
    if not by_name or "args" in names:
        by_name = {"args": list(work.args)}
    if by_name.keys() & work.payload.keys():
        raise Unmappable("a positional and a keyword argument would get the same name")
    return {**by_name, **work.payload}


@lru_cache(maxsize=256)
def _fields(schema: str) -> tuple[str, ...]:
    return tuple(codec.from_json(schema, "payload_schema").get("properties", ()))


def _derived(name: str, announced: JobType | None, payload: str) -> str | None:
    """Return what the job type derives from the payload by a template; None if it has none."""
    derivation = None if announced is None else announced.derivation
    template = None if derivation is None else getattr(derivation, name)
    return None if template is None else render(name, template, codec.decode(payload))


def _status(work: Work) -> Status:
    if work.status is Status.PROCESSING:
        return Status.RETRYING
    if work.unfinished and work.status is Status.PENDING:
        return Status.WAITING
    if work.status in (Status.PENDING, Status.SCHEDULED):
        return Status.SCHEDULED if _due_at(work) > work.created_at else Status.PENDING
    return work.status


def _was_running(work: Work) -> bool:
    return work.status is Status.PROCESSING


def _due_at(work: Work) -> Instant:
    return max(work.due_at or work.created_at, work.created_at)


def _stage(work: Work, status: Status) -> str:
    if status is Status.COMPLETED:
        return "complete"
    if _was_running(work):
        return "requeued"
    if status is Status.FAILED and not work.step:
        return "error"
    return codec.clean(work.step, limit=limits.STAGE_LENGTH_MAX)


def _history(work: Work, status: Status) -> list[HistoryEvent]:
    """Return the events that the source tells of: the submit, the start of the last attempt, and its end."""
    first = Status.SCHEDULED if work.due_at is not None and work.due_at > work.created_at else Status.PENDING
    if status is Status.WAITING:
        first = Status.WAITING
    events = [HistoryEvent(1, work.created_at, Event.SUBMIT, None, first, 0, work.created_by)]
    if status in (Status.PENDING, Status.SCHEDULED, Status.WAITING):
        return events
    before = first
    if work.started_at is not None:
        before = Status.PROCESSING
        events.append(
            HistoryEvent(0, work.started_at, Event.CLAIM, Status.PENDING, before, work.attempt, work.worker_id)
        )
    at = work.ended_at or work.started_at or work.created_at
    match status:
        case Status.COMPLETED:
            last = HistoryEvent(0, at, Event.COMPLETE, Status.PROCESSING, status, work.attempt, work.worker_id)
        case Status.FAILED:
            last = HistoryEvent(0, at, Event.EXHAUST, Status.PROCESSING, status, work.attempt, work.worker_id)
        case Status.CANCELLED:
            last = HistoryEvent(0, at, Event.CANCEL, before, status, work.attempt, reason=_reason_of(work))
        case _:
            event = Event.RESCUE if _was_running(work) else Event.RETRY
            last = HistoryEvent(0, at, event, Status.PROCESSING, status, work.attempt, work.worker_id)
    return [*events, last]


def _reason_of(work: Work) -> str | None:
    return None if work.error is None else codec.clean(work.error.strip(), limit=limits.REASON_LENGTH_MAX)


def _numbered(events: list[HistoryEvent], version: int | None) -> tuple[HistoryEvent, ...]:
    """Number the events so that the last one made the job's version: what the source does not tell is in between."""
    last = max(version or 0, len(events))
    later = [
        msgspec.structs.replace(event, version=last - ago)
        for event, ago in zip(events[1:], range(len(events) - 2, -1, -1), strict=True)
    ]
    return (events[0], *later)


def _errors(work: Work) -> tuple[ErrorEntry, ...]:
    at = work.ended_at or work.started_at or work.created_at
    found = [] if work.error is None else [_error(work.error, max(1, work.failures - _was_running(work)), at)]
    if _was_running(work):
        message = f"it was running in {work.worker_id or 'a worker'} when it was imported"
        found.append(ErrorEntry(max(1, work.attempt), at, INTERRUPTED, message))
    return tuple(found)


def _error(said: str, attempt: int, at: Instant) -> ErrorEntry:
    trace, message = "", said.strip()
    if message.startswith("Traceback (most recent call last)"):
        trace, message = message, message.splitlines()[-1]
    match = _ERROR_TYPE.fullmatch(message)
    kind, message = (match[1], match[2]) if match is not None else ("Error", message)
    return ErrorEntry(
        attempt,
        at,
        kind.rpartition(".")[2][: limits.NAME_LENGTH_MAX],
        codec.clean(message),
        codec.clean(trace),
    )


def _last_error(work: Work, errors: tuple[ErrorEntry, ...]) -> str | None:
    """Return the last error in the words of the source; of a traceback, what it ends with."""
    if not errors:
        return None
    if _was_running(work) or work.error is None or errors[-1].traceback:
        return f"{errors[-1].type}: {errors[-1].message}"
    return codec.clean(work.error.strip())


def _tags(tags: Sequence[str]) -> str | None:
    if not tags:
        return None
    if len(tags) > limits.TAGS_MAX:
        raise Unmappable(f"it has more than {limits.TAGS_MAX} tags")
    return codec.to_json([codec.clean(tag, limit=limits.TAG_LENGTH_MAX) for tag in tags], "tags")


def _metrics(work: Work) -> str | None:
    if len(work.metrics) > limits.METRICS_MAX:
        raise Unmappable(f"it has more than {limits.METRICS_MAX} metrics")
    named = {codec.clean(name, limit=limits.NAME_LENGTH_MAX): value for name, value in work.metrics.items()}
    return codec.to_json(named, "metrics") if named else None


def _logs(work: Work) -> str | None:
    if not work.logs:
        return None
    kept = work.logs[-limits.LOG_ENTRIES_MAX :]
    return codec.to_json(
        [
            {
                "timestamp": str(each.get("timestamp", "")),
                "level": str(each.get("level", "INFO")),
                "message": codec.clean(str(each.get("message", "")))[: limits.LOG_MESSAGE_MAX],
            }
            for each in kept
        ],
        "logs",
    )


def _with_result(record: JobRecord, result: Any, files: Files | None) -> tuple[JobRecord, bytes | None]:
    if record.status is not Status.COMPLETED:  # as here: only a completed job has a result
        return record, None
    encoded = codec.result_json(result)
    content = encoded.encode()
    if len(content) <= limits.RESULT_INLINE_BYTES_MAX:
        return msgspec.structs.replace(record, result=encoded), None
    if files is None or len(content) > files.size_max:
        raise Unmappable("its result is larger than what can be stored")
    attempt = max(1, record.attempt)
    stored = StoredFile(
        files.uri(record.job_id, f"{attempt}/{RESULT_FILE}"),
        hashlib.sha256(content).hexdigest(),
        len(content),
        RESULT_FILE,
    )
    return msgspec.structs.replace(record, result_artifact=msgspec.json.encode(stored).decode()), content


def _reason(error: Exception) -> str:
    """Return why a job cannot be stored, without what differs from job to job."""
    match error:
        case PayloadTooLarge():
            return f"its payload is larger than {limits.PAYLOAD_BYTES_MAX:,} bytes"
        case ResultTooLarge():
            return "its result is larger than what can be stored"
        case InvalidOption(option=str(name)) if ": " in str(error):
            return f"{name}: {str(error).partition(': ')[2]}"
        case _:
            return str(error)
