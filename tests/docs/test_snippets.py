"""What the pages show works: every block runs, page by page, in an empty folder."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.docs.pages import PAGES, ROOT, blocks, name, wants_database, wants_tables
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.postgres import Postgres

RUN = Path(__file__).with_name("run_page.py")
WITH_BLOCKS = [page for page in PAGES if any(each.language in ("python", "sh") for each in blocks(page))]
SKIPPED_MAX = 6  # each one is a promise nobody checks

PAGE_SECONDS = 280  # a page is done within half a minute, on a machine that has nothing else to do

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path], Done]]:
    """The pages that were asked for, two at a time: they spend much of their time waiting."""
    with ThreadPoolExecutor(2) as pool:

        def start(page: Path) -> Future[Done]:
            server = request.getfixturevalue("postgres") if wants_database(page) else None
            tables = request.getfixturevalue("dynamodb") if wants_tables(page) else None
            return pool.submit(run, page, tmp_path_factory.mktemp(page.stem), server, tables)

        ahead = {}
        if "PYTEST_XDIST_WORKER" not in os.environ:  # there, each of several processes gets only some of the pages
            pages = [item.callspec.params["page"] for item in request.session.items if "outcome" in item.fixturenames]
            ahead = {page: start(page) for page in pages}
        yield lambda page: (ahead.get(page) or start(page)).result()


def run(page: Path, folder: Path, server: Postgres | None, tables: DynamoDB | None) -> Done:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BACKSTAY_")}
    if server is not None:
        environment["DATABASE_URL"] = new_database(server, page)
    if tables is not None:
        environment["DYNAMODB_URL"] = tables.url()
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        [sys.executable, "-W", "error", str(RUN), str(page)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_SECONDS,
    )


def new_database(server: Postgres, page: Path) -> str:
    database = f"page_{page.parent.name}_{page.stem}".replace("-", "_")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    return server.url().removesuffix("/postgres") + f"/{database}"


@pytest.mark.timeout(PAGE_SECONDS + 20)
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name)
def test_the_snippets_of_a_page_run(page: Path, outcome: Callable[[Path], Done]) -> None:
    done = outcome(page)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_names_its_language(page: Path) -> None:
    assert [each.line for each in blocks(page) if not each.language] == []


def test_few_snippets_are_skipped_and_each_says_why() -> None:
    skipped = [each for page in PAGES for each in blocks(page) if each.skip is not None]
    assert len(skipped) <= SKIPPED_MAX
    assert all(len(str(each.skip)) > 10 for each in skipped)


def test_a_snippet_that_a_test_runs_names_one_that_takes_its_pages_from_here() -> None:
    named = [each.test for page in PAGES for each in blocks(page) if each.test is not None]
    assert named
    assert [test for test in named if f'run_by("{test}")' not in (ROOT / test).read_text(encoding="utf-8")] == []
