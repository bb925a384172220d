"""Children that come with something else are submitted jobs like others: the judge knows where each came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from backstay.backoff import Backoff
from backstay.core.lifecycle import Completed, decide
from backstay.core.port import Store
from backstay.core.records import Hold, Inserted, JobRecord, NewJob, Staged, Verdict
from backstay.core.states import Status
from backstay.testing.history import Evidence, OperationLog, Outcome, digest, read_operations
from backstay.testing.history.evidence import Item
from backstay.testing.history.recorder import recorded
from tests.testing.history.histories import Calls, job, judged

PARENT = job("a", "submit, claim, complete")
CHILD = job("c", "submit")
RUNNING = job("a", "submit, claim")


def born(job_id: str = "c") -> tuple[Item, ...]:
    return (Item(job_id=job_id, payload=digest("{}"), scheduled_for=1_000),)


def begun() -> Calls:
    calls = Calls()
    calls.submit("a")
    calls.claim("a")
    return calls


@pytest.mark.parametrize(
    ("outcome", "records", "broken"),
    [
        (Outcome.OK, [PARENT, CHILD], set()),
        (Outcome.OK, [PARENT], {"S1", "S3"}),
        (Outcome.INFO, [PARENT, CHILD], set()),
        (Outcome.INFO, [RUNNING], set()),
    ],
)
def test_a_child_is_there_if_and_only_if_the_settlement_that_brings_it_is(
    outcome: Outcome, records: list[JobRecord], broken: set[str]
) -> None:
    calls = begun()
    calls.apply("a", "complete", outcome=outcome, jobs=born())
    assert judged(records, calls) == broken


def test_a_settlement_that_is_refused_brings_no_child() -> None:
    calls = begun()
    calls.apply("a", "rescue", lease=10_000)
    calls.apply("a", "complete", outcome=Outcome.STALE, jobs=born())
    rescued = job("a", "submit, claim, rescue")
    with_child = judged([rescued, CHILD], calls) - judged([rescued], calls)
    assert with_child == {"S2", "S3"}


def test_staged_children_are_there_if_a_settlement_has_named_them() -> None:
    calls = begun()
    calls.stage("a", born())
    assert judged([RUNNING], calls) == set()
    assert "S2" in judged([RUNNING, CHILD], calls)

    calls.apply("a", "complete", staged=1)
    assert judged([PARENT, CHILD], calls) == set()
    assert "S1" in judged([PARENT], calls)
    assert judged([PARENT], calls, ended=False) == set()


def test_what_another_attempt_has_staged_means_nothing() -> None:
    calls = begun()
    calls.stage("a", born("old"))
    calls.apply("a", "retry", scheduled_for=1_003)
    calls.claim("a", 2)
    calls.stage("a", born(), attempt=2)
    calls.apply("a", "complete", 2, staged=1)
    parent = job("a", "submit, claim, retry, due, claim, complete")
    assert judged([parent, CHILD], calls) == set()
    assert "S2" in judged([parent, CHILD, job("old", "submit")], calls)


@pytest.mark.parametrize("held", [True, False])
def test_a_child_that_is_stored_at_once_needs_its_parents_claim(held: bool) -> None:
    calls = begun()
    calls.insert_children("a", born(), outcome=Outcome.OK if held else Outcome.STALE)
    assert judged([RUNNING, CHILD], calls) == (set() if held else {"S2", "S3"})
    assert judged([RUNNING], calls) == ({"S1", "S3"} if held else set())


class _Answering:
    """A store that stores nothing, and says that it did."""

    async def insert_children(self, hold: Hold, jobs: list[NewJob], now: int) -> list[Inserted] | None:
        return [Inserted(each.job_id, Status.PENDING) for each in jobs] if hold.attempt == 1 else None

    async def stage(self, hold: Hold, part: int, jobs: list[NewJob], now: int) -> Verdict:
        return Verdict.APPLIED

    async def apply(self, transitions: list[Any], now: int) -> list[Verdict]:
        return [Verdict.APPLIED for _ in transitions]


def a_child(job_id: str) -> NewJob:
    return NewJob(job_id, "work", "default", 50, "{}", 0, 5, 1_000_000, own_id=True, special=True, parent_job_id="a")


async def test_children_are_recorded_however_they_come(tmp_path: Path) -> None:
    log = OperationLog(tmp_path / "p1.jsonl")
    store = recorded(cast(Store, _Answering()), log)
    claimed: Any = job("a", "submit, claim", started_at=1_000)
    options: dict[str, Any] = {"now": 1_100, "backoff": Backoff(), "draw": 0.5, "token": "t", "by": "w"}

    await store.insert_children(Hold("a", 1, "t"), [a_child("at once")], 1_050)
    await store.insert_children(Hold("a", 2, "t"), [a_child("refused")], 1_050)
    await store.stage(Hold("a", 1, "t"), 0, [a_child("staged")], 1_060)
    said: dict[str, Any] = {"children": (a_child("inline"),), "staged": Staged(1, 1)}
    await store.apply([decide(claimed, Completed("1"), **options, **said)], 1_100)
    log.close()

    found = Evidence([], read_operations([log.path]))
    assert found.acknowledged.keys() == {"at once", "staged", "inline"}
    assert {item.parent for item, _ in found.submissions} == {"a"}
