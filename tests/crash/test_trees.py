"""Workers die while they make children, stage them and unpack them: no child is lost, none is made twice, and every
parent goes on once, when its last child has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.fleet import Fleet
from tests.campaigns.kills import IN_TREES, Killing, Plan
from tests.campaigns.places import Place

PLAN = Plan(
    at_each_point=2,
    from_outside=6,
    graceful=2,
    seed=1,
    workers=3,
    lanes=1,
    backlog=40,
    points=tuple(IN_TREES),
    families=0.4,
)


@pytest.mark.timeout(240)  # on a busy machine
async def test_no_child_is_lost_or_made_twice_when_workers_are_killed(tmp_path: Path, place: Place) -> None:
    async with Fleet.open(tmp_path, lease=0.8, place=place) as fleet:
        report = await Killing(fleet, PLAN).run(within=180)
        errors = fleet.errors()
    assert [str(each) for each in report.violations] == [], errors
    assert report.deaths == [], errors
    assert {point: report.kills[point] for point in IN_TREES} == dict.fromkeys(IN_TREES, PLAN.at_each_point)
    assert report.jobs["completed"] > 50
