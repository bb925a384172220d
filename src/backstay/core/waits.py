"""Durable waits: what a job records to continue after a sleep or an event, and who receives an event. Pure.

A handler that waits ends its attempt and is entered again from the top. What it got past is recorded under a name: the
answer of a step, the end of a sleep, an event that it received. An event is sent to a job, where it is recorded until
a wait takes it; only the holder of the job's claim takes one. An event that is sent to a correlation key goes to the
wait that has listened longest, or is kept until one listens: `Mailbox` is what is stored of a key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

import msgspec

from backstay.clock import MICROS, Instant
from backstay.core.dependencies import Awaits
from backstay.limits import (
    EVENT_IDS_KEPT_MAX,
    EVENTS_KEPT_BYTES_MAX,
    EVENTS_KEPT_DAYS,
    EVENTS_KEPT_MAX,
    LISTENERS_MAX,
)


class StepKind(StrEnum):
    """What a recorded step is. A name belongs to one kind: a sleep and a step may have the same."""

    STEP = "step"  # the answer of ctx.step
    SLEEP = "sleep"  # until when it sleeps, see Sleep
    WAIT = "wait"  # what it waits for, and until when, see EventWait
    EVENT = "event"  # how that wait ended, see Outcome
    SENT = "sent"  # an event that was sent to the job, by the event's id, see Sent
    OWN = "own"  # what the worker records for itself; `forget_steps` keeps it


# Those that users see; of several with the same time, in this order.
SHOWN = (StepKind.STEP, StepKind.EVENT, StepKind.SLEEP, StepKind.WAIT, StepKind.SENT)


class Step(msgspec.Struct, frozen=True):
    """One recorded step of a job. `answer` is JSON text."""

    kind: StepKind
    name: str
    answer: str
    attempt: int
    recorded_at: Instant


class Sleep(msgspec.Struct, frozen=True):
    until: Instant


class EventWait(msgspec.Struct, frozen=True, tag_field="for", tag="event"):
    """What a job waits for: the event `name`, sent to the job or to a correlation key. `wait` is the name of the wait,
    which tells several for the same event apart."""

    name: str
    wait: str
    since: Instant
    key: str | None = None
    until: Instant | None = None
    schema: str | None = None  # JSON Schema of the payload, if the handler has declared a type

    @property
    def stored(self) -> str:
        """The same as JSON text, as it is stored."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def of(stored: str) -> EventWait:
        return _wait.decode(stored)


class NewEvent(msgspec.Struct, frozen=True):
    """An event to send, to a job or to a key."""

    event_id: str
    name: str
    payload: str  # JSON text
    job_id: str | None = None
    key: str | None = None
    by: str | None = None


class Sent(msgspec.Struct, frozen=True):
    """An event as it is recorded with the job to which it was sent or delivered."""

    name: str
    payload: str
    sent_at: Instant
    key: str | None = None
    by: str | None = None


class Ending(msgspec.Struct, frozen=True):
    """How a wait ended: with an event, or after its time."""

    event_id: str | None = None  # None: timed out
    payload: str = "null"
    sent_at: Instant | None = None
    by: str | None = None


class Delivery(StrEnum):
    """Where an event that was sent has gone."""

    RECORDED = "recorded"  # with a job; if it waits for the event, it is pending now
    KEPT = "kept"  # with the key, until a wait listens to it
    REPEATED = "repeated"  # an event with this id was sent before: nothing has changed
    GONE = "gone"  # no such job
    ENDED = "ended"  # the job has ended
    FULL = "full"  # the job or the key has as many events as it may


class Inbox(msgspec.Struct, frozen=True):
    """The events of a job: those that were sent to it, oldest first, and the endings of its waits. `seen` is how many
    have ever been sent, as the engine counts them: a wait starts only while that is still so."""

    sent: tuple[Step, ...]
    endings: tuple[Step, ...]
    seen: int


_wait = msgspec.json.Decoder(EventWait)
_awaits = msgspec.json.Decoder(Awaits | EventWait)
_sent = msgspec.json.Decoder(Sent)
_ending = msgspec.json.Decoder(Ending)
_sleep = msgspec.json.Decoder(Sleep)


def awaits_of(stored: str) -> Awaits | EventWait:
    """Return what a job waits for other than its dependencies, from the text that is stored."""
    found: Awaits | EventWait = _awaits.decode(stored)
    return found


def wakes_at(stored: str | None) -> Instant | None:
    """Return when a waiting job is due although nothing has come; None: never."""
    found = None if stored is None else awaits_of(stored)
    return found.until if isinstance(found, EventWait) else None


def encoded(answer: Sleep | EventWait | Sent | Ending) -> str:
    return msgspec.json.encode(answer).decode()


def sleep_of(answer: str) -> Sleep:
    return _sleep.decode(answer)


def sent_of(answer: str) -> Sent:
    return _sent.decode(answer)


def ending_of(answer: str) -> Ending:
    return _ending.decode(answer)


def inbox(steps: Iterable[Step], seen: int) -> Inbox:
    """Return the events of a job from its recorded steps, in the order in which they were sent."""
    found = list(steps)
    sent = sorted(
        (each for each in found if each.kind is StepKind.SENT), key=lambda each: (each.recorded_at, each.name)
    )
    return Inbox(tuple(sent), tuple(each for each in found if each.kind is StepKind.EVENT), seen)


def next_event(inbox: Inbox, wait: EventWait) -> tuple[str, Sent] | None:
    """Return the oldest event that fits the wait and that no wait has received, with its id."""
    taken = {ending_of(each.answer).event_id for each in inbox.endings}
    for each in inbox.sent:
        if each.name in taken:
            continue
        sent = sent_of(each.answer)
        if (sent.name, sent.key) == (wait.name, wait.key):
            return each.name, sent
    return None


def fits(wait: EventWait, sent: Sent) -> bool:
    """Return whether a job that waits like this continues when it is sent this event."""
    return (wait.name, wait.key) == (sent.name, sent.key)


def nth(counts: dict[tuple[StepKind, str], int], kind: StepKind, name: str) -> str:
    """Return the name under which a wait is recorded: the second of a name in one run is another wait."""
    number = counts[kind, name] = counts.get((kind, name), 0) + 1
    return name if number == 1 else f"{name} ({number})"


def is_over(until: Instant, now: Instant, scheduled_for: Instant) -> bool:
    """Return whether a sleep or a timeout is over for a job that was claimed when it was due at `scheduled_for`. The
    process that found it due may have a clock that is ahead of this one: the job does not sleep again for that."""
    return now >= until or scheduled_for >= until


def as_listed(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that users see, in the order in which they were recorded: without those of the worker, without
    waits that have ended, and without events that a wait has received."""
    ended = {each.name for each in steps if each.kind is StepKind.EVENT}
    taken = {ending_of(each.answer).event_id for each in steps if each.kind is StepKind.EVENT}
    listed = [
        each
        for each in steps
        if each.kind is not StepKind.OWN
        and not (each.kind is StepKind.WAIT and each.name in ended)
        and not (each.kind is StepKind.SENT and each.name in taken)
    ]
    return sorted(listed, key=lambda each: (each.recorded_at, SHOWN.index(each.kind), each.name))


# Correlation keys


class Listener(msgspec.Struct, frozen=True, array_like=True):
    """A wait that listens to a key."""

    name: str
    job_id: str
    wait: str


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """An event that no wait has listened for yet."""

    event_id: str
    name: str
    payload: str
    sent_at: Instant
    by: str | None = None

    def sent(self, key: str) -> Sent:
        return Sent(self.name, self.payload, self.sent_at, key, self.by)


class Mailbox(msgspec.Struct, frozen=True):
    """What is stored of a correlation key: who listens, events that are kept, and the ids of the last events sent."""

    listeners: tuple[Listener, ...] = ()
    kept: tuple[Kept, ...] = ()
    ids: tuple[str, ...] = ()

    @property
    def stored(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def of(stored: str | None) -> Mailbox:
        return Mailbox() if stored is None else _mailbox.decode(stored)

    @property
    def is_empty(self) -> bool:
        return not (self.listeners or self.kept or self.ids)

    def listeners_of(self, name: str) -> list[Listener]:
        """Return who listens for an event, the first to come first."""
        return [each for each in self.listeners if each.name == name]

    def knows(self, event_id: str) -> bool:
        return event_id in self.ids

    def delivered(self, event_id: str, to: Listener, gone: Collection[Listener] = ()) -> Mailbox:
        """Return the mailbox after an event went to a wait. `gone`: waits that turned out to be no more."""
        left = tuple(each for each in self.listeners if each != to and each not in gone)
        return msgspec.structs.replace(self, listeners=left, ids=_last_ids(self.ids, event_id))

    def keeping(self, event: NewEvent, now: Instant, gone: Collection[Listener] = ()) -> Mailbox | None:
        """Return the mailbox with an event that no one listens for; None if it is full."""
        one = Kept(event.event_id, event.name, event.payload, now, event.by)
        kept = (*(each for each in self.kept if not _is_old(each, now)), one)
        if len(kept) > EVENTS_KEPT_MAX or sum(len(each.payload.encode()) for each in kept) > EVENTS_KEPT_BYTES_MAX:
            return None
        left = tuple(each for each in self.listeners if each not in gone)
        return Mailbox(left, kept, _last_ids(self.ids, event.event_id))

    def listening(self, listener: Listener, now: Instant) -> tuple[Mailbox, Kept | None]:
        """Return the mailbox with a wait that listens, or without the event that it gets at once. A repeat changes
        nothing."""
        for each in self.kept:
            if each.name == listener.name and not _is_old(each, now):
                left = tuple(other for other in self.kept if other is not each)
                return msgspec.structs.replace(self.without(listener), kept=left), each
        if listener in self.listeners:
            return self, None
        return msgspec.structs.replace(self, listeners=(*self.listeners, listener)), None

    @property
    def is_crowded(self) -> bool:
        """Return whether more waits listen than may."""
        return len(self.listeners) > LISTENERS_MAX

    def pruned(self, active: Collection[str], now: Instant) -> Mailbox:
        """Return the mailbox without old events, and without the waits of jobs that are not active."""
        listeners = tuple(each for each in self.listeners if each.job_id in active)
        return Mailbox(listeners, tuple(each for each in self.kept if not _is_old(each, now)))

    def without(self, listener: Listener) -> Mailbox:
        left = tuple(each for each in self.listeners if each != listener)
        return msgspec.structs.replace(self, listeners=left)


_mailbox = msgspec.json.Decoder(Mailbox)
KEPT_MICROS = round(EVENTS_KEPT_DAYS * 24 * 3600 * MICROS)


def _is_old(kept: Kept, now: Instant) -> bool:
    return now - kept.sent_at > KEPT_MICROS


def _last_ids(ids: tuple[str, ...], event_id: str) -> tuple[str, ...]:
    return (*ids, event_id)[-EVENT_IDS_KEPT_MAX:]
