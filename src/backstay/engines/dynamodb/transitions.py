"""Every change of a job as a pure function of its DynamoDB item, with its guards.

A transition returns the item as it should be, and what must hold for it to be right. `version` grows with every change
of state and is compared by every write; `rests_on` names what may change without it and was read to decide. What notes
may have changed since the item was read, and the transition sets all the same, is unknown in `was`, so that it is
written whatever was remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from backstay.clock import Instant
from backstay.core import event_details
from backstay.core.dependencies import Awaits, Brood, TriggerRule
from backstay.core.dependencies import joined as joined_to
from backstay.core.dependencies import moved as brood_of_move
from backstay.core.dependencies import released as released_to
from backstay.core.event_details import Dependency, EventDetails, Received
from backstay.core.records import (
    CHILD_FAILED,
    DEPENDENCY_FAILED,
    ClaimRequest,
    ErrorEntry,
    HistoryEvent,
    Revision,
    Transition,
    Verdict,
)
from backstay.core.states import TERMINAL, Counted, Event, Status, counted
from backstay.core.waits import EventWait, Sent, awaits_of, fits
from backstay.engines.dynamodb import history
from backstay.engines.dynamodb.expressions import Condition, Write, above, change, unchanged
from backstay.engines.dynamodb.schema import Item
from backstay.limits import ERRORS_KEPT_MAX, HISTORY_SLACK

NUMBERS = ("open", "bad", "left")  # counts of a parent, which its children change without a version
_NOTED = ("progress", "stage", "logs", "log_location", "metrics", "artifacts")
_COUNTS = ("failures", "snoozes", "give_backs", "waits", "suspicion")  # left out if they are 0
_RESULT = ("result", "result_body", "result_artifact", "rows_of", "rows_attempt")
_NONE = Brood()
_UNKNOWN: Final = object()  # equals nothing that an item can hold

_errors = msgspec.json.Decoder(list[ErrorEntry])


class Moved(msgspec.Struct, frozen=True):
    """The result of a change of an item. `item is was` means that there is nothing to write."""

    was: Item
    item: Item
    rests_on: tuple[str, ...] = ()
    counted: Counted | None = None
    ended: bool = False
    freed: bool = False  # it left `processing`: the gates remove it from their holders
    saved_micros: int | None = None  # if it reuses a result: the run time saved
    only_if: Condition | None = None  # other conditions

    @property
    def brood(self) -> Brood:
        """The change of its parent's counts."""
        return brood_of_move(status_of(self.was), status_of(self.item))


def written(moved: Moved) -> Write:
    """Return the change as a write, conditional on everything that the decision used."""
    also = unchanged(moved.was, *moved.rests_on) if moved.rests_on else None
    if moved.only_if is not None:
        also = moved.only_if if also is None else also & moved.only_if
    return change(moved.was, moved.item, also=also)


def is_there(item: Item | None) -> bool:
    """Return whether this is a job, and not the archived form, which has the same id."""
    return item is not None and "archived_at" not in item


class _Archived(msgspec.Struct):
    attempt: int = 0
    version: int = 1


_archived = msgspec.json.Decoder(_Archived)


def attempt_of(item: Item | None) -> int | None:
    """Return the attempt of a job, or its last one if it is archived."""
    if item is None:
        return None
    return int(item.get("attempt", 0)) if is_there(item) else _archived.decode(item["details"]).attempt


def version_of(item: Item) -> int:
    """Return the version of a job, or its last one if it is archived."""
    return int(item["version"]) if is_there(item) else _archived.decode(item["details"]).version


def has_rows_of(item: Item, owner: Item | None) -> bool:
    """Return whether the rows of a job still exist: its own always do, those of another job only until that runs
    again."""
    return attempt_of(owner) == int(item["rows_attempt"])


def status_of(item: Item) -> Status:
    """Return the status of a job, archived or not."""
    return Status(item["ended"] if "archived_at" in item else item["status"])


# Transitions


def applied(item: Item | None, t: Transition, now: Instant, wid: str, brings: Brood = _NONE) -> Moved | Verdict:
    """Return the item after `t`, or the verdict if its guards do not hold. `brings`: what children stored in the same
    commit add to its counts."""
    if item is None or not is_there(item):
        return Verdict.GONE
    if not _guards_hold(item, t):
        return Verdict.APPLIED if _is_in(item, t) else Verdict.STALE
    new, was = dict(item), dict(item)
    ends = t.target in TERMINAL
    stays_in_line = t.source is t.target is Status.PENDING
    rests_on = []
    _move(
        new, t.event, t.source, t.target, now, wid, by=t.by, reason=t.reason, details=t.details,
        forget_steps=t.forget_steps,
    )  # fmt: skip
    if t.target is Status.PROCESSING:
        rests_on.append("lease_expires_at")
    else:
        new.pop("lease_expires_at", None)
        if t.token is None:
            new.pop("claim_token", None)
    if t.lease is not None:
        rests_on.append("lease_expires_at")
    if stays_in_line:
        rests_on.append("parked")
    else:
        new.pop("parked", None)
    if t.target is not Status.WAITING:
        for name in ("unmet", "linking", *_AWAITED):
            new.pop(name, None)
    if ends:
        rests_on.append("awaited")
    if t.target is Status.COMPLETED and ("subject" in item or "awaited" in item):
        rests_on.append("tables")  # tables that rows were written to since it was remembered
    if t.event is Event.MANUAL_RETRY:
        rests_on.append("frozen")
        new.pop("join", None)
    for name, value in (("priority", t.priority), ("scheduled_for", t.scheduled_for)):
        if value is not None:
            new[name] = value
    if t.revision is not None:
        _revise(new, t.revision)
    for name in _COUNTS:
        _set_unless_zero(new, name, getattr(t, name))
    for name in _NOTED:
        value = getattr(t, name)
        if value is not None:
            was[name] = _UNKNOWN
            _set_unless_zero(new, name, value)
    if t.artifacts is not None:
        new.pop("artifacts_body", None)
    if t.clear_result:
        for name in (*_RESULT, "joins", "reused_from", "took"):
            new.pop(name, None)
    else:
        _give_result(new, t.result, t.result_artifact)
    if t.error is not None:
        new["last_error"], new["error_type"] = f"{t.error.type}: {t.error.message}", t.error.type
        if t.event is Event.RESCUE:
            new["lost_at"] = t.error.at
        else:
            new.pop("lost_at", None)
        kept = [*(_errors.decode(item["errors"]) if "errors" in item else ()), t.error][-ERRORS_KEPT_MAX:]
        new["errors"] = msgspec.json.encode(kept).decode()
    freed = t.source is Status.PROCESSING and t.target is not Status.PROCESSING
    moved = Moved(was, new, tuple(dict.fromkeys(rests_on)), counted(t.event, t.target), ends, freed)
    if isinstance(t.awaits, EventWait):
        return _awaiting_event(moved, t.awaits, t, now, wid)
    return _awaiting(moved, t, brings, now, wid) if t.event is Event.WAIT_FOR_CHILDREN else moved


def _revise(new: Item, revision: Revision) -> None:
    """Give a job that waits what it is to have in place of what was submitted."""
    new.pop("body", None)
    new["payload"] = revision.payload
    for name, value, usual in (
        ("payload_version", revision.payload_version, 1),
        ("expires_at", revision.expires_at, None),
    ):
        if value == usual:
            new.pop(name, None)
        else:
            new[name] = value


def _awaiting(moved: Moved, t: Transition, brings: Brood, now: Instant, wid: str) -> Moved:
    """Return the job as waiting for its children; if none is open, decide at once. Remembered counts may be outdated,
    and with many children they change constantly: a wait only requires that one is open."""
    new = moved.item
    if t.awaits is None:
        return moved
    new["awaits"] = t.awaits.stored
    if t.join is None:
        new.pop("join", None)
    else:
        new["join"] = t.join
    stands = brood_of(moved.was) + brings
    if brings.open > 0:
        return moved
    if stands.open > 0:
        return msgspec.structs.replace(moved, only_if=above("open", 0))
    target = _go_on(new, stands, now, wid)
    ends = target in TERMINAL
    rests_on = (*moved.rests_on, *NUMBERS, *(("awaited",) if ends else ()))
    return msgspec.structs.replace(moved, rests_on=rests_on, counted=counted(Event.RELEASE, target), ended=ends)


_AWAITED = ("awaits", "for_event", "wakes_at")


def for_event(wait: EventWait) -> Item:
    """Return the attributes of a job that waits for an event."""
    return {"awaits": wait.stored, "for_event": 1} | ({} if wait.until is None else {"wakes_at": wait.until})


def _awaiting_event(moved: Moved, wait: EventWait, t: Transition, now: Instant, wid: str) -> Moved:
    """Return the job as waiting for an event; it resumes at once if more events were sent to it than it has seen."""
    new = moved.item
    if t.join is None:
        new.pop("join", None)
    else:
        new["join"] = t.join
    new.update(for_event(wait))
    if t.seen is not None and moved.was.get("mail", 0) != t.seen:
        _resume(new, Received(wait.name), now, wid)
    return msgspec.structs.replace(moved, rests_on=(*moved.rests_on, "mail"))


def event_wait(item: Item) -> EventWait | None:
    """Return what event a job waits for."""
    if not is_there(item) or item["status"] != Status.WAITING or "for_event" not in item:
        return None
    found = awaits_of(item["awaits"])
    return found if isinstance(found, EventWait) else None


def sent(item: Item, event_id: str, event: Sent, now: Instant, wid: str) -> Moved | None:
    """Return a job as it resumes because of an event that is recorded with it; None if it does not wait for it."""
    wait = event_wait(item)
    if wait is None or not fits(wait, event):
        return None
    new = {**item, "mail": item.get("mail", 0) + 1}
    _resume(new, Received(event.name, event_id), now, wid)
    return Moved(item, new, ("mail",))


def _resume(new: Item, details: EventDetails, now: Instant, wid: str) -> None:
    for name in _AWAITED:
        new.pop(name, None)
    _move(new, Event.RELEASE, Status.WAITING, Status.PENDING, now, wid, details=details)
    new["scheduled_for"] = now


def _guards_hold(item: Item, t: Transition) -> bool:
    return (
        item["status"] == t.source
        and item.get("attempt", 0) == t.attempt
        and (t.version is None or item["version"] == t.version)
        and (t.token is None or item.get("claim_token") == t.token)
        and (t.lease is None or item.get("lease_expires_at") == t.lease)
        and not (t.event is Event.MANUAL_RETRY and "frozen" in item)  # it is being archived
    )


def _is_in(item: Item, t: Transition) -> bool:
    """Return whether an earlier try of this write was applied. The token is kept only by its holder's own settlement;
    history tells whether that was this one."""
    ours = t.token is not None and item.get("claim_token") == t.token and item.get("attempt", 0) == t.attempt
    if not ours or item["status"] == Status.PROCESSING:
        return False
    return history.is_on_record(item["history"], t)


# Changes that the engine decides


def claimed(item: Item, request: ClaimRequest, now: Instant, wid: str, *, gated: bool = False) -> Item:
    """Return the job as claimed. `gated`: it is counted among the running ones of its type."""
    new = dict(item)
    new["attempt"] = item.get("attempt", 0) + 1
    started = max(now, item["updated_at"])  # another host changed the job meanwhile, or by a clock that is ahead
    _move(new, Event.CLAIM, Status.PENDING, Status.PROCESSING, started, wid, by=request.worker_id)
    new["claim_token"] = request.token
    new["worker_id"], new["worker_version"] = request.worker_id, request.worker_version
    new["lease_expires_at"], new["started_at"] = now + request.lease_micros, started
    for name in ("progress", "stage", "parked", "gated"):
        new.pop(name, None)
    if gated:
        new["gated"] = True
    return new


def promoted(item: Item, now: Instant, wid: str) -> Item:
    new = dict(item)
    if event_wait(item) is not None:  # by its due time, the next attempt knows that the wait is over
        new["scheduled_for"] = item["wakes_at"]
        for name in _AWAITED:
            new.pop(name, None)
    _move(new, Event.DUE, Status(item["status"]), Status.PENDING, now, wid)
    return new


def parked(item: Item, by: str | None) -> Item:
    """Return the job as parked by its concurrency key ("c") or its rate ("r"), or claimable (None). Does not change the
    version."""
    new = dict(item)
    if by is None:
        new.pop("parked", None)
    else:
        new["parked"] = by
    return new


def waits_on_others(item: Item) -> bool:
    """Return whether it waits for dependencies. A job that waits for its children has been released by those
    already."""
    return is_there(item) and item["status"] == Status.WAITING and "awaits" not in item


def released(child: Item, parent: str, outcome: Status, donor: Item | None, now: Instant, wid: str) -> Moved:
    """Return the dependent after one of its dependencies has ended. `donor`: that job with its result, if the dependent
    joined it."""
    if not waits_on_others(child):
        return Moved(child, child)  # cancelled since, or started by the success of another dependency
    joined = child.get("joins") == parent
    if joined and outcome is Status.COMPLETED:
        moved = _let(child, Event.REUSE, Status.COMPLETED, f"identical job {parent} completed", now, wid)
        _reuse(moved.item, parent, donor or {})
        return msgspec.structs.replace(moved, saved_micros=took(donor or {}))
    # A job that joined an identical one runs by itself if that one did not complete.
    return _counted_down(child, None if joined else outcome, Dependency(parent, outcome), now, wid)


def let_go(child: Item, now: Instant, wid: str) -> Moved:
    """Return the dependent once all its edges are registered: it was stored with one dependency more than it has."""
    if not waits_on_others(child) or "linking" not in child:
        return Moved(child, child)
    moved = _counted_down(child, None, "all its dependencies have ended", now, wid)
    moved.item.pop("linking", None)
    return moved


def broken(child: Item, parent: str, outcome: Status, target: Status, now: Instant, wid: str) -> Moved:
    """Return a new job that ends at once, because of a dependency that had ended before."""
    return _let(child, Event.RELEASE, target, Dependency(parent, outcome), now, wid)


def _counted_down(child: Item, outcome: Status | None, because: Dependency | str, now: Instant, wid: str) -> Moved:
    unmet = child.get("unmet", 0) - 1
    target = released_to(
        rule=TriggerRule(child.get("rule", TriggerRule.ALL_SUCCESS)),
        outcome=outcome,
        unmet=unmet,
        on_failure=child.get("on_dependency_failure", "cancel"),
        scheduled_for=child["scheduled_for"],
        now=now,
    )
    if target is None:
        return Moved(child, {**child, "unmet": unmet, "wid": wid}, ("unmet",))
    return _let(child, Event.RELEASE, target, because, now, wid)


def _let(child: Item, event: Event, target: Status, because: Dependency | str, now: Instant, wid: str) -> Moved:
    """Return the job as it leaves `waiting`: because of a dependency, or for a reason in words."""
    new = dict(child)
    details, reason = (None, because) if isinstance(because, str) else (because, event_details.text(because))
    _move(new, event, Status.WAITING, target, now, wid, reason=None if details else reason, details=details)
    for name in ("unmet", "linking", "joins", *_RESULT):
        new.pop(name, None)
    if "joins" in child:
        new.pop("reused_from", None)
    if target is Status.FAILED:
        _end_by_others(new, DEPENDENCY_FAILED, reason)
    ends = target in TERMINAL
    return Moved(child, new, ("unmet", "awaited") if ends else ("unmet",), counted(event, target), ends)


# Parents


def brood_of(item: Item) -> Brood:
    return Brood(item.get("children", 0), item.get("open", 0), item.get("bad", 0), item.get("left", 0))


def added(brood: Brood) -> dict[str, int]:
    """Return a parent's item with changed child counts."""
    numbers = {"children": brood.children, "open": brood.open, "bad": brood.failed, "left": brood.cancelled}
    return {name: number for name, number in numbers.items() if number}


def awaits(item: Item) -> Awaits | None:
    """Return what a parent waits for; None if it does not wait for its children."""
    stored = item.get("awaits")
    return None if stored is None or "for_event" in item or not is_there(item) else Awaits.of(stored)


def joined(parent: Item, brood: Brood, now: Instant, wid: str) -> Moved | None:
    """Return the parent after its child counts changed by `brood`, if that resumes or ends it; otherwise None."""
    waits_for = awaits(parent)
    stands = brood_of(parent) + brood
    if waits_for is None or joined_to(waits_for, stands) is None:
        return None
    new = {**parent, "open": stands.open, "bad": stands.failed, "left": stands.cancelled}
    target = _go_on(new, stands, now, wid)
    ends = target in TERMINAL
    rests_on = (*NUMBERS, "awaited") if ends else NUMBERS
    return Moved(parent, new, rests_on, counted(Event.RELEASE, target), ends)


def _go_on(new: Item, stands: Brood, now: Instant, wid: str) -> Status:
    """Return a parent without open children as it leaves `waiting`."""
    waits_for = Awaits.of(new.pop("awaits"))
    target = joined_to(waits_for, stands)
    if target is None:
        raise ValueError(f"{stands.open} children of {new['job_id']} are open")
    reason = str(stands)
    _move(new, Event.RELEASE, Status.WAITING, target, now, wid, reason=reason)
    if target is Status.FAILED:
        _end_by_others(new, CHILD_FAILED, reason)
    elif target is Status.PENDING:
        new["scheduled_for"] = now  # the run time of its children does not count as waiting time
    return target


# Reuse


def took(donor: Mapping[str, Any]) -> int:
    """Return the run time of a reused result: that of the donor, or of the job that the donor reused."""
    started, ended = donor.get("started_at"), donor.get("completed_at")
    own = 0 if started is None or ended is None else max(0, ended - started)
    return int(donor.get("took", own))


def reused(item: Item, donor: Item, now: Instant) -> Item:
    """Return a new job that is completed at once with the result of an identical one."""
    new = dict(item)
    new["completed_at"] = now
    _reuse(new, donor["job_id"], donor)
    return new


def _reuse(new: Item, donor_id: str, donor: Mapping[str, Any]) -> None:
    # A donor that itself reused a result passes on its own donor, so that a chain is always one step long.
    new["reused_from"] = donor.get("reused_from", donor_id)
    new["took"] = took(donor)
    new["progress"], new["stage"] = 1.0, "complete"
    if "tables" in donor:
        new["tables"] = donor["tables"]
        new["rows_of"] = donor.get("rows_of", donor_id)
        new["rows_attempt"] = donor.get("rows_attempt", donor.get("attempt", 0))
    new.pop("metrics", None)
    for name in ("result", "result_artifact", "metrics"):
        if name in donor:
            new[name] = donor[name]


# Common to all changes


def _move(
    new: Item,
    event: Event,
    source: Status,
    target: Status,
    now: Instant,
    wid: str,
    *,
    by: str | None = None,
    reason: str | None = None,
    details: EventDetails | None = None,
    forget_steps: bool = False,
) -> None:
    version = new["version"]
    past = history.trim(new["history"]) if version % HISTORY_SLACK == HISTORY_SLACK - 1 else new["history"]
    step = HistoryEvent(
        version + 1, now, event, source, target, new.get("attempt", 0), by, reason, forget_steps, details
    )
    new["history"] = f"{past}\n{history.line(step)}"
    new["version"], new["status"], new["updated_at"], new["wid"] = version + 1, target.value, now, wid
    if target in TERMINAL:
        new["completed_at"] = now
    else:
        new.pop("completed_at", None)
    if target in TERMINAL or target is Status.PROCESSING:
        new.pop("expires_at", None)


def _end_by_others(new: Item, error_type: str, message: str) -> None:
    """Give a job that failed without an attempt its error."""
    new["last_error"], new["error_type"], new["stage"] = f"{error_type}: {message}", error_type, "error"
    new.pop("lost_at", None)


def _give_result(new: Item, result: str | None, artifact: str | None) -> None:
    if result is not None:
        new.pop("result_body", None)
        new["result"] = result
    if artifact is not None:
        new["result_artifact"] = artifact


def _set_unless_zero(new: Item, name: str, value: float | str | None) -> None:
    """Set a number; None keeps what is stored, and 0 is left out."""
    if value is None:
        return
    if value:
        new[name] = value
    else:
        new.pop(name, None)
