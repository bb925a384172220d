"""Bugs, planted into the SQLite engine one at a time. Each is one that a real queue has had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from backstay.clock import Instant
from backstay.core.records import ClaimedJob, ClaimRequest, Inserted, NewJob, Promoted, Transition, Verdict
from backstay.core.states import Event, Status
from backstay.engines import release as after_end
from backstay.engines.lanes import asked
from backstay.engines.places import Move, Standing, implied
from backstay.engines.sqlite import claim, insert, maintenance, places, release, settle, writer
from backstay.engines.sqlite.store import SQLiteStore
from backstay.engines.sqlite.writer import Tx, Verb, Writer
from tests.campaigns.stage import Gap

Patch = pytest.MonkeyPatch
Engine = Callable[[str], SQLiteStore]


@dataclass(frozen=True)
class Bug:
    plant: Callable[[Patch, Gap], Engine]
    caught_by: frozenset[str]  # at least by these invariants

    @property
    def name(self) -> str:
        return self.plant.__name__


BUGS: list[Bug] = []


_Plant = Callable[[Patch, Gap], Engine | None]


def planting(bugs: list[Bug]) -> Callable[..., Callable[[_Plant], Callable[..., Engine]]]:
    """Decorate a function that plants a bug, with the invariants that catch it."""

    def bug(*caught_by: str) -> Callable[[_Plant], Callable[..., Engine]]:
        def planted(plant: _Plant) -> Callable[..., Engine]:
            def run(patch: Patch, gap: Gap) -> Engine:
                return plant(patch, gap) or SQLiteStore

            run.__name__ = plant.__name__
            bugs.append(Bug(run, frozenset(caught_by)))
            return run

        return planted

    return bug


bug = planting(BUGS)


def rewrite(patch: Patch, module: Any, name: str, *changes: tuple[str, str]) -> None:
    """Change a statement of the engine; fail if the text to replace is not found."""
    statement = getattr(module, name)
    for old, new in changes:
        assert old in statement, f"{module.__name__}.{name} no longer has {old!r}: plant this bug anew"
        statement = statement.replace(old, new)
    patch.setattr(module, name, statement)


# The fence

_TOKEN = " AND r.token = :token"
_FENCE = f"r.attempt = :attempt{_TOKEN} AND r.worker_id = :worker_id AND "


def loosen(patch: Patch, change: Callable[[Standing, Transition], Transition]) -> None:
    """Have transitions that are not common completions decided as if they were others."""
    decide = settle.decide

    def loosened(job: Standing | None, t: Transition, now: Instant, *, unmet: int = 0) -> Verdict | Move:
        return decide(job, t if job is None else change(job, t), now, unmet=unmet)

    patch.setattr(settle, "decide", loosened)


@bug("S5")
def settlements_are_fenced_by_status_only(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "COMPLETE", (_FENCE, ""))
    loosen(patch, lambda job, t: msgspec.structs.replace(t, attempt=job.attempt, token=None))


@bug("S5")
def the_token_is_not_checked(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "COMPLETE", (_TOKEN, ""))
    loosen(patch, lambda job, t: msgspec.structs.replace(t, token=None))


@bug("S4", "S5")
def a_completion_is_written_by_id(patch: Patch, gap: Gap) -> None:
    def by_id(job: Standing, t: Transition) -> Transition:
        if t.event is not Event.COMPLETE:
            return t
        return msgspec.structs.replace(t, source=job.status, attempt=job.attempt, token=None)

    rewrite(patch, settle, "COMPLETE", (_FENCE, ""))
    loosen(patch, by_id)


@bug("S5")
def a_rescue_is_written_by_id(patch: Patch, gap: Gap) -> None:
    decide = settle.decide

    def by_id(job: Standing | None, t: Transition, now: Instant, *, unmet: int = 0) -> Verdict | Move:
        if job is None or t.lease is None:
            return decide(job, t, now, unmet=unmet)
        as_seen = msgspec.structs.replace(job, attempt=t.attempt)
        found = decide(as_seen, msgspec.structs.replace(t, lease=None), now)
        if isinstance(found, Verdict):
            return found
        after = msgspec.structs.replace(found.after, attempt=job.attempt)
        return msgspec.structs.replace(found, after=after, events=(*implied(job), found.events[-1]))

    patch.setattr(settle, "decide", by_id)


@bug("S7")
def a_rescue_does_not_see_an_extension(patch: Patch, gap: Gap) -> None:
    loosen(patch, lambda job, t: msgspec.structs.replace(t, lease=None))


@bug("S5")
def a_lease_is_extended_by_id(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "EXTEND", ("r.attempt = value ->> 1 AND r.token = value ->> 2", "true"))


@bug("S5")
def a_note_is_written_by_id(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "NOTE", (" AND attempt = :attempt AND token = :token", ""))


@bug("S9")
def a_refused_settlement_is_called_applied(patch: Patch, gap: Gap) -> None:
    patch.setattr(places, "was_applied", lambda tx, transition, job: True)


@bug("S6", "S9")
def claims_are_read_and_taken_in_two_steps(patch: Patch, gap: Gap) -> Engine:
    rewrite(patch, claim, "CLAIM", ("INSERT INTO", "INSERT OR REPLACE INTO"))

    class TwoSteps(SQLiteStore):
        async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
            lanes = asked(request).pairs()
            chosen, _ = await self._write("look", lambda tx: claim._choose(tx, request, lanes, now), essential=True)
            await gap()
            take = _claim_of(request, now, chosen)
            return await self._write("claim", take, essential=True)

    return TwoSteps


def _claim_of(request: ClaimRequest, now: Instant, chosen: list[Any]) -> Callable[[Tx], list[ClaimedJob]]:
    def take(tx: Tx) -> list[ClaimedJob]:
        real, claim._choose = claim._choose, lambda tx, request, lanes, now: (chosen, False)  # type: ignore[assignment]
        try:
            return claim.claim(tx, request, now, [])
        finally:
            claim._choose = real

    return take


@bug("S6")
def a_claim_does_not_count_its_attempt(patch: Patch, gap: Gap) -> None:
    rewrite(patch, claim, "CLAIM", ("(value ->> 1) + 1", "max(value ->> 1, 1)"))
    rewrite(patch, claim, "CLAIM_HEAD", ("SELECT seq, attempt + 1", "SELECT seq, max(attempt, 1)"))


# Acknowledgement


@bug("S1", "S3")
def writes_are_acknowledged_before_the_commit(patch: Patch, gap: Gap) -> None:
    def transact(self: Writer, group: list[Verb]) -> Any:
        tx = Tx(self.connection)
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for verb in group:
                self._run(tx, verb)
            for verb in group:
                self.loop.call_soon_threadsafe(verb.done, verb.result, None)
                verb.done = lambda result, error: None
            self.hit_failpoints(group, "uncommitted")
            self.connection.execute("COMMIT")
            self.hit_failpoints(group, "committed")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        return tx.signals

    patch.setattr(writer.Writer, "_transact", transact)


@bug("S14")
def a_batch_is_stored_job_by_job(patch: Patch, gap: Gap) -> Engine:
    class OneByOne(SQLiteStore):
        async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
            return [(await super(OneByOne, self).insert([job], now))[0] for job in jobs]

    return OneByOne


@bug("S1", "S9")
def completed_jobs_vanish(patch: Patch, gap: Gap) -> None:
    apply = settle.apply

    def then_delete(tx: Tx, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        verdicts = apply(tx, transitions, now)
        for transition, verdict in zip(transitions, verdicts, strict=True):
            if transition.event is Event.COMPLETE and verdict is Verdict.APPLIED:
                forget(tx, transition.job_id)
        return verdicts

    patch.setattr(settle, "apply", then_delete)


def forget(tx: Tx, job_id: str) -> None:
    """Remove a job, wherever it stands."""
    job = places.standing(tx, job_id)
    if job is not None:
        places.leave(tx, job)
        for table in ("job", "detail", "event"):
            tx.connection.execute(f"DELETE FROM {table} WHERE seq = ?", (job.key,))


@bug("S2")
def payloads_are_mixed_up(patch: Patch, gap: Gap) -> None:
    for statement in ("INSERT", "INSERT_USUAL"):
        rewrite(patch, insert, statement, ("?6, ?7, ?8", "?6, ?7 || ' ', ?8"))


@bug("S11")
def a_dedup_key_is_checked_before_the_transaction(patch: Patch, gap: Gap) -> Engine:
    check = insert._by_dedup_key
    patch.setattr(insert, "_by_dedup_key", lambda tx, job, now, *, promised: None)

    class CheckFirst(SQLiteStore):
        async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
            answers = []
            for job in jobs:
                existing = await self._write(
                    "look", lambda tx, job=job: check(tx, job, now, promised=False), essential=True
                )
                await gap()
                answers.append(existing or (await super().insert([job], now))[0])
            return answers

    return CheckFirst


@bug("S11")
def a_dedup_key_outlives_its_job(patch: Patch, gap: Gap) -> None:
    patch.setattr(insert, "TERMINAL", frozenset())


@bug("S16")
def an_id_submitted_again_makes_another_job(patch: Patch, gap: Gap) -> Engine:
    class NewIds(SQLiteStore):
        async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
            stored = await self.get([job.job_id for job in jobs])
            fresh = [
                job if record is None else msgspec.structs.replace(job, job_id=_other(job.job_id))
                for job, record in zip(jobs, stored, strict=True)
            ]
            return await super().insert(fresh, now)

    return NewIds


def _other(job_id: str) -> str:
    return job_id[:-12] + f"{int(job_id[-12:], 16) ^ 1:012x}"


# Written in the same commit


@bug("S8")
def a_result_is_written_outside_the_transaction(patch: Patch, gap: Gap) -> Engine:
    rewrite(patch, settle, "COMPLETE", ("r.token, s.value", "r.token, NULL"))
    loosen(patch, lambda job, t: msgspec.structs.replace(t, result=None))

    class ResultLater(SQLiteStore):
        async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
            verdicts = await super().apply(transitions, now)
            for transition in transitions:
                if transition.event is Event.COMPLETE:
                    await self._write("result", _write_result(transition), essential=True)
            return verdicts

    return ResultLater


def _write_result(transition: Transition) -> Callable[[Tx], object]:
    statement = (
        "UPDATE ended SET result = ? WHERE seq = (SELECT seq FROM job WHERE job_id = ?) AND status = 'completed'"
    )
    return lambda tx: tx.connection.execute(statement, (transition.result, transition.job_id))


@bug("S10")
def failures_are_counted_twice(patch: Patch, gap: Gap) -> None:
    loosen(patch, lambda job, t: msgspec.structs.replace(t, failures=None if t.failures is None else t.failures + 1))


@bug("S10")
def a_crash_is_not_counted_as_a_failure(patch: Patch, gap: Gap) -> None:
    loosen(patch, lambda job, t: t if t.lease is None else msgspec.structs.replace(t, failures=None))


@bug("S6")
def a_change_does_not_count_its_version(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "COMPLETE", ("r.version + 1", "r.version"))


@bug("S6", "S9")
def jobs_are_promoted_without_a_guard(patch: Patch, gap: Gap) -> Engine:
    class Blind(SQLiteStore):
        async def promote(self, now: Instant, limit: int) -> Promoted:
            due = "SELECT job_id FROM later JOIN job USING (seq) WHERE later.scheduled_for <= ?"
            ids = await self._read(lambda c: [str(job_id) for (job_id,) in c.execute(due, (now,))])
            await gap()

            def promote_as_read(tx: Tx) -> Promoted:
                for job in places.standings(tx, ids).values():
                    scheduled = msgspec.structs.replace(job, status=Status.SCHEDULED)
                    if job.status is not Status.RETRYING:
                        places.leave(tx, job)
                        places.leave(tx, scheduled)
                        places.enter(tx, "later", Move(job, scheduled, ()).place_row())
                return maintenance.promote(tx, now, limit)

            return await self._write("promote", promote_as_read, essential=True)

    return Blind


@bug("S13")
def jobs_are_promoted_before_they_are_due(patch: Patch, gap: Gap) -> Engine:
    rewrite(patch, maintenance, "DUE", ("scheduled_for <= :now", ":now"))

    class Early(SQLiteStore):
        async def promote(self, now: Instant, limit: int) -> Promoted:
            return await self._write("promote", maintenance.promote, now, limit, essential=True)

    return Early


@bug("S15", "S4")
def a_cancel_overwrites_a_completion(patch: Patch, gap: Gap) -> None:
    def by_id(job: Standing, t: Transition) -> Transition:
        if t.target is not Status.CANCELLED:
            return t
        return msgspec.structs.replace(t, source=job.status, attempt=job.attempt, version=None)

    loosen(patch, by_id)


# Dependencies


@bug("S12")
def dependencies_are_not_waited_for(patch: Patch, gap: Gap) -> None:
    over = insert.Need(Status.COMPLETED, None)
    patch.setattr(insert, "_needs", lambda tx, depends_on, promised: dict.fromkeys(depends_on, over))


@bug("S12")
def a_failed_parent_releases_its_children(patch: Patch, gap: Gap) -> None:
    real = after_end.released

    def released(*, outcome: Status | None, **rest: Any) -> Any:
        return real(outcome=Status.COMPLETED, **rest)

    patch.setattr(after_end, "released", released)


@bug("S12")
def edges_are_not_consumed(patch: Patch, gap: Gap) -> None:
    rewrite(patch, release, "MEET", ("SET met = 1", "SET met = 0"))
