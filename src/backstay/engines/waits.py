"""What an event or a timeout means for a job that waits, on the engines that keep jobs in places. Pure."""

from __future__ import annotations

from backstay.clock import Instant
from backstay.core.event_details import Received
from backstay.core.states import Event, Status
from backstay.core.waits import EventWait, Sent, awaits_of, fits
from backstay.engines.places import Move, Standing, move


def event_wait(job: Standing) -> EventWait | None:
    """Return what event a job waits for."""
    found = None if job.awaits is None else awaits_of(job.awaits)
    return found if isinstance(found, EventWait) else None


def after_event(job: Standing, event_id: str, sent: Sent, now: Instant) -> Move | None:
    """Return the move of a job that was sent an event; None if it does not wait for it."""
    wait = event_wait(job)
    if wait is None or not fits(wait, sent):
        return None
    return move(job, Status.PENDING, Event.RELEASE, now, details=Received(sent.name, event_id), scheduled_for=now)


def after_missed_event(job: Standing, now: Instant) -> Move:
    """Return the move of a job that began to wait when an event had come that it had not seen."""
    wait = event_wait(job)
    details = None if wait is None else Received(wait.name)
    return move(job, Status.PENDING, Event.RELEASE, now, details=details, scheduled_for=now)


def after_timeout(job: Standing, now: Instant) -> Move | None:
    """Return the move of a job whose wait has timed out; None if it waits on. It was due at the timeout, by which its
    next attempt knows that it is over, whatever the clock of its worker."""
    wait = event_wait(job)
    if wait is None or wait.until is None or wait.until > now:
        return None
    return move(job, Status.PENDING, Event.DUE, now, scheduled_for=wait.until)
