"""backstay cancel, retry, reprioritise, reschedule, dead, purge, migrate, bench"""

from __future__ import annotations

import getpass
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Queue
from tests.cli.terminal import on_a_terminal


def test_cancel_takes_several_and_one_that_cannot_be_cancelled_does_not_stop_the_others(cli: Cli, queue: Queue) -> None:
    done, waiting = queue.run(), queue.submit()
    ran = cli("cancel", done, waiting, "--reason", "no longer needed")
    assert ran.code == 1
    assert ran.out == f"{waiting} is cancelled\n"
    assert f"job {done} is completed" in ran.err
    entry = queue.job(waiting).history[-1]
    assert entry.reason == "no longer needed"
    assert entry.by == f"{getpass.getuser()}@{socket.gethostname()}"


def test_retry_runs_an_ended_job_again(cli: Cli, queue: Queue) -> None:
    job_id = queue.run("die", "x")
    assert cli("retry", job_id).out == f"{job_id} is pending\n"
    assert cli("retry", job_id).code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["retry", "ID"],
        ["retry", "ID", "--subtree"],
        ["retry", "--status", "failed", "--yes"],
        ["retry", "--dead"],
        ["dead", "retry"],
        ["rerun", "ID"],
    ],
    ids=" ".join,
)
def test_jobs_run_again_without_their_recorded_steps_if_asked(cli: Cli, queue: Queue, arguments: list[str]) -> None:
    job_id = queue.run("die", "x")
    ran = cli(*(job_id if each == "ID" else each for each in arguments), "--forget-steps")
    assert ran.code == 0, ran.err
    assert queue.job(job_id).history[-1].forget_steps


def test_a_retry_that_has_to_wait_for_other_jobs_names_them(cli: Cli, queue: Queue) -> None:
    firsts = [queue.submit(delay=3600) for _ in range(4)]
    last = queue.submit(depends_on=firsts)
    for first in firsts:
        cli("cancel", first)
    ran = cli("retry", last)
    assert ran.code == 1
    assert sum(f"{first} (cancelled)" in ran.err for first in firsts) == 3
    assert "and 1 more, which have not completed: retry those that have ended first" in ran.err
    cli("retry", *firsts)
    assert "have not completed: wait until they have" in cli("retry", last).err


def test_an_archived_job_cannot_be_changed_and_is_run_again_by_submitting_it(cli: Cli, queue: Queue) -> None:
    job_id = queue.run()
    cli("purge", "--older-than", "0", "--yes")
    for command in (["cancel"], ["reprioritise", "high"], ["reschedule", "--in", "0"]):
        ran = cli(command[0], job_id, *command[1:])
        assert ran.code == 1
        assert "was archived; it can no longer be changed" in ran.err, command
        assert "submit it again" not in ran.err
    assert "submit it again" in cli("retry", job_id).err


def test_the_history_says_which_place_and_which_time_a_job_got(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit()
    cli("reprioritise", job_id, "high", "--by", "ada")
    cli("reschedule", job_id, "--at", "2031-01-02T03:04:05Z", "--by", "ada")
    shown = cli("show", job_id).out
    assert "by ada (priority 75, was 50)" in shown
    assert "by ada (for 2031-01-02 03:04:05 UTC)" in shown
    assert cli("explain", job_id, "--json").document["explanation"].endswith(" by ada")
    cli("reschedule", job_id, "--in", "1h", "--reason", "too early")
    assert ": too early)" in cli("show", job_id).out
    assert cli("explain", job_id, "--json").document["explanation"].endswith(": too early")


def test_retry_dead_takes_those_of_a_type_and_an_error(cli: Cli, queue: Queue) -> None:
    for job_type in ("die", "die", "other"):
        queue.run(job_type, "x")
    assert cli("retry", "--dead", "--type", "die", "--error", "LookupError").out == "retried 0 jobs\n"
    assert cli("retry", "--dead", "--error", "LookupError").out == "retried 1 job\n"
    assert cli("retry", "--dead", "--type", "die", "--json").document == {"retried": 2}


def test_dead_letters_are_grouped_by_type_and_error(cli: Cli, queue: Queue) -> None:
    queue.run("die", "one")
    newest = queue.run("die", "two")
    queue.run("other", "three")
    groups = cli("dead", "--json").document["items"]
    assert [(each["job_type"], each["error_type"], each["count"]) for each in groups] == [
        ("die", "ValueError", 2),
        ("other", "LookupError", 1),
    ]
    assert groups[0]["newest_job_id"] == newest
    assert groups[0]["newest_at"].endswith("Z")
    ran = cli("dead")
    assert "ValueError" in ran.out
    assert "backstay dead retry" in ran.err
    assert len(cli("dead", "--limit", "1", "--json").document["items"]) == 1


def test_dead_retry_does_what_retry_dead_does(cli: Cli, queue: Queue) -> None:
    for job_type in ("die", "other"):
        queue.run(job_type, "x")
    assert cli("dead", "retry", "--error", "LookupError", "--by", "ada").out == "retried 1 job\n"
    assert cli("dead", "retry", "--type", "die", "--json").document == {"retried": 1}
    assert cli("dead").err == "backstay: no dead letters\n"


def test_a_job_gets_another_place_in_line(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit()
    assert cli("reprioritise", job_id, "urgent").out == f"{job_id} is pending with priority 100\n"
    assert cli("reprioritise", job_id, "7", "--by", "ada", "--json").document["priority"] == 7
    assert queue.job(job_id).history[-1].by == "ada"
    for wrong in ("101", "-1", "highest"):
        assert cli("reprioritise", job_id, wrong).code == 2, wrong
    assert cli("reprioritise", queue.run(), "low").code == 1


def test_a_job_runs_at_another_time(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit()
    at = cli("reschedule", job_id, "--at", "2031-01-02T03:04:05Z", "--reason", "too early")
    assert at.out == f"{job_id} is scheduled for 2031-01-02 03:04:05 UTC\n"
    assert queue.job(job_id).scheduled_for == datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert queue.job(job_id).history[-1].reason == "too early"
    assert cli("reschedule", job_id, "--in", "2d", "--json").document["status"] == "scheduled"
    assert cli("reschedule", job_id, "--in", "0").out == f"{job_id} is pending\n"


def test_reschedule_needs_one_time_and_not_two(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit()
    for times in ([], ["--in", "5m", "--at", "2031-01-02T03:04:05Z"]):
        ran = cli("reschedule", job_id, *times)
        assert ran.code == 2
        assert "--in 0 means now" in ran.err


# Purging


def test_purge_moves_what_is_over_its_time_to_the_archive_and_says_how_many(cli: Cli, queue: Queue) -> None:
    done, waiting, died = queue.run(), queue.submit(delay=3600), queue.run("die", "x")
    assert cli("purge").out == "archived 0 jobs\n"
    assert cli("purge", "--older-than", "0", "--type", "die", "--yes", "--json").document == {"archived": 1}
    assert cli("purge", "--older-than", "0", "--yes").out == "archived 1 job\n"
    assert queue.job(waiting).status == "scheduled"
    shown = cli("show", done).out
    assert "payload, result, logs and history were deleted" in shown
    assert "Payload" not in shown
    assert "archived and its log deleted" in cli("logs", died).err


def test_without_a_terminal_to_ask_on_purge_takes_what_retention_would_keep_only_when_told_yes(
    cli: Cli, queue: Queue
) -> None:
    job_id = queue.run(payload="precious")
    ran = cli("purge", "--older-than", "0")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("backstay: --older-than archives jobs that retention would keep")
    assert "add --yes" in ran.err
    assert queue.job(job_id).archived_at is None
    assert cli("purge").code == 0  # by retention nothing is lost that should be kept


def test_purge_of_a_type_says_how_many_jobs_of_it_stay_because_of_their_trees(cli: Cli, queue: Queue) -> None:
    parent = queue.run()
    queue.run("die", "x", parent=parent)
    queue.run("die", "y")
    ran = cli("purge", "--older-than", "0", "--type", "die", "--yes")
    assert ran.out == "archived 1 job\n"
    assert "1 more die job belongs to trees, which are archived as a whole" in ran.err


def test_purge_says_when_a_type_is_one_that_nobody_knows(cli: Cli, queue: Queue) -> None:
    queue.run()
    ran = cli("purge", "--older-than", "0", "--type", "ehco", "--yes")
    assert ran.out == "archived 0 jobs\n"
    assert "unknown job type ehco (did you mean echo?)" in ran.err
    assert cli("purge", "--older-than", "0", "--type", "echo", "--yes").err == ""


@pytest.mark.parametrize(("typed", "code", "kept"), [("n\n", 1, True), ("y\n", 0, False)])
def test_purge_asks_on_a_terminal_before_it_takes_what_retention_would_keep(
    queue: Queue, typed: str, code: int, kept: bool
) -> None:
    job_id = queue.run(payload="precious")
    said = "\n".join(on_a_terminal(80, "purge", "--older-than", "0", typed=typed, code=code))
    assert "Archive all jobs that have ended?" in said
    assert ("nothing was changed" in said) is kept
    assert (queue.job(job_id).archived_at is None) is kept


def test_purge_does_not_ask_when_told_yes(queue: Queue) -> None:
    queue.run()
    said = on_a_terminal(80, "purge", "--older-than", "0", "--yes")
    assert said[0] == "archived 1 job"


# Many at once


def test_cancel_takes_conditions_instead_of_ids(cli: Cli, queue: Queue) -> None:
    job_ids = [queue.submit(queue="bulk") for _ in range(3)]
    kept = queue.submit()
    assert cli("cancel", "--queue", "bulk", "--dry-run").out == "would cancel 3 jobs (3 pending)\n"
    ran = cli("cancel", "--queue", "bulk", "--yes", "--reason", "not today", "--by", "ada")
    assert (ran.code, ran.out) == (0, "cancelled 3 jobs\n")
    assert {queue.job(each).status.value for each in job_ids} == {"cancelled"}
    assert queue.job(kept).status == "pending"
    assert cli("cancel", "--queue", "bulk", "--yes").err == "backstay: no jobs match\n"
    again = cli("retry", "--queue", "bulk", "--yes", "--json").document
    assert sorted(again["changed"]) == sorted(job_ids)
    assert (again["by_status"], again["refused"], again["more"]) == ({"cancelled": 3}, [], False)
    trail = queue.do(lambda app: app.audit_trail())
    user = f"{getpass.getuser()}@{socket.gethostname()}"
    assert all(each.target.startswith("jobs queue:bulk created_until:20") for each in trail)
    assert [(each.action, each.after["done"], each.by, each.via) for each in trail] == [
        ("jobs.bulk_retry", 3, user, "cli"),
        ("jobs.bulk_cancel", 0, user, "cli"),
        ("jobs.bulk_cancel", 3, "ada", "cli"),
    ]


@pytest.mark.parametrize(("typed", "code", "status"), [("y\n", 0, "cancelled"), ("\n", 1, "pending")])
def test_a_change_by_conditions_asks_first(queue: Queue, typed: str, code: int, status: str) -> None:
    job_id = queue.submit()
    said = "\n".join(on_a_terminal(80, "cancel", "--status", "pending", typed=typed, code=code))
    assert "Cancel 1 job (1 pending)? [y/N]" in said
    assert queue.job(job_id).status == status


@pytest.mark.parametrize(
    "arguments",
    [
        ["cancel"],
        ["cancel", "--status", "pending"],  # without a terminal, and without --yes
        ["cancel", "--status", "pending", "--subtree", "--yes"],
        ["cancel", "--status", "faild", "--yes"],
        ["retry", "--error", "ValueError"],
        ["retry", "--dead", "--queue", "bulk"],
        ["retry", "--dead", "--dry-run"],
    ],
    ids=" ".join,
)
def test_conditions_that_make_no_sense_exit_2_and_change_nothing(cli: Cli, queue: Queue, arguments: list[str]) -> None:
    job_id = queue.submit()
    assert cli(*arguments).code == 2
    assert queue.job(job_id).status == "pending"


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        (["queues", "pause", "default"], "queue.pause"),
        (["queues", "resume", "default"], "queue.resume"),
        (["queues", "limit", "default", "5"], "queue.limit"),
        (["schedules", "add", "daily", "@daily", "echo", "1"], "schedule.put"),
        (["dead", "retry"], "dead.retry"),
        (["purge"], "jobs.purge"),
        (["keys", "create", "ci", "--scope", "read"], "key.create"),
    ],
    ids=lambda each: each if isinstance(each, str) else each[0],
)
def test_a_change_by_a_command_is_in_the_audit_trail(cli: Cli, queue: Queue, arguments: list[str], action: str) -> None:
    queue.submit()
    cli(*arguments, "--by", "ada")
    [entry] = queue.do(lambda app: app.audit_trail())
    assert (entry.action, entry.by, entry.via) == (action, "ada", "cli")


def test_retry_needs_ids_or_dead_but_not_both(cli: Cli, queue: Queue) -> None:
    for arguments in ([], [queue.submit(), "--dead"], [queue.submit(), "--type", "die"]):
        assert cli("retry", *arguments).code == 2


def test_migrate_makes_the_queue_and_then_has_nothing_to_do(cli: Cli) -> None:
    assert "applied 0001" in cli("migrate").out
    assert "is up to date" in cli("migrate").out
    assert cli("migrate", "--json").document["applied"] == []


def test_bench_measures_and_leaves_nothing_behind(cli: Cli, queue: Queue, folder: Path) -> None:
    before = set(folder.iterdir())
    items = cli("bench", "--jobs", "100", "--json").document["items"]
    assert len(items) == 4
    assert all(item["per_second"] > 0 for item in items)
    assert set(folder.iterdir()) == before


def test_a_tree_is_cancelled_and_retried_as_a_whole(cli: Cli, queue: Queue) -> None:
    parent = queue.submit(delay=3600)
    child = queue.submit(delay=3600, parent=parent)
    assert cli("cancel", parent, "--subtree").out == f"{parent} is cancelled\n"
    assert queue.job(child).status == "cancelled"
    assert cli("retry", parent, "--subtree").out == f"{parent} is pending\n"
    assert queue.job(child).status == "pending"
    assert "remove --dead" in cli("retry", "--dead", "--subtree").err


def test_rerun_runs_a_job_again_and_what_depends_on_it_waits(cli: Cli, queue: Queue) -> None:
    root = queue.run()
    first = queue.run(parent=root)
    last = queue.run(parent=root, depends_on=[first])
    assert cli("rerun", first, "--by", "ada").out == f"{first} is pending\n"
    assert queue.job(last).status == "waiting"
    assert queue.job(first).history[-1].by.startswith("ada")
    assert cli("rerun", "0" * 32).code == 5
