"""backstay move: said on the way, said at the end, and said when it cannot be."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from backstay import Backstay
from backstay.cli import move
from backstay.cli.output import Exit
from backstay.engines import open_url
from backstay.ops import access
from backstay.testing.conformance.factories import running
from tests.cli.conftest import Cli, Queue
from tests.cli.terminal import on_a_terminal
from tests.support.servers.postgres import Postgres

PASSWORD = "open-sesame"


@pytest.fixture
def there(folder: Path) -> str:
    return f"sqlite:///{folder}/there.db"


def test_a_queue_is_moved_and_the_command_says_what_went(cli: Cli, queue: Queue, there: str) -> None:
    done, later = queue.run("keep", {"a.txt": "A"}), queue.submit("echo", 1, delay=3600)

    ran = cli("move", queue.url, there)

    assert ran.code == Exit.OK
    assert "transferred 2 jobs and 0 archived jobs to" in ran.out
    assert "both sides were compared and match" in ran.out
    assert "1 file (1 byte)" in ran.out
    assert "set BACKSTAY_URL to" in ran.err
    assert {each["job_id"] for each in cli("list", "--url", there, "--json").document["items"]} == {done, later}
    assert cli("artifacts", done, "a.txt", "--url", there).out == "A"


def test_the_report_is_a_document(cli: Cli, queue: Queue, there: str) -> None:
    queue.run("echo", 1)

    report = cli("move", queue.url, there, "--json").document

    assert report["copied"]["jobs"] == 1
    assert (report["source"], report["target"]) == (queue.url, there)
    assert report["missing_count"] == report["shortened"] == 0


def test_whoever_goes_on_using_the_old_one_is_told(cli: Cli, queue: Queue, there: str) -> None:
    job_id = queue.run("echo", 1)
    cli("move", queue.url, there)

    refused = cli("submit", "echo", "2")

    assert refused.code == Exit.FAILED
    assert (
        refused.err == f"backstay: this queue was transferred to {there}: set BACKSTAY_URL to it\n"
    )  # and says it once
    assert cli("show", job_id).code == Exit.OK  # what it has can still be read


def test_the_doctor_and_explain_say_that_it_has_moved(cli: Cli, queue: Queue, there: str) -> None:
    waits = queue.submit("echo", 1)
    cli("move", queue.url, there)

    doctor, explained = cli("doctor"), cli("explain", waits)
    assert "start a worker" not in doctor.out and "start one" not in doctor.out

    assert doctor.code == Exit.FAILED
    for out in (doctor.out, explained.out):
        assert f"this queue was transferred to {there}: set BACKSTAY_URL to it" in out


def test_ctrl_c_says_how_to_go_on(cli: Cli, queue: Queue, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.transfer.Mover._verify", _stopped)

    stopped = cli("move", queue.url, there)

    assert stopped.code == Exit.INTERRUPTED
    assert "run the same command again" in stopped.err
    assert "stored jobs are safe" not in stopped.err


async def _stopped(mover: object) -> None:
    raise KeyboardInterrupt


def test_a_move_that_was_gone_on_with_tells_of_all_that_went(
    cli: Cli, queue: Queue, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.run("keep", {"a.txt": "A"})
    cli("schedules", "add", "nightly", "30 3 * * *", "echo")
    with monkeypatch.context() as patched:
        patched.setattr("backstay.transfer.Mover._verify", _stopped)
        cli("move", queue.url, there)

    ran = cli("move", queue.url, there)

    assert "1 file (1 byte)" in ran.out
    assert "1 schedule," in ran.out


def test_the_address_of_another_place_can_be_pasted(cli: Cli, queue: Queue, there: str, postgres: Postgres) -> None:
    url = postgres.url(schema=f"move_{secrets.token_hex(3)}")
    waits = queue.submit("echo", 1)
    moved = cli("move", queue.url, url)
    assert moved.code == Exit.OK, moved.err

    elsewhere = cli("move", queue.url, there)

    [address] = [word.rstrip(":") for word in elsewhere.err.split() if word.startswith("postgresql://")]
    assert cli("show", waits, "--url", address).code == Exit.OK
    assert f"'{address}'" in moved.err


def test_a_second_time_there_is_nothing_to_do(cli: Cli, queue: Queue, there: str) -> None:
    cli("move", queue.url, there)

    again = cli("move", queue.url, there)

    assert (again.code, again.out) == (Exit.OK, f"the queue has already been transferred to {there}\n")


def test_a_move_is_given_up(cli: Cli, queue: Queue, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.transfer.Mover._verify", _interrupted)
    with pytest.raises(RuntimeError):
        cli("move", queue.url, there)
    refused = cli("submit", "echo", "1")
    given_up = cli("move", queue.url, there, "--thaw")

    assert refused.code == Exit.FAILED
    assert (given_up.code, cli("submit", "echo", "1").code) == (Exit.OK, Exit.OK)
    assert "accepts and runs jobs again" in given_up.err


async def _interrupted(mover: object) -> None:
    raise RuntimeError("the power went")


def test_what_has_moved_is_not_thawed_by_mistake(cli: Cli, queue: Queue, there: str) -> None:
    cli("move", queue.url, there)

    refused = cli("move", queue.url, there, "--thaw")
    forced = cli("move", queue.url, there, "--thaw", "--force")

    assert refused.code == Exit.FAILED
    assert "they would run twice" in refused.err
    assert (forced.code, cli("submit", "echo", "1").code) == (Exit.OK, Exit.OK)
    file = there.removeprefix("sqlite:///")
    assert f"empty that: delete {file}, {file}-wal, {file}-shm, {file}.files" in forced.err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://host/db", 'DROP SCHEMA "backstay" CASCADE'),
        ("postgresql://host/db?schema=mine&pool=3", 'DROP SCHEMA "mine" CASCADE'),
        (
            "dynamodb://prefix?region=eu-north-1",
            "backstay --url 'dynamodb://prefix?region=eu-north-1' migrate --delete",
        ),
    ],
)
def test_how_to_empty_the_place_of_an_abandoned_transfer_is_a_command(url: str, says: str) -> None:
    assert says in move._how_to_empty(url)


def test_sessions_of_the_dashboard_do_not_count_as_keys(cli: Cli, queue: Queue, there: str) -> None:
    async def log_in(app: Backstay) -> None:
        created = await app.create_key("anna", ["admin"])
        [key] = await app.store.keys([created.key.key_id])
        for _ in range(3):
            await access.open_session(app.store, app.clock.now(), key)

    queue.do(log_in)
    assert "1 API key" in cli("move", queue.url, there).out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("{here}", "{there}", "--force"), "it only works with --thaw"),
        (("{here}",), "Missing argument 'TO'"),
        (("{here}", "{here}"), "choose another location"),
        (("sqlite:///nowhere.db", "{there}"), "no queue at"),
        (("{here}", "ftp://x"), "is not a supported engine"),
        (("{here}", "{there}", "--grace", "soon"), "--grace"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    cli: Cli, queue: Queue, there: str, arguments: tuple[str, ...], says: str
) -> None:
    ran = cli("move", *(each.format(here=queue.url, there=there) for each in arguments))

    assert ran.code == Exit.USAGE
    assert says in ran.err


def test_no_password_is_shown(cli: Cli, queue: Queue, postgres: Postgres) -> None:
    queue.run("echo", 1)
    url = postgres.url(schema=f"move_{secrets.token_hex(3)}").replace("postgres@", f"postgres:{PASSWORD}@")

    ran = cli("move", queue.url, url)
    told = cli("submit", "echo", "1")

    assert ran.code == Exit.OK, ran.err
    assert PASSWORD not in ran.out + ran.err + told.err


def test_a_terminal_shows_how_far_it_is(queue: Queue, there: str) -> None:
    queue.run("echo", 1)

    said = "\n".join(on_a_terminal(100, "move", queue.url, there))

    assert "comparing both sides" in said
    assert "transferred 1 job and 0 archived jobs to" in said.replace("\n", " ")


def test_it_waits_as_long_as_it_is_told_to(cli: Cli, queue: Queue, there: str) -> None:
    async def claim() -> None:
        store = open_url(queue.url)
        await store.open()
        await running(store)
        await store.close()

    asyncio.run(claim())

    ran = cli("move", queue.url, there, "--grace", "0s")

    assert ran.code == Exit.FAILED
    assert "1 job is still running on worker-1" in ran.err
