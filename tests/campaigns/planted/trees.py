"""Bugs of trees, planted into the SQLite engine one at a time."""

from __future__ import annotations

from typing import Any

from backstay.clock import Instant
from backstay.core.dependencies import Brood, TriggerRule, moved
from backstay.core.records import Transition, Verdict
from backstay.core.states import Status
from backstay.engines import release as after_end
from backstay.engines.places import Standing
from backstay.engines.sqlite import insert, places, release, settle
from backstay.engines.sqlite.store import SQLiteStore
from backstay.engines.sqlite.writer import Tx
from tests.campaigns.planted.jobs import Bug, Engine, Gap, Patch, planting, rewrite

TREE_BUGS: list[Bug] = []
bug = planting(TREE_BUGS)


# Counts of a parent


@bug("S22", "S24")
def a_settlement_that_is_repeated_counts_again(patch: Patch, gap: Gap) -> None:
    was_applied = places.was_applied

    def counting(tx: Tx, t: Transition, job: Standing) -> bool:
        repeated = was_applied(tx, t, job)
        if repeated:
            tx.broods.add(t.parent_job_id, moved(t.source, t.target))
        return repeated

    patch.setattr(places, "was_applied", counting)


@bug("S22")
def a_cancelled_child_is_not_counted(patch: Patch, gap: Gap) -> None:
    def without_cancels(source: Status | None, target: Status) -> Brood:
        return Brood() if target is Status.CANCELLED else moved(source, target)

    patch.setattr(settle, "moved", without_cancels)


@bug("S22")
def children_of_a_batch_are_counted_as_one(patch: Patch, gap: Gap) -> None:
    rewrite(
        patch,
        release,
        "COUNT_CHILDREN",
        ("+ :children", "+ min(1, :children)"),
        ("(0, :children)", "(0, min(1, :children))"),
    )


@bug("S24")
def a_parent_is_not_held_until_its_children_are_unpacked(patch: Patch, gap: Gap) -> None:
    rewrite(
        patch,
        release,
        "COUNT_CHILDREN",
        (
            "+ :open,",
            "+ CASE WHEN :children = 0 AND :open = 1 THEN 0 ELSE max(:open, -coalesce(open_children, 0)) END,",
        ),
        ("max(0, :open)", "CASE WHEN :children = 0 THEN 0 ELSE max(0, :open) END"),
    )


@bug("S24")
def a_late_dependency_lets_a_waiting_parent_go_on(patch: Patch, gap: Gap) -> None:
    rewrite(patch, release, "UNMET", ("w.awaits,", "NULL,"))


# Submitting children


@bug("S2", "S23")
def children_survive_a_run_that_failed(patch: Patch, gap: Gap) -> None:
    def bring_stale(tx: Tx) -> int:
        for (packed,) in tx.rows("SELECT jobs FROM staged"):
            insert.insert(tx, settle._jobs.decode(packed), 0)
        tx.connection.execute("DELETE FROM staged")
        return 0

    patch.setattr(settle, "drop_stale", bring_stale)


@bug("S5")
def children_are_made_at_once_without_a_fence(patch: Patch, gap: Gap) -> None:
    patch.setattr(settle, "_held", lambda tx, hold: Verdict.APPLIED)


@bug("S1", "S3")
def a_part_is_taken_before_its_children_are_stored(patch: Patch, gap: Gap) -> Engine:
    unpack = settle.unpack

    class TakesFirst(SQLiteStore):
        async def _unpack(self, now: Instant, limit: int, job_id: str | None = None) -> int:
            taken: list[tuple[Any, ...]] = []

            def take(tx: Tx) -> None:
                taken.extend(tx.rows("SELECT s.* FROM staged AS s JOIN unpack_due USING (job_id, attempt)"))
                tx.connection.execute(
                    "DELETE FROM staged WHERE (job_id, attempt) IN (SELECT job_id, attempt FROM unpack_due)"
                )

            def put(tx: Tx) -> int:
                for row in taken:
                    tx.connection.execute("INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?)", row)
                return sum(unpack(tx, now) for _ in taken)

            await self._write("take", take, essential=True)
            return await self._write("unpack", put, essential=True)

    return TakesFirst


# Rules


def _deciding(patch: Patch, rule: TriggerRule, outcome: Status, as_if: dict[str, Any]) -> None:
    real = after_end.released

    def released(**asked: Any) -> Status | None:
        hit = asked["rule"] is rule and asked["outcome"] is outcome
        return real(**(asked | as_if if hit else asked))

    patch.setattr(after_end, "released", released)


@bug("S12")
def one_success_starts_at_a_failure(patch: Patch, gap: Gap) -> None:
    _deciding(patch, TriggerRule.ONE_SUCCESS, Status.FAILED, {"outcome": Status.COMPLETED})


@bug("S12")
def none_failed_takes_cancelled_for_failed(patch: Patch, gap: Gap) -> None:
    _deciding(patch, TriggerRule.NONE_FAILED, Status.CANCELLED, {"outcome": Status.FAILED})


@bug("S12")
def all_done_wants_success(patch: Patch, gap: Gap) -> None:
    _deciding(patch, TriggerRule.ALL_DONE, Status.FAILED, {"rule": TriggerRule.ALL_SUCCESS})


@bug("S12")
def a_job_that_waits_again_has_its_edges_met(patch: Patch, gap: Gap) -> None:
    rewrite(patch, settle, "UNMEET", ("WHERE child_id = ?1", "WHERE child_id = ?1 AND met IS NULL"))
