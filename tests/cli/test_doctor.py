"""backstay doctor"""

from __future__ import annotations

from pathlib import Path

import pytest

from backstay import Backstay, Finding
from tests.cli.conftest import Cli, Queue
from tests.cli.terminal import on_a_terminal


def test_every_check_is_one_line_with_its_level_and_what_to_do_where_it_is_not_well(cli: Cli, queue: Queue) -> None:
    queue.submit()
    ran = cli("doctor")
    lines = ran.out.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "warn", "bad"}
    workers = next(line for line in lines if " workers " in line)
    assert workers.startswith("warn  workers ")
    assert '-> start one with "backstay worker --app …"' in workers
    assert all(" -> " in line for line in lines if not line.startswith("ok"))
    items = cli("doctor", "--json").document["items"]
    assert len(items) == len(lines)
    assert {"engine", "durability", "disk space", "clock", "schema", "workers", "types"} <= {
        item["check"] for item in items
    }


def test_what_is_bad_exits_1_and_a_warning_does_not(cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Finding("engine", "ok", "fine"), Finding("workers", "warn", "none", "start one")]

    async def check_up(app: Backstay) -> list[Finding]:
        return found

    monkeypatch.setattr(Backstay, "check_up", check_up)
    ran = cli("doctor")
    assert (ran.code, ran.err) == (0, "backstay: 1 warning in 2 checks\n")
    found.append(Finding("disk", "bad", "full", "free some"))
    ran = cli("doctor")
    assert (ran.code, ran.err) == (1, "backstay: 1 problem and 1 warning in 3 checks\n")
    assert cli("doctor", "--json").code == 1
    del found[1:]
    assert cli("doctor").err == "backstay: 1 check passed\n"


def test_a_queue_that_cannot_be_opened_is_a_finding(cli: Cli, folder: Path) -> None:
    (folder / "jobs.db").write_bytes(b"this is no database" * 100)
    ran = cli("doctor")
    assert ran.code == 1
    assert ran.out.startswith("bad   opening  ")


def test_advice_stands_under_the_finding_on_a_terminal(queue: Queue) -> None:
    lines = on_a_terminal(80, "doctor")
    at = next(number for number, line in enumerate(lines) if line.startswith("warn  workers"))
    assert lines[at + 1].lstrip() == '→ start one with "backstay worker --app …"'
    assert max(map(len, lines)) <= 80
