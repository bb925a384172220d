"""Bugs for the processes of a storm, so that its judge is seen to fail. Each is one that a real queue has had."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from backstay.clock import Instant
from backstay.core.records import ExpiredClaim, Inserted, NewJob, Transition, Verdict
from backstay.core.states import Event, Status
from backstay.engines.places import Move, Standing
from backstay.engines.sqlite import settle
from backstay.engines.sqlite.store import SQLiteStore
from backstay.worker import keeper
from tests.campaigns.storm import app

BUGS: dict[str, Callable[[], None]] = {}


def plant(name: str) -> None:
    if name:
        BUGS[name]()


def bug(planted: Callable[[], None]) -> Callable[[], None]:
    BUGS[planted.__name__] = planted
    return planted


@bug
def completions_are_written_by_id() -> None:
    """Drop the check of the attempt: a run that has lost its claim is recorded."""
    fence = "r.attempt = :attempt AND r.token = :token AND r.worker_id = :worker_id AND "
    assert fence in settle.COMPLETE, "settle.COMPLETE has changed: plant this bug anew"
    settle.COMPLETE = settle.COMPLETE.replace(fence, "")
    decide = settle.decide

    def by_id(job: Standing | None, t: Transition, now: Instant, *, unmet: int = 0) -> Verdict | Move:
        if job is not None and t.event is Event.COMPLETE:
            t = msgspec.structs.replace(t, source=job.status, attempt=job.attempt, token=None)
        return decide(job, t, now, unmet=unmet)

    settle.decide = by_id


@bug
def submits_are_acknowledged_before_the_commit() -> None:
    """Answer first, and lose every tenth write."""
    insert, count = SQLiteStore.insert, 0

    async def answer_first(self: SQLiteStore, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        nonlocal count
        count += 1
        if count % 10 == 0:
            return [Inserted(job.job_id, Status.PENDING) for job in jobs]
        return await insert(self, jobs, now)

    SQLiteStore.insert = answer_first  # type: ignore[method-assign]


@bug
def a_lost_claim_is_never_rescued() -> None:
    async def none(self: SQLiteStore, now: Instant, limit: int, dead: Sequence[str] = ()) -> list[ExpiredClaim]:
        return []

    SQLiteStore.expired = none  # type: ignore[method-assign]


@bug
def what_a_killed_keeper_leaves_is_not_ended() -> None:
    keeper.end_orphans = lambda keeper, mark: None


@bug
def concurrency_keys_have_no_limit() -> None:
    app.KEY_LIMIT = 50  # of the submitter's handlers only: the judge knows better
