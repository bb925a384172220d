"""backstay submit"""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from backstay.ids import new_id
from tests.cli.conftest import Cli, Queue


def test_submit_stores_a_job_and_prints_its_id(cli: Cli, queue: Queue) -> None:
    ran = cli("submit", "echo", '{"n": 1}')
    assert (ran.code, ran.err) == (0, "")
    assert queue.job(ran.out.strip()).payload == {"n": 1}


def test_every_option_of_submit_reaches_the_record(cli: Cli, queue: Queue) -> None:
    first, own = queue.submit(), new_id(1)
    options = (
        f"--priority high --delay 1h30m --queue bulk --subject user:7 --tag a --tag b --dedup-key k --dedup-for 2d"
        f" --depends-on {first} --max-attempts 3 --job-timeout 90 --job-id {own} --created-by me"
    )
    document = cli("submit", "echo", "{}", *options.split(), "--json").document
    found = {name: document[name] for name in ("priority", "queue", "subject", "tags", "dedup_key", "created_by")}
    assert found == {
        "priority": 75,
        "queue": "bulk",
        "subject": "user:7",
        "tags": ["a", "b"],
        "dedup_key": "k",
        "created_by": "me",
    }
    assert (document["job_id"], document["dependencies"]) == (own, [first])
    assert (document["max_attempts"], document["timeout_seconds"], document["status"]) == (3, 90, "waiting")
    created, due = (datetime.fromisoformat(document[name]) for name in ("created_at", "scheduled_for"))
    assert (due - created).total_seconds() == 5400


def test_the_keys_that_limit_pace_and_share_reach_the_record(cli: Cli, queue: Queue) -> None:
    options = (
        "--concurrency-key c --rate-key r --rate-cost 2 --fairness-key f --fairness-weight 3 --content-hash h --stage s"
        f" --parent {queue.submit()} --on-dependency-failure fail --depends-on {queue.submit()} --trigger-rule all_done"
    )
    job = queue.job(cli("submit", "limited", "{}", *options.split()).out.strip())
    assert (job.concurrency_key, job.rate_key, job.fairness_key, job.content_hash) == ("c", "r", "f", "h")
    assert (job.row.fairness_weight, job.rate_cost, job.job_stage, job.row.on_dependency_failure) == (3, 2, "s", "fail")
    assert job.parent_job_id is not None
    assert job.row.trigger_rule == "all_done"


def test_a_dedup_conflict_is_an_error_only_on_demand(cli: Cli, queue: Queue) -> None:
    first = cli("submit", "echo", "1", "--dedup-key", "k").out
    assert cli("submit", "echo", "2", "--dedup-key", "k").out == first
    ran = cli("submit", "echo", "2", "--dedup-key", "k", "--dedup", "error")
    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize("age", ["1h", "any"])
def test_reuse_takes_a_result_that_is_young_enough_or_any(cli: Cli, queue: Queue, age: str) -> None:
    done = queue.run(payload={"n": 1}, content_hash="h")
    document = cli("submit", "echo", "{}", "--content-hash", "h", "--reuse", age, "--json").document
    assert (document["reused_from"], document["result"]) == (done, {"n": 1})


def test_run_at_takes_a_moment_with_its_zone(cli: Cli, queue: Queue) -> None:
    job_id = cli("submit", "echo", "--run-at", "2031-01-02T03:04:05+01:00").out.strip()
    assert queue.job(job_id).scheduled_for == datetime(2031, 1, 2, 2, 4, 5, tzinfo=UTC)


def test_the_payload_may_come_from_stdin(cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"from": "stdin"}')))
    assert queue.job(cli("submit", "echo", "-").out.strip()).payload == {"from": "stdin"}


def test_the_payload_may_come_from_a_file(cli: Cli, queue: Queue, folder: Path) -> None:
    (folder / "payload.json").write_text('{"from": "file"}')
    assert queue.job(cli("submit", "echo", "@payload.json").out.strip()).payload == {"from": "file"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["echo", "{n: 1}"], "single quotes"),
        (["echo", '{"a" 1}'], "the payload is not valid JSON: Expecting ':' delimiter"),
        (["echo", "@missing.json"], "missing.json cannot be read"),
        (["echo", "NaN"], 'NaN is not JSON; write null for NaN, or text: "NaN"'),
        (["echo", '{"n": -Infinity}'], "write null for -Infinity"),
        (["echo", "--dedup", "shout", "--dedup-key", "k"], "return, error or replace"),
        (["echo", "--reuse", "some", "--content-hash", "h"], "1h30m"),
        (["echo", "--rate-key", "k"], "no rate"),
        (["echo", "--fairness-weight", "3"], "fairness_key"),
        (["nobody"], "known: die, echo, family, keep, limited, other, talk"),
        (["echo", "--priority", "max"], "low, normal, high, urgent"),
        (["echo", "--delay", "soon"], "1h30m"),
        (["echo", "--dedup-for", "later", "--dedup-key", "k"], "1h30m"),
        (["echo", "--run-at", "2031-01-02T03:04:05"], "add Z"),
        (["echo", "--timeout", "5"], "--job-timeout"),
        (["echo", "--depends-on", "x"], "ids are UUIDs"),
        (["echo", "--nonsense"], "No such option"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_accepted_is_one_line_and_exit_code_2_and_stores_nothing(
    cli: Cli, queue: Queue, arguments: list[str], says: str
) -> None:
    ran = cli("submit", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("backstay: ")
    assert ran.err.count("\n") == 1
    assert says in ran.err
    assert cli("list", "--json").document["items"] == []


def test_a_duplicate_prints_the_id_of_the_first_and_says_so(cli: Cli, queue: Queue) -> None:
    first = cli("submit", "echo", "--dedup-key", "k")
    second = cli("submit", "echo", "--dedup-key", "k")
    assert second.out == first.out
    assert "nothing new was stored" in second.err
    assert cli("submit", "echo", "--dedup-key", "k", "--json").document["deduplicated"] is True


def test_waiting_longer_than_the_timeout_exits_4_and_the_job_goes_on(cli: Cli, queue: Queue) -> None:
    ran = cli("submit", "echo", "--wait", "--timeout", "0.05")
    assert (ran.code, ran.out) == (4, "")
    assert "the job is waiting, because no worker is alive" in ran.err
    assert "it is still active" in ran.err
    assert cli("list", "--status", "pending", "--json").document["items"] != []
