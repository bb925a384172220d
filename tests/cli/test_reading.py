"""holdfast list, show, watch, logs, dead, workers"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.ids import new_id
from holdfast.job import FIELDS
from tests.cli.conftest import Cli, Queue

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
    assert "there are more: add --after " in cli("list", "--limit", "2").err
    assert cli("list").err == ""


def test_list_takes_the_filters_of_find(cli: Cli, queue: Queue) -> None:
    wanted = queue.submit(subject="user:7", tags=["red"], queue="bulk", created_by="me")
    queue.submit()
    for option in (["--subject", "user:7"], ["--tag", "red"], ["--queue", "bulk"], ["--created-by", "me"]):
        assert [item["job_id"] for item in cli("list", *option, "--json").document["items"]] == [wanted]
    assert cli("list", "--type", "die", "--json").document == {"items": [], "next": None}
    assert cli("list", "--status", "sleeping").code == 2


def test_json_records_have_the_fields_of_the_contract_and_times_that_end_in_z(cli: Cli, queue: Queue) -> None:
    job_id = queue.run(payload={"n": 1})
    listed = cli("list", "--json").document["items"][0]
    shown = cli("show", job_id, "--json").document
    assert list(listed) == FIELDS
    assert list(shown) == [*FIELDS, "history"]
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


def test_logs_prints_the_file_in_full_or_the_last_lines_of_the_record(cli: Cli, queue: Queue, folder: Path) -> None:
    job_id = queue.run(payload="knock")
    assert "heard knock" in cli("logs", job_id).out
    entries = cli("logs", job_id, "--json").document
    assert entries["entries"][0]["message"] == "heard knock"
    (folder / "jobs.db.files" / job_id / "job.log").unlink()
    ran = cli("logs", job_id)
    assert "heard knock" in ran.out
    assert "the last lines" in ran.err


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
    assert "ValueError" in cli("dead").out


def test_workers_are_listed_with_the_age_of_their_heartbeat(cli: Cli, queue: Queue) -> None:
    async def look(app: Holdfast) -> list[subprocess.CompletedProcess[str]]:
        async with app.worker(concurrency=3):
            return [
                subprocess.run(  # noqa: ASYNC221  # the worker has nothing to do meanwhile
                    [sys.executable, "-m", "holdfast", "workers", *more], capture_output=True, text=True, check=True
                )
                for more in ([], ["--json"])
            ]

    plain, machine = queue.do(look)
    assert "HEARTBEAT" in plain.stdout
    assert "0/3" in plain.stdout
    assert '"concurrency":3' in machine.stdout
    assert "no worker is registered" in cli("workers").err


@pytest.mark.parametrize("command", ["show", "watch", "logs", "cancel", "retry"])
def test_an_unknown_id_exits_5_and_text_that_is_no_id_exits_2(cli: Cli, queue: Queue, command: str) -> None:
    unknown = new_id(1)
    ran = cli(command, unknown)
    assert (ran.code, ran.out, ran.err) == (5, "", f"holdfast: no job {unknown}\n")
    ran = cli(command, "seven")
    assert (ran.code, ran.out) == (2, "")
    assert "ids are UUIDs" in ran.err


def test_a_mistyped_url_is_an_error_and_makes_no_file(cli: Cli, folder: Path) -> None:
    ran = cli("list", "--url", "sqlite:///typo.db")
    assert ran.code == 2
    assert "no queue at sqlite:///typo.db" in ran.err
    assert list(folder.iterdir()) == []


def test_stored_text_cannot_drive_the_terminal(cli: Cli, queue: Queue) -> None:
    job_id = queue.run("die", EVIL, subject=EVIL, tags=[EVIL])
    spoken = queue.run("echo", EVIL)
    for arguments in (
        ["list"], ["show", job_id], ["dead"], ["watch", job_id], ["logs", spoken], ["show", spoken],
        ["list", "--json"], ["show", job_id, "--json"], ["logs", spoken, "--json"],
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
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in on_a_terminal(columns, "list").split("\r\n")]
    assert max(len(line) for line in lines) <= columns
    assert ("SUBJECT" in lines[0]) is (columns == 140)


def on_a_terminal(columns: int, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    said = bytearray()
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:  # Linux says so when the last writer is gone
        pass
    os.close(ours)
    assert process.wait() == 0
    return said.decode()
