"""backstay worker, as the processes that run it see it"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backstay import Backstay, JobFailed
from tests.cli.conftest import APP, Cli, Queue, Worker
from tests.support.eventually import eventually

Start = Callable[..., Worker]


def submit(cli: Cli, *arguments: str) -> str:
    ran = cli("--app", "", "submit", *arguments)
    assert ran.code == 0, ran.err
    return ran.out.strip()


def test_submit_with_wait_follows_a_real_worker_to_the_result(start_worker: Start, folder: Path) -> None:
    start_worker().hear("started")

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "backstay", "submit", *arguments, "--wait", "--timeout", "30"]
        return subprocess.run(line, capture_output=True, text=True, cwd=folder, check=False)

    done = command("add", '{"a": 2, "b": 3}')
    assert (done.returncode, done.stdout) == (0, '{"sum":5}\n')
    assert "is completed" in done.stderr
    failed = command("fail", "--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["failures"] == 2
    assert "failed after 2 of 2 attempts: ValueError: no such number" in failed.stderr


def test_sigterm_lets_a_running_job_finish_and_exits_0(
    start_worker: Start, cli: Cli, queue: Queue, folder: Path
) -> None:
    worker = start_worker()
    worker.hear("started")
    fifo = folder / "gate"
    os.mkfifo(fifo)
    job_id = submit(cli, "until_told", json.dumps({"fifo": str(fifo)}))
    worker.hear("begun")
    worker.send(signal.SIGTERM)
    worker.hear("SIGTERM: taking no new jobs")
    left = submit(cli, "add")
    with fifo.open("wb") as gate:
        gate.write(b"!")
    assert worker.exit_code() == 0
    assert queue.job(job_id).result == "told"
    assert queue.job(left).status == "pending"


def test_a_handler_that_terminates_a_child_of_its_own_does_not_stop_the_worker(
    start_worker: Start, cli: Cli, queue: Queue
) -> None:
    worker = start_worker()
    worker.hear("started")
    forked = submit(cli, "forks")
    assert queue.do(lambda app: app.result(forked, timeout=30)) == -signal.SIGTERM
    after = submit(cli, "add")
    assert queue.do(lambda app: app.result(after, timeout=30)) == {"sum": 0}


def test_a_handler_that_outlives_the_grace_is_given_back_and_that_costs_no_failure(
    start_worker: Start, cli: Cli, queue: Queue
) -> None:
    worker = start_worker("--grace", "0.1")
    worker.hear("started")
    job_id = submit(cli, "endless")
    worker.hear("begun")
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    job = queue.job(job_id)
    assert (job.status, job.attempt, job.failures) == ("pending", 1, 0)
    assert job.history[-1].event == "give_back"


def test_sigint_stops_like_sigterm_and_a_second_one_stops_running_handlers_at_once(
    start_worker: Start, cli: Cli, queue: Queue
) -> None:
    worker = start_worker("--grace", "1h")
    worker.hear("started")
    job_id = submit(cli, "endless")
    worker.hear("begun")
    worker.send(signal.SIGINT)
    worker.hear("SIGINT: taking no new jobs")
    while not worker.has_more_within(0.1):  # one that comes at once counts as the same
        worker.send(signal.SIGINT)
    worker.hear("stopping running jobs and giving them back")
    assert worker.exit_code() == 1
    assert (queue.job(job_id).status, queue.job(job_id).failures) == ("pending", 0)


def test_a_worker_whose_event_loop_is_blocked_hears_sigterm_gives_all_jobs_back_and_exits_1(
    start_worker: Start, cli: Cli, queue: Queue
) -> None:
    worker = start_worker("--grace", "0.1")
    worker.hear("started")
    jobs = [submit(cli, "endless")]
    worker.hear("begun")
    jobs.append(submit(cli, "blocks", '{"a": 600}', "--job-timeout", "1h"))
    worker.hear("begun")
    worker.send(signal.SIGTERM)
    worker.hear("SIGTERM: taking no new jobs")
    worker.hear("the event loop is blocked: giving back all jobs, and ending with status 1")
    assert worker.exit_code() == 1
    assert [(queue.job(each).status, queue.job(each).failures) for each in jobs] == [("pending", 0)] * 2
    assert cli("workers", "--json").document["items"] == []


def test_a_second_sigterm_is_heard_while_the_event_loop_is_blocked(start_worker: Start, cli: Cli, queue: Queue) -> None:
    worker = start_worker("--grace", "1h")
    worker.hear("started")
    job_id = submit(cli, "blocks", '{"a": 600}', "--job-timeout", "1h")
    worker.hear("begun")
    worker.send(signal.SIGTERM)
    worker.hear("SIGTERM: taking no new jobs")
    while not worker.has_more_within(0.6):  # one that comes at once counts as the same
        worker.send(signal.SIGTERM)
    worker.hear("stopping running jobs and giving them back")
    assert worker.exit_code() == 1
    assert (queue.job(job_id).status, queue.job(job_id).failures) == ("pending", 0)


def test_a_worker_ends_though_c_code_keeps_every_thread_of_it_from_running(
    start_worker: Start, cli: Cli, queue: Queue
) -> None:
    """Takes the seconds that a worker has to give its jobs back: nothing that could does run."""
    worker = start_worker("--grace", "0")
    worker.hear("started")
    submit(cli, "backtracks")
    worker.hear("begun")
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 1
    assert "in backtracks" in "".join(worker.lines)


def test_a_worker_ends_though_c_code_keeps_its_threads_from_hearing_the_signal(
    start_worker: Start, cli: Cli, queue: Queue
) -> None:
    """As above, and as long."""
    worker = start_worker("--grace", "0")
    worker.hear("started")
    submit(cli, "backtracks", '{"a": 1}')
    assert worker.exit_code() == 1
    assert "in backtracks" in "".join(worker.lines)


def test_a_handler_that_stops_the_event_loop_does_not_stop_the_worker(
    start_worker: Start, cli: Cli, queue: Queue
) -> None:
    worker = start_worker()
    worker.hear("started")
    job_id = submit(cli, "stops")
    worker.hear("something called stop() on the event loop")
    assert queue.do(lambda app: app.result(job_id, timeout=30)) == "stopped"
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0


def test_a_task_of_a_handler_that_exits_fails_its_job_and_not_the_worker(
    start_worker: Start, cli: Cli, queue: Queue
) -> None:
    worker = start_worker()
    worker.hear("started")
    job_id = submit(cli, "exits")
    worker.hear("called sys.exit(3), which ends no worker")
    with pytest.raises(JobFailed, match="SystemExit"):
        queue.do(lambda app: app.result(job_id, timeout=30))
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0


def test_an_idle_worker_that_is_interrupted_exits_0_and_signs_off(start_worker: Start, cli: Cli, queue: Queue) -> None:
    worker = start_worker()
    worker.hear("started")
    worker.send(signal.SIGINT)
    assert worker.exit_code() == 0
    assert cli("workers", "--json").document["items"] == []


def resident_kilobytes(worker: Worker) -> int:
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


def test_a_worker_that_has_run_a_job_takes_less_than_50_mib(start_worker: Start, cli: Cli, queue: Queue) -> None:
    worker = start_worker()
    worker.hear("started")
    job_id = submit(cli, "add")
    assert queue.do(lambda app: app.result(job_id, timeout=30)) == {"sum": 0}
    assert resident_kilobytes(worker) < 50 * 1024


def test_json_log_lines_inside_a_job_carry_its_id_type_attempt_and_worker(
    start_worker: Start, cli: Cli, queue: Queue
) -> None:
    worker = start_worker("--log-format", "json")
    worker.hear("started")
    job_id = submit(cli, "add")
    line = json.loads(worker.hear('"adding"'))
    assert line["worker_id"].split(":")[1] == str(worker.pid)
    assert (line["job_id"], line["job_type"], line["attempt"]) == (job_id, "add", 1)
    assert (line["level"], line["message"]) == ("INFO", "adding")


def test_log_lines_of_a_handler_in_a_process_are_in_the_log_of_the_worker_and_of_the_job_once(
    start_worker: Start, cli: Cli, queue: Queue
) -> None:
    worker = start_worker("--log-format", "json")
    worker.hear("started")
    job_id = submit(cli, "apart")
    line = json.loads(worker.hear("from a process"))
    assert (line["job_id"], line["job_type"], line["attempt"]) == (job_id, "apart", 1)
    assert (line["logger"], line["level"], line["message"]) == ("some.library", "WARNING", "from a process")
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert "".join(worker.lines).count("from a process") == 1
    assert cli("logs", job_id).out.count("from a process") == 1


def test_log_lines_of_a_batch_say_which_jobs_they_are_about(start_worker: Start, queue: Queue) -> None:
    worker = start_worker()
    worker.hear("started")
    submitted = queue.do(lambda app: app.submit_many([("together", {}) for _ in range(3)]))
    ids = [each.job_id for each in submitted]
    line = worker.hear("all of them")
    assert "[together batch of 3: " in line
    assert all(job_id in line for job_id in ids)
    first = worker.hear("the first")
    assert sum(f"[together {job_id} attempt 1]" in first for job_id in ids) == 1


def test_a_line_per_job_that_ends_well_is_for_debug(start_worker: Start, cli: Cli, queue: Queue) -> None:
    worker = start_worker("--log-level", "debug")
    worker.hear("started")
    job_id = submit(cli, "add")
    assert "DEBUG" in worker.hear(f"add job {job_id} attempt 1 → completed after ")
    quiet = start_worker()
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    quiet.hear("started")
    submit(cli, "add")
    quiet.hear("adding")
    quiet.send(signal.SIGTERM)
    assert quiet.exit_code() == 0
    assert "→ completed" not in "".join(quiet.lines)


def test_a_worker_serves_the_queues_of_its_handlers_unless_told_otherwise(start_worker: Start, queue: Queue) -> None:
    assert "queues default, bulk," in start_worker().hear("started")
    assert "queues bulk, night," in start_worker("--queues", "bulk,night").hear("started")


def test_a_worker_says_where_it_works_and_that_another_url_was_not_heard(
    start_worker: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "fixed.py").write_text(
        "from backstay import Backstay\napp = Backstay('sqlite:///code.db')\n\n"
        "@app.job('fixed')\nasync def fixed(payload): ...\n"
    )
    monkeypatch.setenv("BACKSTAY_URL", "sqlite:///meant.db")
    worker = start_worker("--app", "fixed:app")
    assert "BACKSTAY_URL is sqlite:///meant.db, but the app sets sqlite:///code.db in code" in worker.hear(
        "BACKSTAY_URL"
    )
    assert "code.db" in worker.hear("started")
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0


def test_a_worker_that_logs_json_says_in_json_why_it_cannot_open(
    start_worker: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "jobs.db").write_text("this is no database, but a text of some length\n" * 100)
    worker = start_worker("--log-format", "json")
    assert worker.exit_code() == 1
    assert [json.loads(line)["level"] for line in worker.lines] == ["CRITICAL"]


def test_a_worker_without_handlers_or_with_a_bad_option_exits_2(cli: Cli) -> None:
    assert "--app module:app" in cli("worker").err
    assert cli("worker").code == 2
    assert "use text, json" in cli("worker", "--app", APP, "--log-format", "xml").err
    assert cli("worker", "--concurrency", "0").code == 2


# Several processes


def test_a_killed_child_is_replaced_and_every_job_completes(start_worker: Start, queue: Queue) -> None:
    worker = start_worker("--processes", "2", "--concurrency", "2")
    first = child_of(worker)
    worker.hear("started")
    worker.hear("started")

    async def submit_and_kill(app: Backstay) -> list[str]:
        jobs = await app.submit_many([("work", {}) for _ in range(100)])
        os.kill(first, signal.SIGKILL)
        worker.hear("was killed by SIGKILL")
        worker.hear("started")
        for job in jobs:
            await job.result(timeout=30)
        return [job.status for job in await app.find(job_type="work", limit=200)]

    assert queue.do(submit_and_kill) == ["completed"] * 100
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0


def test_a_child_whose_event_loop_is_dead_is_replaced_and_its_other_jobs_run_again_uncharged(
    start_worker: Start, cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKSTAY_LEASE", "1")
    worker = start_worker("--processes", "2", "--concurrency", "2", "--grace", "0")
    worker.hear("started")
    worker.hear("started")
    innocent = [submit(cli, "endless") for _ in range(3)]  # so that whichever blocks has one beside it
    for _ in innocent:
        worker.hear("begun")
    guilty = submit(cli, "blocks", '{"a": 600}')
    worker.hear("begun")
    worker.hear(f"by blocks job {guilty}")
    worker.hear("a handler has blocked the event loop beyond its timeout")
    worker.hear("exited with status 1: restarting it")
    worker.hear("started")
    job = queue.job(guilty)
    assert (job.status, job.failures, job.errors[-1]["type"]) == ("retrying", 1, "JobTimeout")

    async def all_run(app: Backstay) -> None:
        async def run() -> bool:
            return [each.status for each in await app.get_many(innocent) if each] == ["processing"] * 3

        await eventually(run, 30)
        assert [each.failures for each in await app.get_many(innocent) if each] == [0] * 3

    queue.do(all_run)


def test_children_stop_when_their_parent_is_killed(start_worker: Start) -> None:
    worker = start_worker("--processes", "2")
    children = [child_of(worker), child_of(worker)]
    worker.hear("started")
    worker.hear("started")
    ends = [os.pidfd_open(child) for child in children]
    worker.send(signal.SIGKILL)
    for end in ends:
        assert select.select([end], [], [], 20)[0], "a child outlived its parent"
        os.close(end)


def test_an_app_that_cannot_be_loaded_ends_all_processes_with_exit_code_2(start_worker: Start) -> None:
    worker = start_worker("--processes", "2", "--app", "nowhere:app")
    assert worker.exit_code() == 2
    assert "there is no module 'nowhere'" in "".join(worker.lines)


def child_of(worker: Worker) -> int:
    return int(worker.hear("is pid").rsplit(" ", 1)[1])
