"""Statements on result tables go through the key or the index of their table, however many rows others have."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from backstay.engines.sqlite import connection, results
from backstay.engines.sqlite.writer import Tx
from backstay.testing.conformance.test_results import WORDS
from tests.engines.plans.test_plans import by_id, by_seq, plan_of

KEY = "sqlite_autoindex_result_words_1"
COLUMNS = WORDS.columns


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = Path(tmp_path_factory.mktemp("plans")) / "jobs.db"
    connection.create(path)
    opened = connection.connect(path)
    connection.migrate(opened, path)
    results.declare(Tx(opened), [WORDS])
    yield opened
    opened.close()


@pytest.mark.parametrize("subject", [False, True])
@pytest.mark.parametrize(
    ("key", "after", "sought"),
    [(False, False, "(job_id=?)"), (False, True, "(job_id=? AND word>?)"), (True, False, "(job_id=? AND word=?)")],
    ids=["first page", "following page", "one row"],
)
def test_a_page_is_a_walk_along_the_key(
    database: apsw.Connection, key: bool, after: bool, subject: bool, sought: str
) -> None:
    statement = results.page(WORDS, COLUMNS, key, after, subject)

    assert plan_of(database, statement) == [f"SEARCH r USING INDEX {KEY} {sought}"]


@pytest.mark.parametrize("after", [False, True])
def test_rows_of_a_subject_come_in_the_order_of_its_index(database: apsw.Connection, after: bool) -> None:
    plan = plan_of(database, results.by_subject(WORDS, COLUMNS, after))

    assert plan[0].startswith("SEARCH r USING INDEX result_words_subject (topic=?")
    assert ("created_at" in plan[0]) == after  # a following page begins where the one before has ended
    assert plan[1:] == [by_id("job", covering=True), by_seq("ended")]


def test_rows_are_removed_by_their_job(database: apsw.Connection) -> None:
    plan = plan_of(database, results.drop(WORDS).replace("?1", ":job").replace("?2", ":limit"))

    assert not [step for step in plan if step.startswith("SCAN result_words")]
    assert f"SEARCH result_words USING COVERING INDEX {KEY} (job_id=?)" in plan
