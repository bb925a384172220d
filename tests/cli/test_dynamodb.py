"""Every command works on a queue in DynamoDB, and nothing is deleted by mistake."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay
from backstay.engines.dynamodb import migrate
from backstay.errors import StoreUnavailable
from tests.cli.conftest import Cli, sample_app
from tests.cli.on_servers import test_a_large_result_is_shown_by_every_command_that_shows_results  # noqa: F401
from tests.support.servers.dynamodb import DynamoDB


@pytest.fixture
def url(dynamodb: DynamoDB, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = dynamodb.url()
    monkeypatch.setenv("BACKSTAY_URL", url)
    return url


@pytest.fixture
def jobs(url: str) -> list[str]:
    """One that ran, one that failed, one for later."""

    async def work() -> list[str]:
        app: Backstay = sample_app(url)
        async with app, app.worker(queues=["default"]):
            ids = []
            for job_type, options in (("echo", {}), ("die", {}), ("echo", {"delay": 3600})):
                job = await app.submit(job_type, "hello", **options)
                ids.append(job.job_id)
                if not options:
                    await asyncio.gather(job.result(timeout=20), return_exceptions=True)
            await app.schedule("nightly", "30 3 * * *", "echo", "good night")
            return ids

    return asyncio.run(work())


COMMANDS = [
    ("list", "echo"),
    ("show {0}", "completed"),
    ("show {1}", "ValueError"),
    ("logs {0}", "heard hello"),
    ("tree {0}", "echo"),
    ("explain {2}", "scheduled"),
    ("workers", ""),
    ("queues", "default"),
    ("schedules", "nightly"),
    ("stats", "echo"),
    ("dead", "ValueError"),
    ("doctor", "DynamoDB"),
    ("migrate", "up to date"),
    ("submit echo 7", "-"),
]


def test_every_command_works(cli: Cli, jobs: list[str]) -> None:
    for command, expected in COMMANDS:
        ran = cli(*command.format(*jobs).split())

        assert ran.code == 0, (command, ran.err)
        assert expected in ran.out, command


def test_the_region_of_the_environment_is_named(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("BACKSTAY_URL", url.replace("region=local&", ""))

    assert "?region=eu-north-1&" in cli("list").err


READING = [command for command, _ in COMMANDS if command.split()[0] not in ("submit", "migrate")]


@pytest.mark.parametrize("command", [*READING, "cancel {0}", "retry {0}", "purge --older-than 0 --yes"])
def test_a_command_that_makes_nothing_says_that_there_is_no_queue(cli: Cli, url: str, command: str) -> None:
    ran = cli(*command.format(*["01890000-0000-7000-8000-000000000000"] * 3).split())

    assert (ran.code, ran.out) == (2, "")
    assert f"no queue at {url}" in ran.err
    assert "backstay migrate" in ran.err
    assert asyncio.run(Backstay(url).erase()) == []


def test_the_hint_for_the_next_page_can_be_pasted_into_a_shell(cli: Cli, jobs: list[str]) -> None:
    hint = cli("list", "--limit", "1").err.partition("add ")[2]

    words = list(shlex.shlex(hint, posix=True, punctuation_chars=True))
    assert len(words) == 2  # no pipe between them
    assert len(cli("list", "--json", *words).document["items"]) == 2


def test_tables_are_made_once(cli: Cli, url: str) -> None:
    assert "applied 0001_tables" in cli("migrate").out
    assert "up to date" in cli("migrate").out


@pytest.mark.parametrize(("answer", "left"), [("y\n", True), ("delete\n", False)])
def test_everything_is_deleted_only_by_who_types_it_out(
    cli: Cli, url: str, jobs: list[str], monkeypatch: pytest.MonkeyPatch, answer: str, left: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    ran = cli("migrate", "--delete-existing")

    prefix = url.partition("?")[0].removeprefix("dynamodb://")
    assert re.search(rf"This deletes {prefix}_jobs \(about \d+ items\), {prefix}_records \(about \d+ items\)", ran.err)
    assert f"of {url} and everything" in ran.err
    assert (ran.code == 0) is not left
    assert ("nothing was changed" in ran.err) is left
    assert ("echo" in cli("list").out) is left


def test_without_a_terminal_to_ask_on_nothing_is_deleted_unless_told_yes(cli: Cli, jobs: list[str]) -> None:
    ran = cli("migrate", "--delete-existing")

    assert ran.code == 2
    assert "--yes" in ran.err
    assert "echo" in cli("list").out


def test_a_migration_says_that_it_raised_the_shards(cli: Cli, url: str) -> None:
    cli("migrate")

    assert cli("migrate", "--url", f"{url}&shards=4").out == f"{url}&shards=4: applied shards=4\n"


def test_a_server_that_is_not_there_is_a_finding_with_advice(
    cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: Any) -> bool:
        raise StoreUnavailable("nobody answers")

    monkeypatch.setattr(migrate, "exists", away)

    ran = cli("doctor")

    assert (ran.code, ran.out) == (
        1,
        "bad   opening  nobody answers -> start the server, or choose another with --url\n",
    )


def test_who_knows_what_he_does_is_not_asked(cli: Cli, jobs: list[str]) -> None:
    assert cli("migrate", "--delete-existing", "--yes").code == 0
    assert "echo" not in cli("list").out


def test_a_file_is_not_deleted_by_a_command(cli: Cli, folder: Path) -> None:
    ran = cli("migrate", "--delete-existing", "--yes")

    assert ran.code != 0
    assert "jobs.db" in ran.err
