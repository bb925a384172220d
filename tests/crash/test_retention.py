"""Retention while eight processes work: nothing active is touched, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from backstay.clock import MICROS
from backstay.core.records import FOREVER, JobRecord
from backstay.core.states import Status
from backstay.testing.history import Operation, Outcome
from backstay.testing.history.evidence import Answer, Item
from tests.campaigns.fleet import Fleet
from tests.campaigns.kills import EXTERNAL
from tests.campaigns.processes.retention import KEPT
from tests.campaigns.retention import KILL_POINTS, RetirePlan, Retiring
from tests.campaigns.retention_judge import Archived, Books, Gone, judge

PLAN = RetirePlan(at_each_point=2, from_outside=6, seed=1, jobs=200, retries=11)


async def test_retention_loses_nothing_and_touches_nothing_active_while_processes_work_and_die(tmp_path: Path) -> None:
    async with Fleet.open(tmp_path, lease=2) as fleet:
        report = await Retiring(fleet, PLAN).run(within=60)
        errors = fleet.errors()
    assert report.faults == [], errors
    points = Counter(point for points in KILL_POINTS.values() for point in points)
    assert {point: report.kills[point] for point in points} == {
        point: times * PLAN.at_each_point for point, times in points.items()
    }
    assert report.kills[EXTERNAL] == PLAN.from_outside
    assert report.acknowledged >= report.stayed + PLAN.jobs
    assert report.archived.keys() == KEPT.keys() - {"kept"}
    assert report.of_trees
    assert report.retried_by_hand > 10
    assert report.answered_from_the_archive > 10


NOW = 1_900_000_000 * MICROS


def _record(job_id: str, **fields: object) -> JobRecord:
    values = {
        "job_id": job_id,
        "job_type": "brief",
        "queue": "default",
        "status": Status.COMPLETED,
        "priority": 50,
        "payload": "null",
        "created_at": NOW,
        "updated_at": NOW,
        "scheduled_for": NOW,
        "completed_at": NOW,
        "max_attempts": 5,
        "timeout_micros": MICROS,
        "attempt": 1,
        "version": 3,
    }
    return msgspec.convert(values | fields, JobRecord)


def _acknowledged(job_id: str, asked: str | None = None, key: str | None = None) -> Operation:
    item = Item(job_id=asked or job_id, own_id=True, dedup_key=key, dedup_until=FOREVER if key else None)
    answer = Answer(job_id=job_id, existing=asked is not None)
    return Operation(
        process="lane0", number=1, verb="insert", item=item, outcome=Outcome.OK, invoked=1, returned=2, answer=answer
    )


def _sound() -> Books:
    """One job that stays, one that left, and a tree of two that left together."""
    stays = _record("stays", job_type="kept", artifacts="[]")
    left = [_record("left"), _record("root"), _record("leaf", root_job_id="root", job_type="failing", status="failed")]
    return Books(
        jobs=[stays],
        archive=[Archived(each.job_id, NOW + MICROS, each) for each in left],
        born=[("stays", "kept"), ("left", "brief"), ("root", "brief"), ("leaf", "failing")],
        gone=[
            Gone(each.job_id, each.job_type, each.status, each.completed_at, 1, 0, each.root_job_id, True)
            for each in left
        ],
        moved=[each.job_id for each in left],
        dropped=[],
        changes=Counter(
            {
                ("kept", "processing", "completed"): 1,
                ("brief", "processing", "completed"): 2,
                ("failing", "processing", "failed"): 1,
            }
        ),
        counters=Counter(
            {
                ("kept", "submitted"): 1,
                ("kept", "completed"): 1,
                ("brief", "submitted"): 2,
                ("brief", "completed"): 2,
                ("failing", "submitted"): 1,
                ("failing", "failed"): 1,
            }
        ),
        operations=[
            _acknowledged("stays"),
            _acknowledged("left", key="k"),
            _acknowledged("left", asked="other", key="k"),
        ],
        folders={"stays": NOW},
    )


def test_the_judge_of_retention_passes_what_is_promised() -> None:
    assert judge(_sound()) == []


def _in_archive(books: Books, job_id: str, **fields: object) -> Books:
    return replace(
        books,
        archive=[msgspec.structs.replace(each, **fields) if each.job_id == job_id else each for each in books.archive],
    )


def _as_it_left(books: Books, job_id: str, **fields: object) -> Books:
    return replace(
        books,
        gone=[msgspec.structs.replace(each, **fields) if each.job_id == job_id else each for each in books.gone],
    )


FLAWS: dict[str, Callable[[Books], Books]] = {
    "an acknowledged job is nowhere": lambda b: replace(b, operations=[*b.operations, _acknowledged("lost")]),
    "a stored job is nowhere": lambda b: replace(
        b, archive=b.archive[1:], gone=b.gone[1:], moved=b.moved[1:], operations=[]
    ),
    "a job is in both": lambda b: replace(b, jobs=[*b.jobs, _record("left")]),
    "a job was stored again": lambda b: replace(
        b, born=[*b.born, ("left", "brief")], counters=b.counters + Counter({("brief", "submitted"): 1})
    ),
    "the archive lost one": lambda b: replace(b, dropped=["left"]),
    "one was archived twice": lambda b: replace(b, moved=[*b.moved, "left"]),
    "an active job left": lambda b: _as_it_left(b, "left", status="processing"),
    "one left without a trace": lambda b: _as_it_left(b, "left", in_archive=False),
    "the archive has an older state": lambda b: _as_it_left(b, "left", attempt=2),
    "one left too early": lambda b: _in_archive(b, "left", archived_at=NOW + MICROS // 10),
    "one left that is kept for ever": lambda b: _in_archive(b, "left", record=_record("left", job_type="kept")),
    "a part of a tree stayed": lambda b: replace(
        b,
        archive=b.archive[:2],
        gone=b.gone[:2],
        moved=b.moved[:2],
        jobs=[*b.jobs, _record("leaf", root_job_id="root")],
    ),
    "the root of a tree stayed": lambda b: replace(
        b,
        archive=[b.archive[0], b.archive[2]],
        gone=[b.gone[0], b.gone[2]],
        moved=["left", "leaf"],
        jobs=[*b.jobs, _record("root")],
    ),
    "a key changed hands": lambda b: replace(b, operations=[*b.operations, _acknowledged("stays", key="k")]),
    "files outlived their job": lambda b: replace(b, folders={**b.folders, "left": NOW}),
    "files of one that stays are gone": lambda b: replace(b, folders={}),
    "something was not counted": lambda b: replace(b, counters=b.counters - Counter({("brief", "completed"): 1})),
    "something was counted twice": lambda b: replace(b, counters=b.counters + Counter({("brief", "submitted"): 1})),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_judge_of_retention_finds(flaw: str) -> None:
    assert judge(FLAWS[flaw](_sound())) != []
