"""One job per tick: eight processes, clocks that differ and jump, processes that stop and die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from backstay.clock import MICROS
from backstay.core.records import Verdict
from tests.campaigns.fleet import Fleet
from tests.campaigns.kills import EXTERNAL
from tests.campaigns.processes.schedule import Fired
from tests.campaigns.ticks import FIRE_POINTS, LEASE_SECONDS, WORKERS, Ticking, TickPlan
from tests.campaigns.ticks_judge import Rule, Story, judge

PLAN = TickPlan(at_each_point=3, from_outside=4, stops=2, seed=1, ticks=500, upsets=30)


async def test_every_tick_has_one_job_and_none_is_missed_under_its_policy(tmp_path: Path) -> None:
    async with Fleet.open(tmp_path, lease=LEASE_SECONDS, BACKSTAY_POLL_INTERVAL="0.1") as fleet:
        report = await Ticking(fleet, PLAN).run(within=60)
        errors = fleet.errors()
    assert report.faults == [], errors
    assert {point: report.kills[point] for point in FIRE_POINTS} == dict.fromkeys(FIRE_POINTS, PLAN.at_each_point)
    assert report.kills[EXTERNAL] == PLAN.from_outside
    assert report.refused_after_stop == report.stops == PLAN.stops
    assert {"forward", "back", "stood still", "all forward"} <= report.upsets.keys()
    assert report.firings["stale"], "nobody ever came second: this was no race"
    assert report.fired_by > WORKERS / 2
    assert report.jobs["all"] == report.ticks["all"] >= 10
    assert report.ticks["one"] > report.jobs["one"] >= 5
    assert report.ticks["skip"] > report.jobs["skip"] >= 2


MINUTE = 60 * MICROS
FIRST = 1_900_000_020 * MICROS  # on the minute


def _story(missed: str, *firings: tuple[int, int, int, tuple[int, ...]]) -> Story:
    """Firings as (due, next, now, ticks), in minutes after the first tick; `now` half a minute later."""
    fired = [
        Fired(
            "worker-1",
            "report",
            FIRST + due * MINUTE,
            FIRST + following * MINUTE,
            FIRST + now * MINUTE + MINUTE // 2,
            tuple(FIRST + tick * MINUTE for tick in ticks),
            Verdict.APPLIED,
        )
        for due, following, now, ticks in firings
    ]
    return Story(
        Rule("report", "* * * * *", missed, 1),
        FIRST,
        fired[-1].next_at,
        [(each.due_at, each.next_at) for each in fired],
        [tick for each in fired for tick in each.ticks],
        fired,
    )


SOUND = {
    "all": _story("all", (0, 1, 0, (0,)), (1, 4, 3, (1, 2, 3)), (4, 5, 4, (4,))),
    "one": _story("one", (0, 1, 0, (0,)), (1, 4, 3, (3,)), (4, 5, 4, (4,))),
    "skip": _story("skip", (0, 1, 0, (0,)), (1, 4, 3, (3,)), (4, 5, 4, (4,))),
}


@pytest.mark.parametrize("missed", SOUND)
def test_the_judge_of_ticks_passes_what_each_policy_promises(missed: str) -> None:
    assert judge(SOUND[missed]) == []


def _at(fired: Fired, micros: int) -> Fired:
    return msgspec.structs.replace(fired, now=fired.now + micros)


FLAWS: dict[str, Callable[[Story], Story]] = {
    "a job is missing": lambda s: replace(s, jobs=s.jobs[:-1]),
    "a tick has two jobs": lambda s: replace(s, jobs=[*s.jobs, s.jobs[0]]),
    "a job between ticks": lambda s: replace(s, jobs=[*s.jobs, FIRST + 7]),
    "a job ahead of the cursor": lambda s: replace(s, jobs=[*s.jobs, s.cursor]),
    "the cursor went back": lambda s: replace(s, moves=[*s.moves, (s.cursor, FIRST)], cursor=FIRST),
    "two firings overlap": lambda s: replace(s, moves=[s.moves[0], s.moves[0], *s.moves[1:]]),
    "a firing left ticks out": lambda s: replace(s, moves=[s.moves[0], *s.moves[2:]]),
    "moved before its time": lambda s: replace(s, fired=[_at(each, -2 * MINUTE) for each in s.fired]),
    "nobody asked for it": lambda s: replace(s, fired=s.fired[1:]),
    "granted twice": lambda s: replace(s, fired=[*s.fired, s.fired[0]]),
    "the cursor moved by itself": lambda s: replace(s, cursor=s.cursor + MINUTE),
}


@pytest.mark.parametrize("missed", SOUND)
@pytest.mark.parametrize("flaw", FLAWS)
def test_the_judge_of_ticks_finds(flaw: str, missed: str) -> None:
    assert judge(FLAWS[flaw](SOUND[missed])) != []


def test_the_judge_of_ticks_knows_what_is_too_late() -> None:
    hourly = replace(SOUND["skip"].rule, minutes=60)
    late = FIRST // hourly.period * hourly.period
    assert hourly.decided(late, late + MINUTE) == ((late,), late + hourly.period)
    assert hourly.decided(late, late + MINUTE + 1) == ((), late + hourly.period)
