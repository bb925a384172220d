"""More than a hundred kills, at every named point and at random, judged by the history checker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.fleet import Fleet
from tests.campaigns.kills import EXTERNAL, POINTS, Killing, Plan
from tests.campaigns.places import File, Place, Schema

PLANS = {
    File: Plan(at_each_point=4, from_outside=15, graceful=10, seed=1),
    Schema: Plan(at_each_point=3, from_outside=25, graceful=5, seed=1),  # to open a server's connections takes longer
}


@pytest.mark.timeout(240)  # on a busy machine
async def test_no_job_is_lost_or_completed_twice_when_processes_are_killed(tmp_path: Path, place: Place) -> None:
    plan = PLANS[type(place)]
    async with Fleet.open(tmp_path, lease=0.8, place=place) as fleet:
        report = await Killing(fleet, plan).run(within=180)
        errors = fleet.errors()
    assert [str(each) for each in report.violations] == [], errors
    assert report.deaths == [], errors
    assert {point: report.kills[point] for point in POINTS} == dict.fromkeys(POINTS, plan.at_each_point)
    assert report.kills[EXTERNAL] >= plan.from_outside
    assert report.kills.total() >= 100
    assert report.graceful == plan.graceful
    assert report.jobs["completed"] > 100
    assert report.rescue_seconds
