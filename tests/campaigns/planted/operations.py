"""Bugs of operating, planted into the SQLite engine one at a time."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core.records import Firing, RetentionPolicy, Retired, Transition, Verdict
from backstay.engines import release as after_end
from backstay.engines import sql_rows
from backstay.engines.sqlite import claim, insert, maintenance, places, settle
from backstay.engines.sqlite import retention as sqlite_retention
from backstay.engines.sqlite.store import SQLiteStore
from backstay.engines.sqlite.writer import Tx, Verb, Writer
from tests.campaigns.planted.jobs import Engine, Patch, bug, forget, rewrite
from tests.campaigns.stage import Gap

# Schedules

_DUE = " AND next_at = :due_at"


@bug("S19")
def a_schedule_is_fired_by_who_read_another_tick(patch: Patch, gap: Gap) -> None:
    rewrite(patch, maintenance, "FIRE", (_DUE, ""))


@bug("S19")
def a_schedule_is_fired_by_who_read_another_version(patch: Patch, gap: Gap) -> None:
    rewrite(patch, maintenance, "FIRE", (" AND version = :version", ""))


@bug("S19")
def a_paused_schedule_is_fired(patch: Patch, gap: Gap) -> None:
    rewrite(patch, maintenance, "FIRE", (" AND paused_at IS NULL", ""))


@bug("S19")
def every_worker_makes_its_own_job_for_a_tick(patch: Patch, gap: Gap) -> Engine:
    rewrite(patch, maintenance, "FIRE", (_DUE, ""))

    class OwnIds(SQLiteStore):
        async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
            return await super().fire([_with_new_ids(each) for each in firings], now)

    return OwnIds


def _with_new_ids(firing: Firing) -> Firing:
    jobs = (msgspec.structs.replace(job, job_id=job.job_id[:-12] + secrets.token_hex(6)) for job in firing.jobs)
    return msgspec.structs.replace(firing, jobs=tuple(jobs))


@bug("S19")
def a_schedule_moves_on_before_its_jobs_are_stored(patch: Patch, gap: Gap) -> Engine:
    class TwoCommits(SQLiteStore):
        async def fire(self, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
            empty = [msgspec.structs.replace(each, jobs=()) for each in firings]
            verdicts = await super().fire(empty, now)
            for firing, verdict in zip(firings, verdicts, strict=True):
                if verdict is Verdict.APPLIED and firing.jobs:
                    await self.insert(firing.jobs, now)
            return verdicts

    return TwoCommits


@bug("S1", "S19")
def a_tick_is_decided_and_its_job_forgotten(patch: Patch, gap: Gap) -> None:
    class Nothing:
        @staticmethod
        def insert(tx: Tx, jobs: Sequence[Any], now: Instant) -> list[Any]:
            return list(jobs)  # as if they were stored

    patch.setattr(maintenance, "insert", Nothing)


# Pausing


@bug("S20")
def a_claim_does_not_look_for_pauses(patch: Patch, gap: Gap) -> None:
    rewrite(patch, claim, "CANDIDATES", ("paused_at IS NOT NULL", "0"))


# Retention


@bug("S1")
def a_job_is_archived_as_it_was_read(patch: Patch, gap: Gap) -> Engine:
    """Archive a job as it was read, ignoring a retry in between."""

    class Blind(SQLiteStore):
        async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
            found = await self._read(lambda c: sqlite_retention.look(c, policy, now, limit, after))
            read = await self._write("read", lambda tx: _read_rows(tx, found, now), essential=True)
            if read:
                await gap()
            await self._write("retire", lambda tx: _move(tx, read), essential=True)
            return Retired(len(read), 0, found.next)

    return Blind


def _read_rows(tx: Tx, found: sql_rows.Found, now: Instant) -> list[tuple[Any, ...]]:
    """Return the archive rows of the jobs, without storing them."""
    batch = msgspec.json.encode([seq for seq, _ in found.batch]).decode()
    before = {row[0] for row in tx.rows("SELECT job_id FROM archive")}
    tx.connection.execute(sqlite_retention.ARCHIVE, {"now": now, "batch": batch})
    rows = [row for row in tx.rows("SELECT * FROM archive") if row[0] not in before]
    tx.connection.executemany("DELETE FROM archive WHERE job_id = ?", [row[:1] for row in rows])
    return rows


def _move(tx: Tx, rows: list[tuple[Any, ...]]) -> None:
    tx.connection.executemany("INSERT INTO archive VALUES (?, ?, ?, ?, ?)", rows)
    for row in rows:
        forget(tx, row[0])


@bug("S1")
def an_active_job_is_archived(patch: Patch, gap: Gap) -> Engine:
    """Archive a job of an expired type in any state; the archive shows it as cancelled."""
    active = """
        SELECT seq, job_id FROM job
        WHERE seq IN (SELECT seq FROM ready UNION SELECT seq FROM running)
          AND job_type IN (SELECT value FROM json_each(?))
        LIMIT 1"""
    forced = sqlite_retention.ARCHIVE.replace("e.status,", "'cancelled',", 1).replace("    e.attempt > 1", "    1", 1)
    forced = forced.replace("e.completed_at", ":now")
    assert "'cancelled'" in forced

    class Greedy(SQLiteStore):
        async def retire(self, policy: RetentionPolicy, now: Instant, limit: int, after: str | None) -> Retired:
            types = msgspec.json.encode(policy.job_types).decode()

            def move(tx: Tx) -> None:
                for seq, job_id in tx.rows(active, (types,)):
                    tx.connection.execute(forced, {"now": now, "batch": f"[{seq}]"})
                    forget(tx, job_id)

            await self._write("retire", move, essential=True)
            return await super().retire(policy, now, limit, after)

    return Greedy


@bug("S1")
def jobs_are_archived_as_soon_as_they_end(patch: Patch, gap: Gap) -> None:
    real = sql_rows.is_over

    def is_over(policy: RetentionPolicy, job_type: str, status: str, at: Instant | None, now: Instant) -> bool:
        return real(policy, job_type, status, None if at is None else 0, now)

    patch.setattr(sql_rows, "is_over", is_over)
    patch.setattr(sql_rows, "newest_cutoff", lambda policy, now: now)


@bug("S1")
def a_tree_is_archived_piece_by_piece(patch: Patch, gap: Gap) -> None:
    patch.setattr(sql_rows, "with_tree", lambda policy, job, members, now: {job[0]: job[4]})
    patch.setattr(sqlite_retention, "_standing", lambda tx, batch: [seq for seq, _ in batch])


@bug("S1")
def the_archive_forgets_at_once(patch: Patch, gap: Gap) -> None:
    real = sqlite_retention._drop

    def drop(tx: Tx, policy: RetentionPolicy, now: Instant, limit: int) -> int:
        return real(tx, msgspec.structs.replace(policy, archive_micros=0), now, limit)

    patch.setattr(sqlite_retention, "_drop", drop)
    patch.setattr(sqlite_retention, "anything_to_drop", lambda connection, policy, now: True)


@bug("S11")
def the_archive_loses_the_guards_of_keys(patch: Patch, gap: Gap) -> None:
    real = sqlite_retention.retire

    def retire(tx: Tx, *rest: Any) -> Any:
        done = real(tx, *rest)
        tx.connection.execute("DELETE FROM dedup WHERE job_id IN (SELECT job_id FROM archive)")
        return done

    patch.setattr(sqlite_retention, "retire", retire)


# Counting


@bug("S21")
def a_repeated_settlement_is_counted_again(patch: Patch, gap: Gap) -> None:
    real = settle.apply

    def apply(tx: Tx, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        before = _versions(tx, transitions)
        verdicts = real(tx, transitions, now)
        after = _versions(tx, transitions)
        for t, verdict in zip(transitions, verdicts, strict=True):
            if verdict is Verdict.APPLIED and before.get(t.job_id) == after.get(t.job_id):
                settle._count(tx, [t], now)
        return verdicts

    patch.setattr(settle, "apply", apply)


def _versions(tx: Tx, transitions: Sequence[Transition]) -> dict[str, int]:
    found = places.standings(tx, [t.job_id for t in transitions])
    return {job_id: job.version for job_id, job in found.items()}


@bug("S21")
def counters_are_written_in_a_commit_of_their_own(patch: Patch, gap: Gap) -> None:
    def transact(self: Writer, group: list[Verb]) -> Any:
        tx = Tx(self.connection)
        self._running = None
        with self.connection:
            for verb in group:
                self._run(tx, verb)
        self.hit_failpoints(group, "committed")
        with self.connection:
            tx.write_counters()
        return tx.signals

    patch.setattr(Writer, "_transact", transact)


@bug("S21")
def dependents_that_end_with_their_parent_are_not_counted(patch: Patch, gap: Gap) -> None:
    patch.setattr(after_end, "counted", lambda event, target: None)


# Editors


@bug("S7")
def another_priority_drops_the_lease(patch: Patch, gap: Gap) -> None:
    rewrite(patch, places, "STAY_RUNNING", ("SET version", "SET lease_expires_at = 0, version"))


@bug("S9")
def another_priority_takes_the_claim_away(patch: Patch, gap: Gap) -> None:
    rewrite(patch, places, "STAY_RUNNING", ("SET version", "SET token = 0, version"))


@bug("S12")
def a_retry_by_hand_does_not_ask_for_dependencies(patch: Patch, gap: Gap) -> None:
    patch.setattr(settle, "OUTCOMES_OF", "SELECT 'completed', 1 WHERE ?1 IS NOT NULL")


@bug("S11")
def a_retry_by_hand_does_not_ask_for_its_key(patch: Patch, gap: Gap) -> None:
    patch.setattr(insert, "may_guard_again", lambda tx, job_id, now: True)


@bug("S11")
def a_window_of_a_key_is_not_looked_at(patch: Patch, gap: Gap) -> None:
    real = insert._by_dedup_key

    def by_dedup_key(tx: Tx, job: Any, now: Instant, *, promised: bool) -> Any:
        found = real(tx, job, now, promised=promised)
        return None if found is not None and found.status in settle.TERMINAL else found

    patch.setattr(insert, "_by_dedup_key", by_dedup_key)
