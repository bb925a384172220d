"""Ids may be shortened where one is asked for"""

from __future__ import annotations

import pytest

from backstay import Backstay
from backstay.cli import app_loader
from backstay.ops import lookup
from tests.cli.conftest import Cli, Queue

TWINS = ("01990000-0000-7000-8000-00000abcdef1", "01990000-0000-7000-8000-11111abcdef1")


@pytest.mark.parametrize("cut", [slice(0, 13), slice(-6, None), slice(-12, None), slice(-17, None)])
def test_a_beginning_or_an_end_of_an_id_stands_for_the_job(cli: Cli, queue: Queue, cut: slice) -> None:
    queue.submit(job_id="00000000-0000-7000-8000-000000000001")
    job_id = queue.submit()
    assert cli("show", job_id[cut], "--json").document["job_id"] == job_id
    assert cli("show", job_id[cut].upper(), "--json").document["job_id"] == job_id


def test_every_command_that_asks_for_an_id_takes_a_part_of_one(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit(delay=3600)
    part = job_id[-8:]
    for arguments in (
        ["show", part], ["logs", part], ["tree", part], ["explain", part], ["reprioritise", part, "low"],
        ["reschedule", part, "--in", "2h"], ["list", "--root", part], ["submit", "echo", "--depends-on", part],
        ["submit", "echo", "--parent", part], ["cancel", part], ["retry", part],
    ):  # fmt: skip
        ran = cli(*arguments)
        assert ran.code == 0, (arguments, ran.err)


def test_a_part_that_fits_several_jobs_is_refused_and_some_are_named(cli: Cli, queue: Queue) -> None:
    for job_id in TWINS:
        queue.submit(job_id=job_id)
    ran = cli("cancel", "abcdef1")
    assert (ran.code, ran.out) == (2, "")
    assert "matches 2 jobs" in ran.err
    assert all(f"{job_id} (echo, pending)" in ran.err for job_id in TWINS)
    assert "give more" in ran.err
    assert cli("cancel", "1" + "abcdef1").out == f"{TWINS[1]} is cancelled\n"


def test_a_part_of_no_job_exits_5_and_says_where_whole_ids_are(cli: Cli, queue: Queue) -> None:
    queue.submit()
    ran = cli("show", "ffffffffff")
    assert ran.code == 5
    assert "backstay list --json" in ran.err


def test_an_archived_job_is_found_by_its_whole_id_only_and_the_error_says_so(cli: Cli, queue: Queue) -> None:
    job_id = queue.run()
    cli("purge", "--older-than", "0", "--yes")
    assert cli("show", job_id).code == 0
    ran = cli("show", job_id[-12:])
    assert ran.code == 5
    assert "archived jobs are found by their full id only" in ran.err


def test_five_characters_are_too_few_to_guess_by(cli: Cli, queue: Queue) -> None:
    job_id = queue.submit()
    ran = cli("cancel", job_id[-5:])
    assert ran.code == 2
    assert "6 or more" in ran.err
    assert queue.job(job_id).status == "pending"


def test_the_search_is_bounded_but_finds_old_jobs_that_have_not_completed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "PAGE", 2)
    monkeypatch.setattr(lookup, "NEWEST_PAGES", 1)
    done = queue.run()
    died = queue.run("die", "x")
    for _ in range(3):
        queue.run()

    async def look(app: Backstay) -> str:
        with pytest.raises(LookupError):
            await app_loader.job_id(app, done[-8:])
        return await app_loader.job_id(app, died[-8:])

    assert queue.do(look) == died
