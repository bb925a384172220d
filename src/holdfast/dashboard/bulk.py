"""Many jobs changed at once: which ones are meant, and what became of each.

Read, decide, apply in steps, each of them one commit: claims and other people come in between. A job that changed
meanwhile is looked at once more; whatever cannot be done is said, and stops nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from holdfast import lifecycle, limits
from holdfast.app import Holdfast
from holdfast.clock import Instant
from holdfast.errors import IllegalTransition
from holdfast.finding import FindOptions
from holdfast.lifecycle import ACTIVE, Status, Transition
from holdfast.server.principals import Principal
from holdfast.server.searching import found as find
from holdfast.store.types import JobRecord, Verdict

_TRIES = 3  # each lost race means that someone else made progress; three in a row is worth a word


class Action(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"

    @property
    def done(self) -> str:
        return {"cancel": "cancelled", "retry": "sent again"}[self.value]


class Meant(msgspec.Struct, frozen=True):
    """The jobs that a change would touch. `more`: there are others beyond what one change takes."""

    jobs: list[JobRecord]
    others: int = 0  # ticked, but in a state in which there is nothing to do, or not to be found
    more: bool = False

    @property
    def by_status(self) -> list[tuple[Status, int]]:
        return Counter(job.status for job in self.jobs).most_common()


class Refusal(msgspec.Struct, frozen=True):
    job_id: str
    job_type: str
    why: str


class Outcome(msgspec.Struct, frozen=True):
    done: list[str]
    refused: list[Refusal]

    @property
    def reasons(self) -> Mapping[str, int]:
        return Counter(each.why for each in self.refused)


# Which


async def ticked(app: Holdfast, who: Principal, action: Action, ids: Sequence[str]) -> Meant:
    """Of those that were ticked: what can be changed. Another's is told apart from none by nothing."""
    wanted = list(dict.fromkeys(ids))
    found = [record for record in await app.store.get(wanted[: limits.BULK_MAX]) if record is not None]
    fitting = [record for record in found if who.sees(record.queue) and fits(action, record)]
    return Meant(fitting, others=len(wanted) - len(fitting), more=len(wanted) > limits.BULK_MAX)


async def searched(
    app: Holdfast, who: Principal, action: Action, options: FindOptions, until: Instant | None = None
) -> Meant:
    """All that a search finds, newest first, up to BULK_MAX. `until`: not what was created after it was asked."""
    found: list[JobRecord] = []
    for status in _statuses(action, options.get("status")):
        asked: FindOptions = {**options, "status": status, "after": None, "limit": limits.BULK_STEP}
        while True:
            page = await find(app, who, **asked)
            records = [job.record for job in page]
            found += [each for each in records if (until is None or each.created_at <= until) and fits(action, each)]
            if len(found) > limits.BULK_MAX:
                return Meant(found[: limits.BULK_MAX], more=True)
            if page.next is None:
                break
            asked = {**asked, "after": page.next}
    return Meant(found)


def _statuses(action: Action, asked: Status | str | None) -> Sequence[Status]:
    """What has completed is sent again only where someone asks for it by name."""
    usual = tuple(ACTIVE) if action is Action.CANCEL else (Status.FAILED, Status.CANCELLED)
    return usual if asked is None else (Status(asked),)


def fits(action: Action, record: JobRecord) -> bool:
    if record.archived_at is not None:
        return False
    return (record.status in ACTIVE) is (action is Action.CANCEL)


# What becomes of them


async def change(
    app: Holdfast, action: Action, records: Sequence[JobRecord], *, by: str, reason: str | None
) -> Outcome:
    done: list[str] = []
    refused: list[Refusal] = []
    for start in range(0, len(records), limits.BULK_STEP):
        await _step(app, action, records[start : start + limits.BULK_STEP], (by, reason), done, refused)
    return Outcome(done, refused)


async def _step(
    app: Holdfast,
    action: Action,
    records: Sequence[JobRecord],
    words: tuple[str, str | None],
    done: list[str],
    refused: list[Refusal],
) -> None:
    left = list(records)
    for _ in range(_TRIES):
        now = app.clock.now()
        decided = [(record, _decide(action, record, now, words)) for record in left]
        edits = [(record, edit) for record, edit in decided if edit is not None]
        refused += [_refusal(record, _state(action, record)) for record, edit in decided if edit is None]
        verdicts = await app.store.apply([edit for _, edit in edits], now) if edits else []
        lost: list[JobRecord] = []
        for (record, _), verdict in zip(edits, verdicts, strict=True):
            if verdict is Verdict.APPLIED:
                done.append(record.job_id)
            elif verdict is Verdict.STALE:
                lost.append(record)
            else:
                refused.append(_refusal(record, _WHY[verdict]))
        if not lost:
            return
        again = await app.store.get([record.job_id for record in lost])
        refused += [_refusal(old, _WHY[Verdict.GONE]) for old, new in zip(lost, again, strict=True) if new is None]
        left = [record for record in again if record is not None]
    refused += [_refusal(record, "it kept changing: try again") for record in left]


_WHY = {
    Verdict.GONE: "there is no such job any more",
    Verdict.BLOCKED: "it depends on jobs that have not completed: send those again first",
    Verdict.TAKEN: "its dedup key belongs to another job now",
}


def _decide(action: Action, record: JobRecord, now: Instant, words: tuple[str, str | None]) -> Transition | None:
    by, reason = words
    if not fits(action, record):
        return None
    try:
        if action is Action.CANCEL:
            return lifecycle.cancel(record, by=by, reason=reason)
        return lifecycle.manual_retry(record, now=now, by=by, reason=reason)
    except IllegalTransition:
        return None


def _state(action: Action, record: JobRecord) -> str:
    if record.archived_at is not None:
        return "it was archived, and its payload is gone"
    ended = "had ended before" if action is Action.CANCEL else "has not ended"
    return f"it is {record.status.value}: it {ended}"


def _refusal(record: JobRecord, why: str) -> Refusal:
    return Refusal(record.job_id, record.job_type, why)
