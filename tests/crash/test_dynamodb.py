"""DynamoDB's workers are killed, and have a bad day: the campaign in small (scripts/campaign dynamodb)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.dynamodb import LEASE_SECONDS, kill, suffer
from tests.campaigns.kills import IN_TREES, Plan
from tests.campaigns.places import Tables
from tests.campaigns.stalls import stall
from tests.support.servers.dynamo_proxy import DynamoProxy
from tests.support.servers.dynamodb import DynamoDB

# The others are in the campaign: some come only once a lease has run out.
POINTS = (
    "claim.uncommitted",
    "claim.committed",
    "handler.inside",
    "settle.before",
    "apply.uncommitted",
    "apply.committed",
    "insert.uncommitted",
    "insert.committed",
)


@pytest.mark.timeout(240)
async def test_no_job_is_lost_or_completed_twice_when_processes_are_killed_and_replies_are_lost(
    tmp_path: Path, dynamodb: DynamoDB
) -> None:
    plan = Plan(at_each_point=1, from_outside=4, graceful=1, seed=1, workers=3, lanes=1, backlog=20, points=POINTS)

    report, errors, unheard = await kill(tmp_path, dynamodb, plan, within=180)

    assert ([str(each) for each in report.violations], report.deaths) == ([], []), errors
    assert {point: report.kills[point] for point in POINTS} == dict.fromkeys(POINTS, plan.at_each_point)
    assert report.graceful == plan.graceful
    assert report.jobs["completed"] > 20
    assert unheard > 0


@pytest.mark.timeout(240)
async def test_no_child_is_lost_or_made_twice_when_workers_are_killed(tmp_path: Path, dynamodb: DynamoDB) -> None:
    points = tuple(IN_TREES)
    plan = Plan(
        at_each_point=1, from_outside=2, graceful=1, seed=1, workers=3, lanes=1, backlog=10, points=points, families=0.4
    )

    report, errors, _ = await kill(tmp_path, dynamodb, plan, within=150)

    assert ([str(each) for each in report.violations], report.deaths) == ([], []), errors
    assert {point: report.kills[point] for point in points} == dict.fromkeys(points, plan.at_each_point)


@pytest.mark.timeout(180)
async def test_no_job_is_lost_or_completed_twice_on_a_throttled_line_that_loses_replies_and_shows_old_indexes(
    tmp_path: Path, dynamodb: DynamoDB
) -> None:
    def a_bad_day(line: DynamoProxy) -> None:
        line.throttle(0.3)
        line.lose(10)
        line.reply_500_after(10)
        line.stale(1.0)

    suffered = await suffer(tmp_path, dynamodb, a_bad_day, workers=2, between=15)

    assert suffered.faults == []
    assert suffered.lost_replies >= 10


@pytest.mark.timeout(120)
async def test_a_worker_that_was_stopped_past_its_lease_is_refused(tmp_path: Path, dynamodb: DynamoDB) -> None:
    report = await stall(tmp_path, "handler.after", 2, LEASE_SECONDS / 2, Tables.new(dynamodb))

    assert (report.settlements_refused, report.accepted, report.deaths, report.violations) == (2, [], [], [])
