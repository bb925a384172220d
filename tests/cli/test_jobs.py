"""backstay list, show, watch, and what holds for all that reads"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from backstay import Backstay
from backstay.ids import new_id
from backstay.job import FIELDS
from tests.cli.conftest import Cli, Queue
from tests.cli.terminal import on_a_terminal

EVIL = "\x1b]0;owned\x07 \x1b[31mred \x9b2J \u202eevil [bold]not bold[/bold]"


def test_list_pages_until_the_end_and_says_when_there_is_more(cli: Cli, queue: Queue) -> None:
    ids = [queue.submit() for _ in range(5)]
    seen: list[str] = []
    after: list[str] = []
    while True:
        page = cli("list", "--limit", "2", "--json", *after).document
        seen += [item["job_id"] for item in page["items"]]
        if page["next"] is None:
            break
        after = ["--after", page["next"]]
    assert seen == ids[::-1]
    assert "more jobs: add --after " in cli("list", "--limit", "2").err
    assert cli("list").err == ""


def test_list_takes_the_filters_of_find(cli: Cli, queue: Queue) -> None:
    wanted = queue.submit(subject="user:7", tags=["red"], queue="bulk", created_by="me")
    queue.submit()
    for option in (["--subject", "user:7"], ["--tag", "red"], ["--queue", "bulk"], ["--created-by", "me"]):
        assert [item["job_id"] for item in cli("list", *option, "--json").document["items"]] == [wanted]
    assert cli("list", "--type", "die", "--json").document == {"items": [], "next": None}
    assert cli("list", "--status", "sleeping").code == 2
    assert "did you mean processing?" in cli("list", "--status", "running").err


def test_json_records_have_the_fields_of_the_contract_and_times_that_end_in_z(cli: Cli, queue: Queue) -> None:
    job_id = queue.run(payload={"n": 1})
    listed = cli("list", "--json").document["items"][0]
    shown = cli("show", job_id, "--json").document
    assert list(listed) == FIELDS
    assert list(shown) == [*FIELDS, "history", "steps"]
    assert {name: shown[name] for name in FIELDS} == listed
    assert (shown["status"], shown["result"]) == ("completed", {"n": 1})
    assert all(shown[name].endswith("Z") for name in ("created_at", "started_at", "completed_at"))
    assert [event["event"] for event in shown["history"]] == ["submit", "claim", "complete"]


def test_show_lays_out_everything_of_a_job(cli: Cli, queue: Queue) -> None:
    job_id = queue.run("die", "out of cheese", subject="user:7")
    shown = cli("show", job_id)
    assert shown.code == 0
    for part in (
        job_id, "failed", "UTC, just now", "user:7", '"out of cheese"', "ValueError: out of cheese", "Traceback",
    ):  # fmt: skip
        assert part in shown.out
    assert [line for line in shown.out.splitlines() if line != line.rstrip()] == []


def test_watch_prints_the_result_of_a_job_that_has_ended_and_exits_with_its_fate(cli: Cli, queue: Queue) -> None:
    assert cli("watch", queue.run(payload={"n": 1})).out == '{"n":1}\n'
    failed = cli("watch", queue.run("die", "x"))
    assert (failed.code, failed.out) == (1, "")
    assert "ValueError: x" in failed.err
    cancelled = queue.submit()
    assert cli("cancel", cancelled, "--reason", "not now").code == 0
    ran = cli("watch", cancelled)
    assert ran.code == 3
    assert "not now" in ran.err


@pytest.mark.parametrize(
    "command",
    ["show", "watch", "logs", "tree", "explain", "cancel", "retry", "reprioritise ID low", "reschedule ID --in 5m"],
)
def test_an_unknown_id_exits_5_and_text_that_is_no_id_exits_2(cli: Cli, queue: Queue, command: str) -> None:
    name, *rest = command.split()
    unknown = new_id(1)
    ran = cli(name, unknown, *rest[1:])
    assert (ran.code, ran.out, ran.err) == (5, "", f"backstay: no job {unknown}\n")
    ran = cli(name, "seven", *rest[1:])
    assert (ran.code, ran.out) == (2, "")
    assert "ids are UUIDs" in ran.err


def test_a_mistyped_url_is_an_error_and_makes_no_file(cli: Cli, folder: Path) -> None:
    ran = cli("list", "--url", "sqlite:///typo.db")
    assert ran.code == 2
    assert "no queue at sqlite:///typo.db" in ran.err
    assert "backstay migrate" in ran.err
    assert list(folder.iterdir()) == []


def test_a_url_in_a_folder_that_is_not_there_advises_to_make_the_folder(cli: Cli, folder: Path) -> None:
    for command in ("list", "doctor", "queues"):
        ran = cli(command, "--url", "sqlite:///nowhere/jobs.db")
        assert ran.code == 2
        assert f'mkdir -p {folder}/nowhere"' in ran.err
        assert "migrate" not in ran.err


def test_stored_text_cannot_drive_the_terminal(cli: Cli, queue: Queue) -> None:
    job_id = queue.run("die", EVIL, subject=EVIL, tags=[EVIL])
    spoken = queue.run("echo", EVIL)
    cli("queues", "pause", "default", "--reason", EVIL, "--by", EVIL)
    cli("schedules", "add", "evil", "@daily", "echo", json.dumps(EVIL))
    cli("schedules", "pause", "evil", "--by", EVIL)
    held = queue.submit("echo", EVIL)
    for arguments in (
        ["list"], ["show", job_id], ["dead"], ["watch", job_id], ["logs", spoken], ["show", spoken],
        ["list", "--json"], ["show", job_id, "--json"], ["logs", spoken, "--json"],
        ["explain", job_id], ["explain", held], ["logs", held], ["tree", held], ["queues"], ["queues", "--json"],
        ["schedules"], ["schedules", "show", "evil"], ["schedules", "show", "evil", "--json"], ["doctor"], ["stats"],
        ["submit", "echo", "--wait", "--timeout", "0.05"], ["show", EVIL], ["schedules", "run", EVIL],
    ):  # fmt: skip
        ran = cli(*arguments)
        for text in (ran.out, ran.err):
            assert not {character for character in text if not character.isprintable()} - {"\n"}, arguments
    assert "\\x1b]0;owned\\x07" in cli("list").out
    assert "[bold]not bold[/bold]" in cli("list").out
    assert cli("show", job_id, "--json").document["payload"] == EVIL


@pytest.mark.parametrize("columns", [80, 140])
def test_a_table_fits_the_terminal(queue: Queue, columns: int) -> None:
    queue.run("die", "a long message " * 20, subject="s" * 100)
    lines = on_a_terminal(columns, "list")
    assert max(len(line) for line in lines) <= columns
    assert ("SUBJECT" in lines[0]) is (columns == 140)


def test_a_traceback_begins_with_the_handler(cli: Cli, queue: Queue) -> None:
    trace = queue.job(queue.run("die", "x")).errors[0]["traceback"]
    assert trace.splitlines()[0] == "Traceback (most recent call last):"
    assert "in die" in trace.splitlines()[1]
    assert trace.endswith("ValueError: x\n")


def test_a_traceback_that_is_all_ours_is_kept(queue: Queue) -> None:
    async def unreadable(app: Backstay) -> str:
        @app.job("wrong", max_attempts=1)
        async def wrong(payload: object) -> object:
            return object()

        async with app.worker():
            job = await app.submit("wrong")
            await asyncio.gather(job.result(), return_exceptions=True)
            return (await app.get(job.job_id)).errors[0]["traceback"]

    assert "result_json" in queue.do(unreadable)


def test_a_cancelled_job_that_never_ran_is_not_due(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit(delay=7200)
    assert "\ndue " in cli("show", job_id).out
    cli("cancel", job_id)
    assert "\ndue " not in cli("show", job_id).out


def test_the_history_lines_up_whatever_its_events_are_called(cli: Cli, queue: Queue) -> None:
    shown = cli("show", queue.run("family", "x")).out
    arrows = {line.index("->") for line in shown.partition("History")[2].splitlines() if "->" in line}
    assert "wait_for_children" in shown
    assert len(arrows) == 1


def test_a_priority_is_changed_in_either_spelling(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit(delay=3600)
    for name in ("reprioritise", "reprioritize"):
        assert cli(name, job_id, "high").code == 0
