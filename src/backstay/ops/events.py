"""Events that jobs wait for: send one to a job or to a correlation key, and list what a job has recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from backstay import codec, ids, limits
from backstay.clock import Clock, Moment, to_datetime
from backstay.core import payload_schema, waits
from backstay.core.checks import check_text
from backstay.core.port import Store
from backstay.core.records import JobRecord
from backstay.core.states import TERMINAL, Status
from backstay.core.waits import Delivery, EventWait, NewEvent, StepKind
from backstay.errors import EventRefused, EventsFull, InvalidEvent, InvalidOption, InvalidPayload, JobNotFound
from backstay.ops.audit import Actor, audited
from backstay.ops.edit import record_of

SHOWN_MAX = 200  # characters of a value that are shown where a line is all there is


class SentEvent(msgspec.Struct, frozen=True):
    """An event that was sent. `delivery` is "recorded" with a job, "kept" with its key until a job waits for it, or
    "repeated": an event with this id had been sent before, and nothing has changed."""

    event_id: str
    name: str
    delivery: Delivery
    job_id: str | None = None
    key: str | None = None

    @property
    def repeated(self) -> bool:
        """Whether an event with this id had been sent before."""
        return self.delivery is Delivery.REPEATED


class StepEntry(msgspec.Struct, frozen=True):
    """One thing that a job has recorded: a step, a sleep, a wait for an event, an event that a wait received, or one
    that was sent and that no wait has received yet."""

    kind: StepKind
    name: str
    attempt: int
    at: Moment
    value: msgspec.Raw  # of a step, its answer; of an event, its payload
    until: Moment | None = None  # of a sleep, and of a wait with a timeout
    event: str | None = None  # the name of the event that a wait is for, or of one that was sent
    event_id: str | None = None
    key: str | None = None  # the correlation key that a wait listens to
    timed_out: bool = False


def says(step: StepEntry) -> str:
    """Return a recorded step in words, without its name."""
    value = bytes(step.value).decode()
    shown = value if len(value) <= SHOWN_MAX else f"{value[:SHOWN_MAX]}…"
    end = None if step.until is None else f"{step.until:%Y-%m-%d %H:%M:%S} UTC"
    match step.kind:
        case StepKind.SLEEP:
            return f"until {end}"
        case StepKind.WAIT:
            of = "" if step.key is None else f" of the key {step.key}"
            return f"waiting for the event {step.event}{of}" + ("" if end is None else f", until {end} at the latest")
        case StepKind.EVENT if step.timed_out:
            return "timed out"
        case StepKind.SENT:
            return f"{shown} (not received yet)"
        case _:
            return shown


async def send_event(
    store: Store,
    clock: Clock,
    actor: Actor,
    job_id: str | None,
    name: str,
    payload: Any,
    *,
    key: str | None,
    event_id: str | None,
) -> SentEvent:
    if (job_id is None) == (key is None):
        raise InvalidOption("send_event: name either a job or key=…")
    if not isinstance(name, str) or not name:
        raise InvalidOption("send_event: give the name of the event, as in ctx.wait_for_event(name)")
    check_text("name", name, limits.NAME_LENGTH_MAX)
    check_text("key", key, limits.KEY_LENGTH_MAX)
    check_text("event_id", event_id, limits.NAME_LENGTH_MAX)
    text = _encoded(name, payload)
    found = event_id or ids.new_id(clock.now())
    target = f"key {key}" if job_id is None else job_id
    async with audited(store, clock, actor, "event.send", target, {"name": name, "event_id": found}) as change:
        if job_id is not None:
            record = await record_of(store, job_id)
            job_id = change.target = record.job_id
            _check_fit(record, name, text)
        event = NewEvent(found, name, text, job_id, key, actor.by)
        [delivery] = await store.send([event], clock.now())
        _raise_refused(delivery, event)
        change.after = {"delivery": delivery.value}
    return SentEvent(found, name, delivery, job_id, key)


def _encoded(name: str, payload: Any) -> str:
    try:
        text = codec.to_json(payload, f"payload of event {name!r}")
    except InvalidPayload as error:
        raise InvalidEvent(str(error)) from None
    if (size := len(text.encode())) > limits.EVENT_BYTES_MAX:
        raise InvalidEvent(
            f"the payload of event {name!r} has {size:,} bytes; the limit is {limits.EVENT_BYTES_MAX:,}"
            " (EVENT_BYTES_MAX): store the data elsewhere and send its name"
        )
    return text


def _check_fit(record: JobRecord, name: str, text: str) -> None:
    """Refuse a payload that the wait which the job is at would not accept."""
    wait = event_wait(record)
    if wait is None or wait.key is not None or wait.name != name or wait.schema is None:
        return
    if problems := payload_schema.misfits(wait.schema, msgspec.json.decode(text)):
        shown = "; ".join(f"{'.'.join(map(str, place)) or 'payload'}: {says}" for place, says in problems[:5])
        raise InvalidEvent(f"job {record.job_id} waits for an event {name!r} of another form: {shown}")


def _raise_refused(delivery: Delivery, event: NewEvent) -> None:
    match delivery:
        case Delivery.GONE:
            raise JobNotFound(f"no job {event.job_id}")
        case Delivery.ENDED:
            raise EventRefused(f"job {event.job_id} has ended: it receives no events; retry it first")
        case Delivery.FULL if event.key is not None:
            raise EventsFull(
                f"the key {event.key!r} keeps {limits.EVENTS_KEPT_MAX} events that no job waits for"
                " (EVENTS_KEPT_MAX, EVENTS_KEPT_BYTES_MAX): is the key right?"
            )
        case Delivery.FULL:
            raise EventsFull(
                f"job {event.job_id} was sent {limits.JOB_EVENTS_MAX:,} events (JOB_EVENTS_MAX): send what comes often"
                " to a job of its own"
            )


def event_wait(record: JobRecord) -> EventWait | None:
    """Return what event a job waits for."""
    if record.status is not Status.WAITING or record.awaits is None:
        return None
    found = waits.awaits_of(record.awaits)
    return found if isinstance(found, EventWait) else None


async def steps(store: Store, job_id: str) -> list[StepEntry]:
    """Return what a job has recorded, in that order, up to STEPS_MAX entries."""
    record = await record_of(store, job_id)
    found = await store.steps(record.job_id, limits.STEPS_MAX)
    return list(_entries(waits.as_listed(found), record.status not in TERMINAL))


def _entries(listed: list[waits.Step], is_active: bool) -> Iterator[StepEntry]:
    for each in listed:
        at = to_datetime(each.recorded_at)
        entry = StepEntry(each.kind, each.name, each.attempt, at, msgspec.Raw(b"null"))
        match each.kind:
            case StepKind.SLEEP:
                until = to_datetime(waits.sleep_of(each.answer).until)
                yield msgspec.structs.replace(entry, until=until)
            case StepKind.WAIT:
                if is_active:
                    wait = EventWait.of(each.answer)
                    end = None if wait.until is None else to_datetime(wait.until)
                    yield msgspec.structs.replace(entry, until=end, event=wait.name, key=wait.key)
            case StepKind.EVENT:
                ending = waits.ending_of(each.answer)
                yield msgspec.structs.replace(
                    entry,
                    value=msgspec.Raw(ending.payload.encode()),
                    event_id=ending.event_id,
                    timed_out=ending.event_id is None,
                )
            case StepKind.SENT:
                sent = waits.sent_of(each.answer)
                yield msgspec.structs.replace(
                    entry,
                    name=sent.name,
                    value=msgspec.Raw(sent.payload.encode()),
                    event=sent.name,
                    event_id=each.name,
                    key=sent.key,
                )
            case _:
                yield msgspec.structs.replace(entry, value=msgspec.Raw(each.answer.encode()))
