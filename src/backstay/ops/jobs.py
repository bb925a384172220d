"""Changes to jobs by people and programs: to one job, to a tree, or to many, each with one audit entry.

Bulk changes are applied in steps of one commit each, so that claims and other users get in between. A job that cannot
be changed is reported and does not stop the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, cast

import msgspec

from backstay import ids, limits
from backstay.clock import Clock, Instant, to_datetime, to_instant
from backstay.core import lifecycle
from backstay.core.checks import check_priority, check_reason, check_text, count
from backstay.core.port import Store
from backstay.core.records import DEPENDENCY_FAILED, JobRecord, Node, Page, Query, Transition, Verdict
from backstay.core.states import ACTIVE, TERMINAL, Status
from backstay.errors import IllegalTransition, InvalidOption, JobNotFound
from backstay.ops.audit import Actor, audited
from backstay.ops.edit import AnyRecord, Change, apply_edits, check_version, edit, record_of
from backstay.ops.tree import Subtrees, with_progress
from backstay.options import FindOptions, JobFilter, SubmitOptions, query, run_at_of

_TRAIL_IDS_MAX = 100  # ids stored in one audit entry
_TRAIL_REASON_MAX = 500  # characters of the reason: with the ids, it has to fit into the entry


# One job, or a tree


async def cancel(
    store: Store,
    clock: Clock,
    actor: Actor,
    job_id: str,
    *,
    subtree: bool,
    reason: str | None,
    expected_version: int | None,
) -> JobRecord:
    async def work(record: JobRecord) -> None:
        why = check_reason(reason)
        if not (subtree and expected_version is None and record.status in TERMINAL):
            await edit(
                store, clock, record, expected_version, lambda job, _: lifecycle.cancel(job, by=actor.by, reason=why)
            )
        if subtree:
            top = await record_of(store, record.job_id)
            await Subtrees(store, clock, actor.by, why).cancel(top)

    return await _change(store, clock, actor, "job.cancel", job_id, work, {"subtree": subtree})


async def retry(
    store: Store,
    clock: Clock,
    actor: Actor,
    job_id: str,
    *,
    subtree: bool,
    forget_steps: bool,
    reason: str | None,
    expected_version: int | None,
) -> JobRecord:
    async def work(record: JobRecord) -> None:
        why = check_reason(reason)
        if subtree:
            check_version(record, expected_version)
            await Subtrees(store, clock, actor.by, why, forget_steps=forget_steps).retry(record)
            return
        await edit(
            store,
            clock,
            record,
            expected_version,
            lambda job, now: lifecycle.manual_retry(job, now=now, by=actor.by, reason=why, forget_steps=forget_steps),
        )

    options = {"subtree": subtree, **_forgetting(forget_steps)}
    return await _change(store, clock, actor, "job.retry", job_id, work, options)


async def rerun(
    store: Store, clock: Clock, actor: Actor, job_id: str, *, forget_steps: bool, reason: str | None
) -> JobRecord:
    async def work(record: JobRecord) -> None:
        await Subtrees(store, clock, actor.by, check_reason(reason), forget_steps=forget_steps).rerun(record)

    return await _change(store, clock, actor, "job.rerun", job_id, work, _forgetting(forget_steps))


def _forgetting(forget_steps: bool) -> dict[str, Any]:
    """Return what the trail says about recorded steps."""
    return {"forget_steps": True} if forget_steps else {}


async def reprioritise(
    store: Store,
    clock: Clock,
    actor: Actor,
    job_id: str,
    priority: int | str,
    *,
    reason: str | None,
    expected_version: int | None,
) -> JobRecord:
    async def work(record: JobRecord) -> None:
        place, why = check_priority(priority), check_reason(reason)
        change: Change = lambda job, _: lifecycle.reprioritise(job, priority=place, by=actor.by, reason=why)  # noqa: E731
        await edit(store, clock, record, expected_version, change)

    return await _change(store, clock, actor, "job.patch", job_id, work)


async def reschedule(
    store: Store,
    clock: Clock,
    actor: Actor,
    job_id: str,
    *,
    run_at: datetime | None,
    delay: float | timedelta | None,
    reason: str | None,
    expected_version: int | None,
) -> JobRecord:
    when = cast(SubmitOptions, {k: v for k, v in (("run_at", run_at), ("delay", delay)) if v is not None})

    async def work(record: JobRecord) -> None:
        why = check_reason(reason)
        await edit(
            store,
            clock,
            record,
            expected_version,
            lambda job, now: lifecycle.reschedule(job, run_at=run_at_of(when, now), now=now, by=actor.by, reason=why),
        )

    return await _change(store, clock, actor, "job.patch", job_id, work)


async def update(
    store: Store,
    clock: Clock,
    actor: Actor,
    job_id: str,
    encoded: Callable[[JobRecord], Awaitable[tuple[str, int]]],
    *,
    reason: str | None,
    expected_version: int | None,
) -> JobRecord:
    """Give a job that waits another payload; `encoded` returns it as it is stored, and its version."""

    async def work(record: JobRecord) -> None:
        why = check_reason(reason)
        if record.content_hash is not None:
            raise IllegalTransition(
                f"job {record.job_id} has a content hash, which stands for its payload: cancel it, and submit the other"
                " work"
            )
        payload, version = await encoded(record)
        await edit(
            store,
            clock,
            record,
            expected_version,
            lambda job, _: lifecycle.update(job, payload=payload, payload_version=version, by=actor.by, reason=why),
        )

    return await _change(store, clock, actor, "job.update", job_id, work)


async def _change(
    store: Store,
    clock: Clock,
    actor: Actor,
    action: str,
    job_id: str,
    work: Callable[[JobRecord], Awaitable[None]],
    options: Mapping[str, Any] | None = None,
) -> JobRecord:
    """Change a job, with its audit entry; return it as it is afterwards."""
    job_id = ids.canonical(job_id)
    [record] = await store.get([job_id])
    async with audited(store, clock, actor, action, job_id, None if record is None else state(record)) as entry:
        if record is None:
            raise JobNotFound(f"no job {job_id}")
        await work(record)
        after = await record_of(store, job_id)
        entry.after = {**state(after), **(options or {})}
    return await with_progress(store, after)


def state(job: JobRecord) -> dict[str, Any]:
    """Return what the trail stores of a job: the fields that a change can change, and never a payload."""
    return {
        "job_type": job.job_type,
        "queue": job.queue,
        "status": job.status,
        "priority": job.priority,
        "scheduled_for": to_datetime(job.scheduled_for),
        "version": job.version,
    }


# Many jobs


class Action(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"

    @property
    def done(self) -> str:
        return {"cancel": "cancelled", "retry": "retried"}[self.value]


class Refusal(msgspec.Struct, frozen=True):
    """A job that a bulk change left as it is, and why."""

    job_id: str
    job_type: str | None  # None: there is no such job
    why: str


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk change did; in a dry run, what it would do."""

    changed: list[str]  # ids
    refused: list[Refusal]
    by_status: dict[Status, int]  # of the changed jobs, as they were before
    more: bool  # other jobs match, beyond what one call changes: repeat it to continue
    dry_run: bool

    @property
    def reasons(self) -> dict[str, int]:
        """How many jobs were refused for each reason."""
        return dict(Counter(each.why for each in self.refused))


class _Selection(msgspec.Struct, frozen=True):
    jobs: list[Node]  # without payloads: a thousand large ones would fill the memory
    refused: list[Refusal]
    more: bool = False


async def change_many(
    store: Store,
    clock: Clock,
    actor: Actor,
    action: Action,
    job_ids: Sequence[str] | None,
    conditions: JobFilter,
    *,
    created_until: datetime | None,
    reason: str | None,
    dry_run: bool,
    forget_steps: bool = False,
) -> BulkResult:
    """Cancel or retry up to BULK_MAX jobs, by id or by a search, in the queues that the actor may change."""
    listed = job_ids if job_ids is None or isinstance(job_ids, str) else list(job_ids)
    name = f"jobs.bulk_{action.value}"
    target = _described(listed, conditions, created_until)
    try:
        why = check_reason(reason)
        chosen, statuses = await _chosen(store, actor, action, listed, conditions, created_until)
    except InvalidOption:
        if dry_run:
            raise
        async with audited(store, clock, actor, name, target):
            raise
    if dry_run:
        return _result(chosen, [job.job_id for job in chosen.jobs], [], dry_run)
    changed: list[str] = []
    refused: list[Refusal] = []
    before = {**_asked(chosen, why), **_forgetting(forget_steps)}
    decide = _decision(action, statuses, actor.by, why, forget_steps)
    async with audited(store, clock, actor, name, target, before) as entry:
        for start in range(0, len(chosen.jobs), limits.BULK_STEP):
            step = chosen.jobs[start : start + limits.BULK_STEP]
            for edited in await apply_edits(store, clock, step, decide):
                if edited.verdict is Verdict.APPLIED:
                    changed.append(edited.job.job_id)
                else:
                    refused.append(_refusal(edited.job, edited.verdict, statuses))
        found = _result(chosen, changed, refused, dry_run)
        entry.after = {"done": len(changed), "refused": found.reasons}
    return found


async def _chosen(
    store: Store,
    actor: Actor,
    action: Action,
    job_ids: Sequence[str] | None,
    conditions: JobFilter,
    created_until: datetime | None,
) -> tuple[_Selection, Collection[Status]]:
    """Select the jobs to change; return them with the statuses from which they may be changed."""
    searches = created_until is not None or any(value is not None for value in conditions.values())
    if (job_ids is not None) == searches:
        raise InvalidOption(f"{action.value}_many takes job ids, or conditions such as job_type=…: give one of the two")
    statuses = ACTIVE if action is Action.CANCEL else TERMINAL
    if job_ids is not None:
        return await _listed(store, actor, statuses, job_ids), statuses
    asked = _query(action, conditions)
    if asked.status is not None:
        statuses = statuses & {asked.status}
    elif action is Action.RETRY:  # completed jobs are retried only if the search asks for them
        statuses = frozenset({Status.FAILED, Status.CANCELLED})
    return await _found(store, actor, statuses, asked, _instant(created_until)), statuses


def _described(job_ids: Sequence[str] | None, conditions: JobFilter, created_until: datetime | None) -> str:
    if job_ids is not None:
        return count(1 if isinstance(job_ids, str) else len(set(map(str, job_ids))), "job")
    given: dict[str, Any] = dict.fromkeys(JobFilter.__annotations__) | dict(conditions)
    given["created_until"] = created_until.isoformat() if isinstance(created_until, datetime) else created_until
    return " ".join(["jobs", *(f"{name}:{value}" for name, value in given.items() if value is not None)])


def _asked(chosen: _Selection, reason: str | None) -> dict[str, Any]:
    """Return what the trail stores of a bulk change before it is made: the first ids, and how many it does not name."""
    named = [job.job_id for job in chosen.jobs] + [each.job_id for each in chosen.refused]
    asked: dict[str, Any] = {"asked": len(named), "ids": named[:_TRAIL_IDS_MAX]}
    if len(named) > _TRAIL_IDS_MAX:
        asked["ids_left_out"] = len(named) - _TRAIL_IDS_MAX
    if reason is not None:
        asked["reason"] = reason[:_TRAIL_REASON_MAX]
    return asked


def _query(action: Action, conditions: JobFilter) -> Query:
    if unknown := conditions.keys() - JobFilter.__annotations__.keys():
        raise InvalidOption(
            f"{action.value}_many has no option {', '.join(sorted(unknown))};"
            f" it has {', '.join(sorted(JobFilter.__annotations__))}"
        )
    return query(**cast(FindOptions, {**conditions, "limit": limits.BULK_STEP}))


def _result(chosen: _Selection, changed: list[str], refused: list[Refusal], dry_run: bool) -> BulkResult:
    done = set(changed)
    statuses = Counter(job.status for job in chosen.jobs if job.job_id in done)
    return BulkResult(
        changed=changed,
        refused=[*chosen.refused, *refused],
        by_status=dict(statuses.most_common()),
        more=chosen.more,
        dry_run=dry_run,
    )


async def _listed(store: Store, actor: Actor, statuses: Collection[Status], job_ids: Sequence[str]) -> _Selection:
    """Select jobs by id. A job of a queue that the actor cannot see looks the same as one that does not exist."""
    if isinstance(job_ids, str):
        raise InvalidOption(f"job_ids={job_ids!r:.80}: give a list of ids")
    wanted = list(dict.fromkeys(ids.canonical(each) for each in job_ids))
    if len(wanted) > limits.BULK_MAX:
        raise InvalidOption(f"{len(wanted):,} jobs at once; the limit is {limits.BULK_MAX:,} (BULK_MAX): split them")
    chosen: list[Node] = []
    refused: list[Refusal] = []
    for start in range(0, len(wanted), limits.BULK_STEP):
        part = wanted[start : start + limits.BULK_STEP]
        for job_id, job in zip(part, await store.get(part), strict=True):
            if job is None or not actor.sees(job.queue):
                refused.append(Refusal(job_id, None, "no such job"))
            elif _fits(job, statuses):
                chosen.append(Node.of(job))
            else:
                refused.append(_refusal(job, None, statuses))
    return _Selection(chosen, refused)


async def _found(
    store: Store, actor: Actor, statuses: Collection[Status], asked: Query, until: Instant | None
) -> _Selection:
    """Select the matches of a search that can be changed, newest first."""
    if asked.queue is None and len(actor.queues) == 1 and "*" not in actor.queues[0]:
        asked = msgspec.structs.replace(asked, queue=actor.queues[0])  # which an index finds
    found: list[Node] = []

    def fitting(page: Page, status: Status) -> tuple[list[Node], str | None]:
        return [
            Node.of(each)
            for each in page.items
            if (until is None or each.created_at <= until) and actor.sees(each.queue) and _fits(each, [status])
        ], page.next

    for status in (each for each in Status if each in statuses):
        asked = msgspec.structs.replace(asked, status=status, after=None)
        while True:
            some, after = fitting(await store.find(asked), status)  # no page is held while the next one is read
            found += some
            if len(found) > limits.BULK_MAX:
                return _Selection(found[: limits.BULK_MAX], [], more=True)
            if after is None:
                break
            asked = msgspec.structs.replace(asked, after=after)
    return _Selection(found, [])


def _instant(moment: datetime | None) -> Instant | None:
    try:
        return None if moment is None else to_instant(moment)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidOption(f"created_until={moment!r:.80}: {error}") from None


def _fits(job: AnyRecord, statuses: Collection[Status]) -> bool:
    return job.status in statuses and getattr(job, "archived_at", None) is None


def _decision(
    action: Action, statuses: Collection[Status], by: str, reason: str | None, forget_steps: bool
) -> Callable[[AnyRecord, Instant], Transition | None]:
    """Decide on a change. A job that has left these statuses in the meantime is left as it is."""

    def decide(job: AnyRecord, now: Instant) -> Transition | None:
        if not _fits(job, statuses):
            return None
        if action is Action.CANCEL:
            return lifecycle.cancel(job, by=by, reason=reason)
        return lifecycle.manual_retry(job, now=now, by=by, reason=reason, forget_steps=forget_steps)

    return decide


def _refusal(job: AnyRecord, verdict: Verdict | None, statuses: Collection[Status]) -> Refusal:
    if verdict is not None:
        why = _WHY.get(verdict, "it kept changing while being updated: try again")
    elif getattr(job, "archived_at", None) is not None:
        why = "it is archived and its payload is gone"
    else:
        since = "already" if job.status in TERMINAL else "now" if ACTIVE.intersection(statuses) else "still"
        why = f"it is {since} {job.status.value}"
    return Refusal(job.job_id, job.job_type, why)


_WHY = {
    Verdict.GONE: "the job no longer exists",
    Verdict.BLOCKED: "it depends on jobs that have not completed: retry those first",
    Verdict.TAKEN: "its dedup key now belongs to another job",
}


# Dead letters


async def retry_dead(
    store: Store,
    clock: Clock,
    actor: Actor,
    job_type: str | None,
    error_type: str | None,
    *,
    forget_steps: bool = False,
) -> int:
    """Retry the dead letters of the actor's queues, or those of a type or an error, page by page; return how many."""
    target = " ".join(each for each in (job_type, error_type) if isinstance(each, str) and each) or "all"
    decide = _decision(Action.RETRY, (Status.FAILED,), actor.by, None, forget_steps)
    async with audited(store, clock, actor, "dead.retry", target) as entry:
        for name, value in (("job_type", job_type), ("error_type", error_type)):
            check_text(name, value, limits.KEY_LENGTH_MAX)
        asked = Query(status=Status.FAILED, job_type=job_type, limit=limits.BULK_STEP)
        retried = 0
        while True:
            page = await store.find(asked)
            chosen = [
                job
                for job in page.items
                if (error_type is None or died_of(job) == error_type) and actor.sees(job.queue)
            ]
            edited = await apply_edits(store, clock, chosen, decide)
            retried += sum(each.verdict is Verdict.APPLIED for each in edited)
            if page.next is None:
                break
            asked = msgspec.structs.replace(asked, after=page.next)
        entry.after = {"retried": retried, **_forgetting(forget_steps)}
    return retried


def died_of(record: JobRecord) -> str:
    """Return the error by which a dead letter is grouped, as `Store.dead` does it."""
    return record.error_type or DEPENDENCY_FAILED
