"""backstay import: the table first, a question, and a report."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from backstay.cli.output import Exit
from backstay.sync import Backstay
from tests.cli.conftest import APP, Cli, Queue
from tests.cli.terminal import on_a_terminal
from tests.imports.analysis_source import make


@pytest.fixture
def source(folder: Path) -> str:
    path = folder / "old" / "jobs.db"
    path.parent.mkdir()
    make(path, 8)
    return str(path)


def test_a_dry_run_prints_what_becomes_what_and_writes_nothing(cli: Cli, folder: Path, source: str) -> None:
    ran = cli("import", "analysis", source, "--dry-run")

    assert ran.code == Exit.OK
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["analyze", "queued", "pending", "default", "1"] in lines
    assert "8 jobs of" in ran.err and "can be imported, 0 cannot" in ran.err
    assert not (folder / "jobs.db").exists()


def test_a_dry_run_writes_nothing_into_a_queue_that_exists(cli: Cli, folder: Path, source: str) -> None:
    """Not even the job types of the application, which it uses."""
    with Backstay(f"sqlite:///{folder}/jobs.db"):
        pass
    ran = cli("import", "analysis", source, "--dry-run", "--app", APP, "--rename", "analyze=add")

    assert ran.code == Exit.OK and "no application here has a handler for lrc:" in ran.err
    with Backstay(f"sqlite:///{folder}/jobs.db") as queue:
        assert queue.job_types() == [] and queue.audit_trail() == []


def test_it_is_imported_after_a_yes(cli: Cli, source: str) -> None:
    shown = on_a_terminal(200, "import", "analysis", source, typed="y\n")

    assert any(line.startswith("Import 8 jobs into sqlite:///") for line in shown)
    assert any("imported 8 jobs in" in line for line in shown)
    assert len(cli("list", "--json").document["items"]) == 8


def test_anything_but_yes_imports_nothing(cli: Cli, source: str) -> None:
    shown = on_a_terminal(200, "import", "analysis", source, typed="\n", code=1)

    assert any("nothing was imported" in line for line in shown)
    assert cli("list", "--json").document["items"] == []


def test_without_a_terminal_it_has_to_be_told(cli: Cli, folder: Path, source: str) -> None:
    ran = cli("import", "analysis", source)

    assert ran.code == Exit.USAGE
    assert "add --dry-run to look at it, or --yes" in ran.err
    assert not (folder / "jobs.db").exists()


def test_a_second_run_finds_everything_here(cli: Cli, source: str) -> None:
    first = cli("import", "analysis", source, "--yes")
    second = cli("import", "analysis", source, "--yes")

    assert "imported 8 jobs in" in first.out
    assert "both sides were compared and match: 8 jobs" in first.err
    assert "imported 0 jobs in" in second.out
    assert "8 jobs had been imported before" in second.out


def test_what_cannot_be_imported_is_listed(cli: Cli, source: str) -> None:
    with sqlite3.connect(source) as connection:
        connection.execute("UPDATE jobs SET request_json = '{' WHERE id = 'job_000000000004'")
    connection.close()

    ran = cli("import", "analysis", source, "--yes")

    assert "cannot be imported  1 job (queued): request_json is not JSON: job_000000000004" in ran.out
    assert "7 jobs of" in ran.err


def test_a_job_that_has_changed_since_is_named(cli: Cli, source: str) -> None:
    cli("import", "analysis", source, "--yes")
    [job] = cli("list", "--tag", "job_000000000000", "--json").document["items"]
    cli("cancel", job["job_id"])

    ran = cli("import", "analysis", source, "--yes")

    assert ran.code == Exit.OK
    assert f"7 jobs match; changed since the import, here or in the source: 1 job, such as {job['job_id']}" in ran.err


def test_the_documents_are_the_plan_and_the_report(cli: Cli, source: str) -> None:
    plan = cli("import", "analysis", source, "--dry-run", "--json").document
    report = cli("import", "analysis", source, "--yes", "--json").document

    assert sum(line["count"] for line in plan["lines"]) == 8
    assert (report["imported"], report["compared"], report["plan"]["source"]) == (8, 8, source)


def test_parts_queues_and_names_can_be_chosen(cli: Cli, source: str) -> None:
    ran = cli("import", "analysis", source, "--yes", "--only", "active", "--queue", "old", "--rename", "lrc=lyrics")

    assert ran.code == Exit.OK
    found = cli("list", "--json").document["items"]
    assert {each["queue"] for each in found} == {"old"}
    assert sorted(each["job_type"] for each in found) == ["analyze", "analyze", "lyrics", "lyrics"]
    assert {each["status"] for each in found} == {"pending", "retrying"}
    assert cli("import", "analysis", source, "--yes", "--rename", "lrc").code == Exit.USAGE


def test_types_without_a_handler_are_named(cli: Cli, source: str) -> None:
    without = cli("import", "analysis", source, "--dry-run")
    having = cli(
        "import", "analysis", source, "--dry-run", "--app", APP, "--rename", "lrc=add", "--rename", "analyze=add"
    )

    assert "no application here has a handler for analyze, lrc" in without.err
    assert "has a handler for" not in having.err


def test_an_unknown_source_or_address_is_an_error(cli: Cli, folder: Path, source: str) -> None:
    assert "did you mean analysis?" in cli("import", "analysiss", source, "--dry-run").err
    assert "no file" in cli("import", "analysis", f"{folder}/none.db", "--dry-run").err
    assert "such as /cache/jobs.db" in cli("import", "analysis", "--dry-run").err


def test_a_source_whose_driver_is_missing_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("backstay.imports.")]:
        if hasattr(sys.modules[name], "asyncpg"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "backstay.imports.embedding_jobs", raising=False)

    ran = cli("import", "embedding-jobs", "postgresql://host/db", "--dry-run")

    assert ran.code == Exit.USAGE
    assert "asyncpg is not installed" in ran.err and ".[postgres]" in ran.err


def test_an_import_that_was_killed_continues(cli: Cli, queue: Queue, source: str) -> None:
    with sqlite3.connect(source) as connection:
        large = "UPDATE jobs SET result_json = json_quote(?) WHERE id = 'job_000000000002'"
        connection.execute(large, ("x" * 100_000,))
    connection.close()
    killed = subprocess.run(
        [sys.executable, "-m", "backstay", "import", "analysis", source, "--yes"],
        env={**os.environ, "BACKSTAY_FAILPOINTS": "import.adopted=kill9"},
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL
    [job] = cli("list", "--tag", "job_000000000002", "--json").document["items"]  # stored, and its result not yet

    assert "8 jobs had been imported before" in cli("import", "analysis", source, "--yes").out

    assert queue.do(lambda app: app.result(job["job_id"])) == "x" * 100_000


def test_what_differs_is_listed_by_its_old_id(cli: Cli, source: str) -> None:
    assert cli("import", "analysis", source, "--yes").code == Exit.OK
    ran = cli("import", "analysis", source, "--compare")
    assert (ran.code, ran.out, ran.err.strip().endswith("0 jobs differ")) == (Exit.OK, "", True)

    [pending, *_] = cli("list", "--status", "pending", "--json").document["items"]
    assert cli("cancel", pending["job_id"]).code == Exit.OK

    ran = cli("import", "analysis", source, "--compare")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["ID", "TYPE", "THERE", "HERE"],
        [pending["tags"][0], pending["job_type"], "queued", "cancelled"],
    ]
    [found] = cli("import", "analysis", source, "--compare", "--json").document
    assert (found["source_id"], found["job_id"]) == (pending["tags"][0], pending["job_id"])
    assert cli("import", "analysis", source, "--compare", "--dry-run").code == Exit.USAGE
