"""The application of the tutorial on three systems: each is run by its own worker, and killed, and the page says so."""

from __future__ import annotations

import ast
import json
import re
import secrets
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.examples.conftest import EXAMPLES, ROOT
from tests.support.servers.postgres import Postgres
from tests.support.servers.redis import Absent, Redis

FOLDER = EXAMPLES / "comparison"
PAGE = ROOT / "docs/explanation/comparison.md"
SYSTEMS = ("on_backstay", "on_celery", "on_procrastinate")
SECONDS = 200
Drive = Callable[..., dict[str, Any]]


@pytest.fixture
def drive(tmp_path: Path, example_environment: dict[str, str]) -> Drive:
    def drive(name: str, **settings: str) -> dict[str, Any]:
        environment = {**example_environment, "OUTSIDE": str(tmp_path), **settings}
        done = subprocess.run(
            [sys.executable, "-m", "comparison.drive", name],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS - 20,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert found["order"]["receipt"] == "receipt 7"
        assert found["charges"] == ["7"], "one charge, in spite of the retry"
        assert found["strikes"] and found["progress"]
        assert found["after the kill"]["counted"] == 8
        return found

    return drive


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_on_backstay(drive: Drive) -> None:
    found = drive("on_backstay", BACKSTAY_URL="sqlite:///jobs.db")
    assert found["order"]["attempt"] == 2
    assert found["refuses a wrong payload"]
    assert "scheduled" in found["why"]
    assert found["after the kill"]["attempt"] == 2, "it knows that the first worker died"


@pytest.fixture
def redis_url() -> Iterator[str]:
    try:
        server = Redis()
    except Absent as error:
        pytest.skip(str(error))
    with server:
        yield server.empty()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_on_celery(drive: Drive, redis_url: str) -> None:
    found = drive("on_celery", REDIS_URL=redis_url, VISIBILITY_SECONDS="5")
    assert found["order"]["attempt"] == 2
    assert not found["refuses a wrong payload"], "the worker would find it"
    assert found["why"] is None
    assert found["after the kill"]["attempt"] == 1, "that a worker died is not known"
    assert found["seconds"] > 2, "not before its time is over, which is counted from its start"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_on_procrastinate(drive: Drive, postgres: Postgres) -> None:
    name = f"compared_{secrets.token_hex(4)}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = f"{postgres.url().rpartition('/')[0]}/{name}"
    found = drive("on_procrastinate", DATABASE_URL=url, STALLED_SECONDS="3")
    assert found["order"]["attempt"] == 2
    assert not found["refuses a wrong payload"]
    assert "todo, scheduled at" in found["why"]
    assert found["after the kill"]["attempt"] == 2
    assert found["seconds"] > 2, "not before the worker counts as stalled, by code of our own"


def lines_of_code(file: Path) -> int:
    """Lines that are neither empty, nor a comment, nor a docstring."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    said: set[int] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = each.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                said.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    passed = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    with file.open("rb") as content:
        found = {
            number
            for token in tokenize.tokenize(content.readline)
            if token.type not in (*passed, tokenize.ENCODING)
            for number in range(token.start[0], token.end[0] + 1)
        }
    return len(found - said)


def test_the_page_has_the_lines_that_there_are() -> None:
    row = re.search(r"^\| lines of code \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None
    assert [int(each) for each in row.groups()] == [lines_of_code(FOLDER / f"{name}.py") for name in SYSTEMS]
