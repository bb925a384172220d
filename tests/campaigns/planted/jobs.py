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
from backstay.engines.sqlite import claim, insert, maintenance, release, settle, writer
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

_ATTEMPT = "  AND attempt = :attempt\n"
_TOKEN = "  AND (:token IS NULL OR claim_token = :token)\n"
_LEASE = "  AND (:lease IS NULL OR lease_expires_at = :lease)"
_CLAIM_OF_A_SET = " AND job.attempt = s.attempt AND job.claim_token = s.token"


@bug("S5")
def settlements_are_fenced_by_status_only(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "COMPLETE", (_CLAIM_OF_A_SET, ""))
    rewrite(patch, settle, "APPLY", (_ATTEMPT, ""), (_TOKEN, ""))


@bug("S5")
def the_token_is_not_checked(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "COMPLETE", (" AND job.claim_token = s.token", ""))
    rewrite(patch, settle, "APPLY", (_TOKEN, ""))


@bug("S4", "S5")
def a_completion_is_written_by_id(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "COMPLETE", (" AND +job.status = 'processing'" + _CLAIM_OF_A_SET, ""))


@bug("S5")
def a_rescue_is_written_by_id(patch: Patch, gap: Gap) -> None:
    rewrite(
        patch,
        settle,
        "APPLY",
        (_ATTEMPT, "  AND (:lease IS NOT NULL OR attempt = :attempt)\n"),
        (_LEASE, ""),
    )


@bug("S7")
def a_rescue_does_not_see_an_extension(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "APPLY", (_LEASE, ""))


@bug("S5")
def a_lease_is_extended_by_id(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "EXTEND", (_CLAIM_OF_A_SET, ""))


@bug("S5")
def a_note_is_written_by_id(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "NOTE", (" AND attempt = :attempt AND claim_token = :token", ""))


@bug("S9")
def a_refused_settlement_is_called_applied(patch: Patch, gap: Gap) -> None:
    patch.setattr(settle, "_why_not", lambda tx, transition: Verdict.APPLIED)


@bug("S6", "S7")
def claims_are_read_and_taken_in_two_steps(patch: Patch, gap: Gap) -> Engine:
    rewrite(patch, claim, "CLAIM", (" AND +status = 'pending'", ""))

    class TwoSteps(SQLiteStore):
        async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
            chosen = await self._write("look", lambda tx: claim._choose(tx, request, now), essential=True)
            await gap()
            take = _claim_of(request, now, chosen)
            return await self._write("claim", take, essential=True)

    return TwoSteps


def _claim_of(request: ClaimRequest, now: Instant, chosen: list[Any]) -> Callable[[Tx], list[ClaimedJob]]:
    def take(tx: Tx) -> list[ClaimedJob]:
        real, claim._choose = claim._choose, lambda tx, request, now: chosen  # type: ignore[assignment]
        try:
            return claim.claim(tx, request, now)
        finally:
            claim._choose = real

    return take


@bug("S6")
def a_claim_does_not_count_its_attempt(patch: Patch, gap: Gap) -> None:
    again = ("attempt = attempt + 1", "attempt = max(attempt, 1)")
    rewrite(patch, claim, "CLAIM", again, ("(attempt + 1)", "max(attempt, 1)"))


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
    after = settle._after

    def then_delete(tx: Tx, applied: list[Transition], now: Instant) -> None:
        after(tx, applied, now)
        for transition in applied:
            if transition.event is Event.COMPLETE:
                tx.connection.execute("DELETE FROM job WHERE job_id = ?", (transition.job_id,))

    patch.setattr(settle, "_after", then_delete)


@bug("S2")
def payloads_are_mixed_up(patch: Patch, gap: Gap) -> None:
    rewrite(patch, insert, "INSERT", ("?7, ?8, ?9", "?7, ?8 || ' ', ?9"))


@bug("S11")
def a_dedup_key_is_checked_before_the_transaction(patch: Patch, gap: Gap) -> Engine:
    check = insert._by_dedup_key
    patch.setattr(insert, "_by_dedup_key", lambda tx, job, now: None)

    class CheckFirst(SQLiteStore):
        async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
            answers = []
            for job in jobs:
                existing = await self._write("look", lambda tx, job=job: check(tx, job, now), essential=True)
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
    rewrite(patch, settle, "COMPLETE", ("result = s.result", "result = NULL"))
    rewrite(patch, settle, "APPLY", ("ELSE coalesce(:result, result) END", "ELSE result END"))

    class ResultLater(SQLiteStore):
        async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
            verdicts = await super().apply(transitions, now)
            for transition in transitions:
                if transition.event is Event.COMPLETE:
                    await self._write("result", _write_result(transition), essential=True)
            return verdicts

    return ResultLater


def _write_result(transition: Transition) -> Callable[[Tx], object]:
    statement = "UPDATE job SET result = ? WHERE job_id = ? AND status = 'completed'"
    return lambda tx: tx.connection.execute(statement, (transition.result, transition.job_id))


@bug("S10")
def failures_are_counted_twice(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "APPLY", ("coalesce(:failures, failures)", "coalesce(:failures + 1, failures)"))


@bug("S10")
def a_crash_is_not_counted_as_a_failure(patch: Patch, gap: Gap) -> None:
    counted = "failures = CASE WHEN :lease IS NULL THEN coalesce(:failures, failures) ELSE failures END"
    rewrite(patch, settle, "APPLY", ("failures = coalesce(:failures, failures)", counted))


@bug("S6")
def a_change_does_not_count_its_version(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "COMPLETE", ("version = version + 1, ", ""))


@bug("S6", "S7")
def jobs_are_promoted_without_a_guard(patch: Patch, gap: Gap) -> Engine:
    rewrite(
        patch,
        maintenance,
        "PROMOTE",
        ("SET status = 'pending'", "SET status = 'pending', lease_expires_at = NULL"),
        ("|| status ||", "|| 'retrying' ||"),
        (" AND +status IN ('scheduled', 'retrying')", ""),
    )
    at = maintenance.PROMOTE.index("WHERE seq IN (")
    blind = maintenance.PROMOTE[:at] + "WHERE seq IN (SELECT value FROM json_each(:seqs))"

    class Blind(SQLiteStore):
        async def promote(self, now: Instant, limit: int) -> Promoted:
            due = "SELECT seq FROM job WHERE status IN ('scheduled', 'retrying') AND scheduled_for <= ?"
            seqs = await self._read(lambda c: [seq for (seq,) in c.execute(due, (now,))])
            await gap()
            bindings = {"now": now, "seqs": msgspec.json.encode(seqs).decode()}
            await self._write("promote", lambda tx: tx.connection.execute(blind, bindings), essential=True)
            return Promoted(len(seqs), None)

    return Blind


@bug("S13")
def jobs_are_promoted_before_they_are_due(patch: Patch, gap: Gap) -> Engine:
    class Early(SQLiteStore):
        async def promote(self, now: Instant, limit: int) -> Promoted:
            rewritten = maintenance.PROMOTE.replace(" AND scheduled_for <= :now", "")
            assert rewritten != maintenance.PROMOTE
            bindings = {"now": now, "limit": limit}
            await self._write("promote", lambda tx: tx.connection.execute(rewritten, bindings), essential=True)
            return Promoted(0, None)

    return Early


@bug("S15", "S4")
def a_cancel_overwrites_a_completion(patch: Patch, gap: Gap) -> None:
    rewrite(
        patch,
        settle,
        "APPLY",
        ("result = CASE WHEN :clear_result", "result = CASE WHEN :clear_result OR :target = 'cancelled'"),
        ("  AND +status = :source\n", "  AND (:target = 'cancelled' OR +status = :source)\n"),
        (
            "  AND (:version IS NULL OR version = :version)\n",
            "  AND (:target = 'cancelled' OR :version IS NULL OR version = :version)\n",
        ),
    )


# Dependencies


@bug("S12")
def dependencies_are_not_waited_for(patch: Patch, gap: Gap) -> None:
    patch.setattr(insert, "_standing", lambda tx, depends_on, promised: dict.fromkeys(depends_on, Status.COMPLETED))


@bug("S12")
def a_failed_parent_releases_its_children(patch: Patch, gap: Gap) -> None:
    real = release.released

    def released(*, outcome: Status | None, **rest: Any) -> Any:
        return real(outcome=Status.COMPLETED, **rest)

    patch.setattr(release, "released", released)


@bug("S12")
def edges_are_not_consumed(patch: Patch, gap: Gap) -> None:
    rewrite(patch, release, "MEET", ("SET met = 1", "SET met = 0"))
