"""Every change of a job as a function of its item: guards are judged here, and nothing is read or written. Pure.

A move answers with the item as it should be, and with what has to stand for the move to be right. `version` grows
with every change of state and is compared by every write; `rests_on` names what may change without it and was read to
decide. What notes may have changed since the item was read, and the move sets all the same, is unknown in `was`, so
that it is written whatever was remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL, Counted, ErrorEntry, Event, Status, Transition, counted
from holdfast.lifecycle import released as released_to
from holdfast.limits import ERRORS_KEPT_MAX, HISTORY_SLACK
from holdfast.store.types import ClaimRequest, Verdict
from holdfast.stores import history
from holdfast.stores.dynamodb.expressions import unchanged
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.writes import Write, change

_NOTED = ("progress", "stage", "logs", "log_location", "metrics", "artifacts")
_COUNTS = ("failures", "snoozes", "give_backs")  # left out where they are 0
_RESULT = ("result", "result_body", "result_artifact")
_UNKNOWN: Final = object()  # equals nothing that an item can hold

_errors = msgspec.json.Decoder(list[ErrorEntry])


class Moved(msgspec.Struct, frozen=True):
    """What a move makes of an item. `item is was`: nothing is to be written."""

    was: Item
    item: Item
    rests_on: tuple[str, ...] = ()
    counted: Counted | None = None
    ended: bool = False
    freed: bool = False  # it left `processing`: whoever holds places for running jobs takes its name off


def written(moved: Moved) -> Write:
    """The move as a write, with all that it rests on as its condition."""
    also = unchanged(moved.was, *moved.rests_on) if moved.rests_on else None
    return change(moved.was, moved.item, also=also)


def is_there(item: Item | None) -> bool:
    """Whether this is a job still; retention leaves what it keeps of one under the same id."""
    return item is not None and "archived_at" not in item


def status_of(item: Item) -> Status:
    """Of a job, or of what the archive keeps of it."""
    return Status(item["ended"] if "archived_at" in item else item["status"])


# What a transition does


def applied(item: Item | None, t: Transition, now: Instant, wid: str) -> Moved | Verdict:
    """The item after `t`; or why there is none: the answer to a transition whose guards do not hold."""
    if item is None or not is_there(item):
        return Verdict.GONE
    if not _guards_hold(item, t):
        return Verdict.APPLIED if _is_in(item, t) else Verdict.STALE
    new, was = dict(item), dict(item)
    ends = t.target in TERMINAL
    stays_in_line = t.source is t.target is Status.PENDING
    rests_on = []
    _move(new, t.event, t.source, t.target, now, wid, by=t.by, reason=t.reason)
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
        new.pop("unmet", None)
    if ends:
        rests_on.append("awaited")
    if t.event is Event.MANUAL_RETRY:
        rests_on.append("frozen")
    for name, value in (("priority", t.priority), ("scheduled_for", t.scheduled_for)):
        if value is not None:
            new[name] = value
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
        for name in (*_RESULT, "joins", "reused_from"):
            new.pop(name, None)
    else:
        _give_result(new, t.result, t.result_artifact)
    if t.error is not None:
        new["last_error"] = f"{t.error.type}: {t.error.message}"
        kept = [*(_errors.decode(item["errors"]) if "errors" in item else ()), t.error][-ERRORS_KEPT_MAX:]
        new["errors"] = msgspec.json.encode(kept).decode()
    freed = t.source is Status.PROCESSING and t.target is not Status.PROCESSING
    return Moved(was, new, tuple(dict.fromkeys(rests_on)), counted(t.event, t.target), ends, freed)


def _guards_hold(item: Item, t: Transition) -> bool:
    return (
        item["status"] == t.source
        and item.get("attempt", 0) == t.attempt
        and (t.version is None or item["version"] == t.version)
        and (t.token is None or item.get("claim_token") == t.token)
        and (t.lease is None or item.get("lease_expires_at") == t.lease)
        and not (t.event is Event.MANUAL_RETRY and "frozen" in item)  # it is on its way to the archive
    )


def _is_in(item: Item, t: Transition) -> bool:
    """Whether an earlier try of this write was applied. The token outlives only its holder's own settlement; history
    tells whether that was this one."""
    ours = t.token is not None and item.get("claim_token") == t.token and item.get("attempt", 0) == t.attempt
    if not ours or item["status"] == Status.PROCESSING:
        return False
    return history.is_on_record(item["history"], t)


# What stores decide by themselves


def claimed(item: Item, request: ClaimRequest, now: Instant, wid: str) -> Item:
    new = dict(item)
    new["attempt"] = item.get("attempt", 0) + 1
    _move(new, Event.CLAIM, Status.PENDING, Status.PROCESSING, now, wid, by=request.worker_id)
    new["claim_token"] = request.token
    new["worker_id"], new["worker_version"] = request.worker_id, request.worker_version
    new["lease_expires_at"], new["started_at"] = now + request.lease_micros, now
    for name in ("progress", "stage", "parked"):
        new.pop(name, None)
    return new


def promoted(item: Item, now: Instant, wid: str) -> Item:
    new = dict(item)
    _move(new, Event.DUE, Status(item["status"]), Status.PENDING, now, wid)
    return new


def parked(item: Item, by: str | None) -> Item:
    """Kept from claims by its concurrency key ("c") or its rate ("r"), or in sight (None). No version."""
    new = dict(item)
    if by is None:
        new.pop("parked", None)
    else:
        new["parked"] = by
    return new


def released(child: Item, parent: str, outcome: Status, donor: Item | None, now: Instant, wid: str) -> Moved:
    """The child after one that it waits on has ended. `donor`: that one, with its result, where the child joined it."""
    if not is_there(child) or child["status"] != Status.WAITING:
        return Moved(child, child)  # cancelled meanwhile
    new = dict(child)
    unmet = child.get("unmet", 0) - 1
    joined = child.get("joins") == parent
    target: Status | None
    if joined and outcome is Status.COMPLETED:
        event, target, reason = Event.REUSE, Status.COMPLETED, f"identical job {parent} completed"
    else:
        # A job that joined an identical one runs by itself when that one came to nothing.
        event, reason = Event.RELEASE, f"{parent} {outcome.value}"
        target = released_to(
            unmet_dependencies=unmet,
            failed_dependency=outcome is not Status.COMPLETED and not joined,
            on_failure=child.get("on_dependency_failure", "cancel"),
            scheduled_for=child["scheduled_for"],
            now=now,
        )
    if target is None:
        new["unmet"], new["updated_at"], new["wid"] = unmet, now, wid
        return Moved(child, new, ("unmet",))
    _move(new, event, Status.WAITING, target, now, wid, reason=reason)
    for name in ("unmet", "joins", *_RESULT):
        new.pop(name, None)
    if "joins" in child:
        new.pop("reused_from", None)
    if target is Status.FAILED:
        new["last_error"], new["stage"] = f"DependencyFailed: {reason}", "error"
    elif target is Status.COMPLETED:
        _reuse(new, parent, donor or {})
    ends = target in TERMINAL
    return Moved(child, new, ("unmet", "awaited") if ends else ("unmet",), counted(event, target), ends)


def let_go(child: Item, now: Instant, wid: str) -> Moved:
    """The child once all its edges are registered: it was stored as waiting on one more than there are."""
    if not is_there(child) or child["status"] != Status.WAITING:
        return Moved(child, child)
    new = dict(child)
    unmet = child.get("unmet", 0) - 1
    target = released_to(
        unmet_dependencies=unmet,
        failed_dependency=False,
        on_failure=child.get("on_dependency_failure", "cancel"),
        scheduled_for=child["scheduled_for"],
        now=now,
    )
    if target is None:
        new["unmet"], new["updated_at"], new["wid"] = unmet, now, wid
        return Moved(child, new, ("unmet",))
    _move(new, Event.RELEASE, Status.WAITING, target, now, wid, reason="all that it depends on completed")
    for name in ("unmet", "joins"):
        new.pop(name, None)
    return Moved(child, new, ("unmet",), counted(Event.RELEASE, target))


def reused(item: Item, donor: Item, now: Instant) -> Item:
    """A new job, made as completed, with what an identical one brought forth."""
    new = dict(item)
    new["completed_at"] = now
    _reuse(new, donor["job_id"], donor)
    return new


def _reuse(new: Item, donor_id: str, donor: Mapping[str, Any]) -> None:
    new["reused_from"] = donor_id
    new["progress"], new["stage"] = 1.0, "complete"
    new.pop("metrics", None)
    for name in ("result", "result_artifact", "metrics"):
        if name in donor:
            new[name] = donor[name]


# What every move does


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
) -> None:
    version = new["version"]
    past = history.trim(new["history"]) if version % HISTORY_SLACK == HISTORY_SLACK - 1 else new["history"]
    step = history.event(version + 1, now, event, source, target, new.get("attempt", 0), by, reason)
    new["history"] = f"{past}\n{step}"
    new["version"], new["status"], new["updated_at"], new["wid"] = version + 1, target.value, now, wid
    if target in TERMINAL:
        new["completed_at"] = now
    else:
        new.pop("completed_at", None)


def _give_result(new: Item, result: str | None, artifact: str | None) -> None:
    if result is not None:
        new.pop("result_body", None)
        new["result"] = result
    if artifact is not None:
        new["result_artifact"] = artifact


def _set_unless_zero(new: Item, name: str, value: float | str | None) -> None:
    """None keeps what is stored; what is nothing is left out."""
    if value is None:
        return
    if value:
        new[name] = value
    else:
        new.pop(name, None)
