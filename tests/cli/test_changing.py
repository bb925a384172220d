"""holdfast cancel, retry, migrate, bench"""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli, Queue


def test_cancel_takes_several_and_one_that_cannot_be_cancelled_does_not_stop_the_others(cli: Cli, queue: Queue) -> None:
    done, waiting = queue.run(), queue.submit()
    ran = cli("cancel", done, waiting, "--reason", "no longer needed")
    assert ran.code == 1
    assert ran.out == f"{waiting} is cancelled\n"
    assert f"job {done} is completed" in ran.err
    entry = queue.job(waiting).history[-1]
    assert entry.reason == "no longer needed"
    assert entry.by.endswith("(command line)")


def test_retry_runs_an_ended_job_again(cli: Cli, queue: Queue) -> None:
    job_id = queue.run("die", "x")
    assert cli("retry", job_id).out == f"{job_id} is pending\n"
    assert cli("retry", job_id).code == 1


def test_retry_dead_takes_those_of_a_type_and_an_error(cli: Cli, queue: Queue) -> None:
    for job_type in ("die", "die", "other"):
        queue.run(job_type, "x")
    assert cli("retry", "--dead", "--type", "die", "--error", "LookupError").out == "0 jobs run again\n"
    assert cli("retry", "--dead", "--error", "LookupError").out == "1 job runs again\n"
    assert cli("retry", "--dead", "--type", "die", "--json").document == {"retried": 2}


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
