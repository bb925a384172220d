"""backstay explain"""

from __future__ import annotations

import asyncio
import os

import pytest

from backstay import Backstay
from tests.cli.conftest import Cli, Queue
from tests.cli.terminal import on_a_terminal


def test_explain_says_in_one_sentence_why_a_job_does_not_run(cli: Cli, queue: Queue) -> None:
    first = queue.submit(delay=3600)
    second = queue.submit(depends_on=[first])
    ran = cli("explain", second)
    sentence, todo = ran.out.splitlines()
    assert sentence == f"echo {second}: it is waiting for {first} (scheduled)"
    assert todo == f"-> backstay tree {second}"


def test_explain_has_its_parts_in_json(cli: Cli, queue: Queue) -> None:
    first = queue.submit(delay=3600)
    second = queue.submit(depends_on=[first])
    document = cli("explain", second, "--json").document
    assert (document["reason"], document["status"], document["job_ids"]) == ("waiting", "waiting", [first])
    document = cli("explain", first, "--json").document
    assert document["reason"] == "scheduled"
    assert document["until"] == cli("show", first, "--json").document["scheduled_for"]
    assert document["explanation"].startswith("it is scheduled for ")


def test_what_would_change_it_is_a_command_that_works(cli: Cli, queue: Queue) -> None:
    died, later = queue.run("die", "x"), queue.submit(delay=3600)
    for job_id in (died, later):
        todo = cli("explain", job_id).out.splitlines()[-1]
        assert todo.startswith("-> backstay ")
        assert cli(*todo.removeprefix("-> backstay ").split()).code == 0
        assert queue.job(job_id).status == "pending"


def test_a_suggested_command_works_on_the_queue_that_was_named(
    cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = queue.submit(delay=3600)
    url = os.environ["BACKSTAY_URL"]
    monkeypatch.delenv("BACKSTAY_URL")
    todo = cli("explain", later, "--url", url).out.splitlines()[-1]
    assert todo == f"-> backstay reschedule {later} --in 0 --url {url}"
    monkeypatch.delenv("BACKSTAY_URL")  # which --url has set for what a command starts
    assert cli(*todo.removeprefix("-> backstay ").split()).code == 0
    assert queue.job(later).status == "pending"


def test_without_a_worker_one_is_suggested_once_and_with_the_app_that_was_named(
    cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = queue.submit()
    sentence = f"echo {job_id} is pending: no worker is alive: start one"
    assert cli("explain", job_id).out.splitlines() == [sentence, "-> backstay worker --app module:app"]
    app = "tests.cli.cli_app:app"
    assert cli("--app", app, "explain", job_id).out.splitlines() == [sentence, f"-> backstay worker --app {app}"]
    monkeypatch.setenv("BACKSTAY_APP", app)
    assert cli("explain", job_id).out.splitlines() == [sentence, "-> backstay worker"]


def test_a_sentence_is_wrapped_between_words_on_a_terminal(queue: Queue) -> None:
    lines = on_a_terminal(80, "explain", queue.run("die", "a fairly long message " * 10))
    assert len(lines) > 3
    assert max(map(len, lines)) <= 80


def test_a_job_that_went_down_with_another_is_run_again_after_that_one(cli: Cli, queue: Queue) -> None:
    first = queue.submit(delay=3600)
    second = queue.submit(depends_on=[first])
    third = queue.submit(depends_on=[second, first])
    cli("cancel", first)
    for job_id, culprit in ((third, first), (second, first)):
        _, todo, then = cli("explain", job_id).out.splitlines()
        assert todo == f"-> backstay retry {culprit}"
        assert then == f"-> once its dependencies have completed: backstay retry {job_id}"
    cli("retry", first)
    assert cli("explain", second).out.splitlines()[1:] == [
        f"-> once its dependencies have completed: backstay retry {second}"
    ]
    queue.do(drained)
    assert cli("explain", second).out.splitlines()[1:] == [f"-> backstay retry {second}"]
    assert cli("retry", second).code == 0


def test_what_cannot_run_again_because_of_an_archived_job_gets_no_advice(cli: Cli, queue: Queue) -> None:
    died = queue.run("die", "x")
    second = queue.submit(depends_on=[died])
    cli("purge", "--older-than", "0", "--type", "die", "--yes")
    assert len(cli("explain", second).out.splitlines()) == 1


def test_more_culprits_than_a_line_can_name_are_seen_in_the_tree(cli: Cli, queue: Queue) -> None:
    firsts = [queue.submit(delay=3600) for _ in range(4)]
    last = queue.submit(depends_on=firsts)
    cli("cancel", *firsts)
    assert cli("explain", last).out.splitlines()[1:] == [f"-> backstay tree {last}"]


def test_a_parent_that_went_down_with_its_children_names_them_and_is_run_again_with_them(
    cli: Cli, queue: Queue
) -> None:
    parent = queue.run("family", "x")
    sentence, todo = cli("explain", parent).out.splitlines()
    [bad] = cli("explain", parent, "--json").document["job_ids"]
    assert f"because of its children: FIRST {bad} failed (ValueError: x); retry it with its subtree" in sentence
    assert todo == f"-> backstay retry --subtree {parent}"
    assert "because of" not in (shown := cli("tree", parent).out) and "2 children ended, 1 failed" in shown
    assert "ChildFailed" in cli("dead").out
    assert cli(*todo.removeprefix("-> backstay ").split()).code == 0
    assert (queue.job(parent).status, queue.job(bad).status) == ("pending", "pending")


def test_nothing_is_said_twice(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit(delay=3600)
    assert cli("explain", job_id).out.startswith(f"echo {job_id}: it is scheduled for ")


async def drained(app: Backstay) -> None:
    async with app.worker():
        while (await app.counts())["pending"] or (await app.counts())["processing"]:
            await asyncio.gather(*(app.result(job.job_id) for job in await app.find(status="pending")))
