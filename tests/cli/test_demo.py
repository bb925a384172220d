"""backstay demo"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from backstay.cli import demo
from tests.cli.conftest import Cli


@pytest.fixture
def temporary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo puts its queue, for a demo in a hurry."""
    monkeypatch.setattr(demo, "PACE", 0.05)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_demo_says_what_was_seen_and_leaves_nothing_behind(cli: Cli, temporary: Path) -> None:
    ran = cli("demo")
    assert (ran.code, ran.err) == (0, "")
    for part in (
        "add_up waited for all of them and counted 93,480 words", "call_service failed 2 times",
        "remind was scheduled for later",
        "The schedule every-second submitted ", "divide is a dead letter: it failed at ", "backstay demo --keep",
    ):  # fmt: skip
        assert part in ran.out, part
    assert list(temporary.iterdir()) == []


def test_a_demo_that_is_kept_names_commands_that_work(cli: Cli, temporary: Path) -> None:
    ran = cli("demo", "--keep")
    [place] = temporary.iterdir()
    lines = [line.strip() for line in ran.out.partition("Look around:\n")[2].splitlines()]
    url = lines[0].removeprefix("export BACKSTAY_URL=")
    commands = [line.removeprefix("backstay ").split() for line in lines if line.startswith("backstay ")]
    assert len(commands) >= 6
    for command in commands:
        assert cli("--url", url, *command).code == 0, command
    assert lines[-1] == f"When you are done: rm -r {place}"
    shutil.rmtree(place)
