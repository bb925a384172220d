"""backstay schedules"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.conftest import Cli, Queue
from tests.cli.terminal import on_a_terminal

NIGHTLY = ("schedules", "add", "nightly", "30 3 * * *", "echo", '{"n": 1}', "--timezone", "Europe/Berlin")


def test_a_schedule_is_added_listed_shown_and_removed(cli: Cli, queue: Queue) -> None:
    assert cli("schedules").err.startswith("backstay: no schedules: add one with")
    added = cli(*NIGHTLY, "--missed", "all", "--priority", "high", "--queue", "bulk")
    assert (added.code, added.err) == (0, "")
    assert added.out.startswith("schedule nightly added; next run ")
    assert cli("schedules").out.splitlines()[1].startswith("nightly  30 3 * * *  Europe/Berlin  echo ")
    [item] = cli("schedules", "--json").document["items"]
    assert (item["missed"], item["priority"], item["queue"], item["payload"]) == ("all", 75, "bulk", {"n": 1})
    shown = cli("schedules", "show", "nightly").out
    assert "30 3 * * * in Europe/Berlin" in shown
    assert shown.count("03:30:00 Europe/Berlin") == 5
    assert cli("schedules", "remove", "nightly").out == "schedule nightly removed; its existing jobs stay\n"
    assert cli("schedules", "--json").document["items"] == []


def test_saying_it_again_changes_nothing_and_saying_it_differently_changes_it(cli: Cli, queue: Queue) -> None:
    cli(*NIGHTLY)
    assert cli(*NIGHTLY).out.startswith("schedule nightly unchanged; ")
    assert cli(*NIGHTLY, "--missed", "skip").out.startswith("schedule nightly changed; ")
    assert cli("schedules", "show", "nightly", "--json").document["missed"] == "skip"


def test_the_next_ticks_are_moments_after_now(cli: Cli, queue: Queue) -> None:
    cli(*NIGHTLY)
    document = cli("schedules", "show", "nightly", "--json").document
    ticks = [datetime.fromisoformat(each) for each in document["next_ticks"]]
    assert ticks == sorted(ticks)
    assert ticks[0] == datetime.fromisoformat(document["next_at"])


def test_a_paused_schedule_says_by_whom_and_has_no_next_tick_until_it_is_resumed(cli: Cli, queue: Queue) -> None:
    cli(*NIGHTLY)
    assert cli("schedules", "pause", "nightly", "--by", "ada").out.startswith("schedule nightly paused; no jobs until")
    row = cli("schedules").out.splitlines()[1]
    assert " paused " in row
    assert row.endswith(" ada")
    assert "by ada" in cli("schedules", "show", "nightly").out
    assert cli("schedules", "pause", "nightly", "--json").document["next_at"] is None
    assert cli("schedules", "resume", "nightly").out.startswith("schedule nightly resumed; next run ")


def test_run_submits_the_job_now_and_prints_its_id(cli: Cli, queue: Queue) -> None:
    cli(*NIGHTLY)
    job = queue.job(cli("schedules", "run", "nightly", "--by", "ada").out.strip())
    assert (job.payload, job.schedule, job.created_by, job.status) == ({"n": 1}, "nightly", "ada", "pending")
    assert "nightly, for a manual run" in cli("show", job.job_id).out


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "run", "remove"])
def test_an_unknown_name_exits_5(cli: Cli, queue: Queue, verb: str) -> None:
    ran = cli("schedules", verb, "daily")
    assert (ran.code, ran.out) == (5, "")
    assert "no schedule 'daily'" in ran.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["x", "every day", "echo"], "five fields"),
        (["x", "* * * * *", "echo", "--timezone", "Mars"], "Europe/Berlin"),
        (["x", "* * * * *", "echo", "--missed", "some"], "skip, one, all"),
        (["x", "* * * * *", "nobody"], "known: die, echo, family, keep, limited, other, talk"),
        (["x", "* * * * *", "echo", "{"], "single quotes"),
        (["x y", "* * * * *", "echo"], "schedule"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_exit_code_2(
    cli: Cli, queue: Queue, arguments: list[str], says: str
) -> None:
    ran = cli("schedules", "add", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert says in ran.err
    assert cli("schedules", "--json").document["items"] == []


def test_the_answer_to_add_names_the_time_where_the_schedule_hangs(cli: Cli, queue: Queue) -> None:
    assert " 03:30:00 Europe/Berlin, in " in cli(*NIGHTLY).out


def test_a_narrow_terminal_shows_the_zone(cli: Cli, queue: Queue) -> None:
    cli(*NIGHTLY)
    heading, row, *_ = on_a_terminal(80, "schedules")
    assert " ZONE " in heading
    assert " Europe/Berlin " in row
    assert len(row) <= 80


def test_a_schedule_has_an_overlap_jitter_and_bounds(cli: Cli, queue: Queue) -> None:
    bounds = ("--starts-at", "2100-01-01T00:00:00Z", "--ends-at", "2100-01-02T00:00:00Z")
    cli("schedules", "add", "once", "@daily", "echo", "--overlap", "replace", "--jitter", "5m", *bounds)

    shown = cli("schedules", "show", "once").out
    for line in ("overlap     replace", "jitter      up to 5 min", "starts      2100-01-01", "ends        2100-01-02"):
        assert line in shown
    assert "declared by a call or a person" in shown
    document = cli("schedules", "show", "once", "--json").document
    assert (document["overlap"], document["jitter_seconds"], len(document["next_ticks"])) == ("replace", 300.0, 2)


def test_past_ticks_get_their_jobs_once(cli: Cli, queue: Queue) -> None:
    cli("schedules", "add", "daily", "@daily", "echo")
    since = (datetime.now(UTC) - timedelta(days=3)).isoformat()

    assert cli("schedules", "backfill", "daily", "--from", since, "--dry-run").out == (
        "3 ticks: 3 jobs to submit, 0 already there\n"
    )
    assert cli("schedules", "backfill", "daily", "--from", since).out == "3 ticks: 3 jobs submitted, 0 already there\n"
    again = cli("schedules", "backfill", "daily", "--from", since, "--json").document
    assert (again["submitted"], len(again["existing"])) == ([], 3)
