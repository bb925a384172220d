"""backstay queues"""

from __future__ import annotations

import getpass
import socket

from tests.cli.conftest import Cli, Queue


def test_queues_lists_them_when_called_bare(cli: Cli, queue: Queue) -> None:
    queue.submit(queue="bulk")
    queue.submit(queue="bulk", delay=60)
    ran = cli("queues")
    header, *rows = (line.split() for line in ran.out.splitlines())
    assert header[:6] == ["QUEUE", "STATE", "PENDING", "OLDEST", "RUNNING", "UPCOMING"]
    assert [row[0] for row in rows] == ["bulk", "default"]
    bulk = cli("queues", "--json").document["items"][0]
    assert (bulk["name"], bulk["pending"], bulk["scheduled"], bulk["paused_at"]) == ("bulk", 1, 1, None)
    assert "no worker serves it" in ran.out


def test_a_paused_queue_says_by_whom_and_why_until_it_is_resumed(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit()
    ran = cli("queues", "pause", "default", "--by", "ada", "--reason", "the disk is full")
    assert (ran.code, ran.out, ran.err) == (0, "queue default paused; 1 job pending, 0 running\n", "")
    assert "by ada: the disk is full" in cli("queues").out
    assert "paused by ada" in cli("explain", job_id).out
    assert "backstay queues resume default" in cli("explain", job_id).out
    assert cli("queues", "resume", "default").out == "queue default resumed; 1 job pending, 0 running\n"
    assert cli("queues", "--json").document["items"][0]["paused_at"] is None


def test_a_pause_says_until_when_it_lasts(cli: Cli, queue: Queue) -> None:
    assert cli("queues", "pause", "default", "--until", "2h").out.startswith("queue default paused until 2")
    assert " until 2" in cli("queues").out
    assert cli("queues", "pause", "default", "--until", "2001-01-01T00:00:00Z").code == 2
    assert cli("queues", "pause", "default", "--until", "soon").code == 2


def test_a_paused_type_is_listed_until_it_is_resumed(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit()
    assert cli("types", "pause", "echo", "--by", "ada", "--reason", "no paper").out == "type echo paused\n"
    assert "by ada: no paper" in cli("limits").out
    assert "the type echo was paused by ada" in cli("explain", job_id).out
    assert "backstay types resume echo" in cli("explain", job_id).out
    assert cli("types", "resume", "echo").out == "type echo resumed\n"
    assert cli("limits", "--json").document["items"] == []
    assert "did you mean echo?" in cli("types", "pause", "ehco").err


def test_types_and_keys_are_limited_at_run_time(cli: Cli, queue: Queue) -> None:
    said = cli("limits", "set", "--type", "echo", "--concurrency", "4", "--rate", "100/m", "--by", "ada")
    assert (said.code, said.out) == (0, "type echo: 4 at once, 100/m\n")
    assert cli("limits", "set", "--key", "customer: 7", "--rate", "60/60s").out == "key customer: 7: 60/m\n"
    of_key, of_type = cli("limits", "--json").document["items"]
    assert (of_key["key"], of_key["rate"]) == ("customer: 7", "60/m")
    assert (of_type["job_type"], of_type["concurrency"], of_type["set_by"]) == ("echo", 4, "ada")
    assert "set by ada" in cli("limits").out
    assert cli("limits", "remove", "--type", "echo").out == "type echo: no limits\n"
    assert cli("limits", "remove", "--key", "customer: 7").code == 0
    assert cli("limits", "--json").document["items"] == []


def test_a_limit_of_nothing_or_of_no_number_is_refused(cli: Cli, queue: Queue) -> None:
    for wrong in (["--type", "echo"], ["--concurrency", "4"], ["--type", "echo", "--key", "k", "--concurrency", "4"],
                  ["--type", "echo", "--concurrency", "0"], ["--type", "echo", "--rate", "fast"]):  # fmt: skip
        assert cli("limits", "set", *wrong).code == 2, wrong


def test_who_paused_a_queue_is_the_user_and_host_unless_said(cli: Cli, queue: Queue) -> None:
    user = f"{getpass.getuser()}@{socket.gethostname()}"
    assert cli("queues", "pause", "default", "--json").document["paused_by"] == user


def test_a_limit_refuses_what_is_over_it_and_exits_1_for_it_may_work_later(cli: Cli, queue: Queue) -> None:
    assert cli("queues", "limit", "default", "1").out.startswith("queue default accepts at most 1 pending job;")
    assert cli("submit", "echo").code == 0
    full = cli("submit", "echo")
    assert (full.code, full.out) == (1, "")
    assert "default" in full.err
    assert "1/1" in cli("queues").out
    assert cli("queues", "limit", "default", "none").out.startswith("queue default has no limit;")
    assert cli("submit", "echo").code == 0


def test_what_is_no_limit_is_refused(cli: Cli, queue: Queue) -> None:
    for most in ("many", "0", "-1", "1.5"):
        assert cli("queues", "limit", "default", most).code == 2, most


def test_a_name_that_nobody_uses_is_pointed_out(cli: Cli, queue: Queue) -> None:
    ran = cli("queues", "pause", "defautl")
    assert ran.code == 0
    assert "uses the queue defautl yet (did you mean default?)" in ran.err
    assert ran.err.count("defautl") == 1


def test_json_stands_after_the_verb_and_url_before_or_after_it(cli: Cli, queue: Queue) -> None:
    assert "write it after pause" in cli("queues", "--json", "pause", "default").err
    for arguments in (["--url", "sqlite:///else.db", "pause"], ["pause", "--url", "sqlite:///else.db"]):
        assert "no queue at sqlite:///else.db" in cli("queues", *arguments, "default").err


def test_an_unknown_verb_names_the_one_that_was_meant(cli: Cli, queue: Queue) -> None:
    ran = cli("queues", "puase", "default")
    assert ran.code == 2
    assert "Did you mean 'pause'" in ran.err
