"""Every statement of the SQLite engine goes through the index that its header names; none walks the table."""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import apsw
import pytest

from holdfast.stores.sqlite import connection, reading
from holdfast.stores.sqlite.sql import load

BY_ID = "SEARCH job USING INDEX sqlite_autoindex_job_1 (job_id=?)"
BY_ROWID = "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)"

# What each statement's plan must say.
PLANS = {
    "anyone_waits": [
        "SCAN edge USING COVERING INDEX edge_unmet",
        "SEARCH job USING COVERING INDEX job_key (concurrency_key>?)",
    ],
    "apply": [BY_ID],
    "awaited": [BY_ID],
    "blockers": [
        "SEARCH e USING COVERING INDEX edge_child (child_id=?)",
        "SEARCH p USING INDEX sqlite_autoindex_job_1 (job_id=?)",
        BY_ID,
    ],
    "candidates": ["SEARCH job USING INDEX job_ready (queue=? AND job_type=? AND parked=?)"],
    "claim": [BY_ROWID],
    "claimed": [BY_ROWID],
    "claimed_before": ["SCAN job USING INDEX job_lease"],
    "complete": [BY_ID],
    "counts": ["SCAN job"],
    "dead": ["SEARCH job USING INDEX job_ended_badly (status=?)"],
    "edges_of": [
        "SEARCH edge USING COVERING INDEX edge_child (child_id=?)",
        "SEARCH edge USING PRIMARY KEY (parent_id=?)",
    ],
    "expired": ["SEARCH job USING INDEX job_lease (lease_expires_at<?)"],
    "extend": [BY_ID],
    "get": [BY_ID],
    "held_by": ["SCAN job USING INDEX job_lease"],
    "insert": [],
    "insert_extras": [BY_ID],
    "insert_reused": [BY_ID],
    "joinable": ["SEARCH job USING INDEX job_content (content_hash=? AND job_type=? AND completed_at=?)"],
    "key_room": [
        "SEARCH job USING COVERING INDEX job_key (concurrency_key=? AND status=?)",
        "SEARCH job USING COVERING INDEX job_key"
        " (concurrency_key=? AND status=? AND queue=? AND job_type=? AND parked=?)",
    ],
    "keys_of": [BY_ID],
    "meet_edge": ["SEARCH edge USING PRIMARY KEY (parent_id=? AND child_id=?)"],
    "next_due": ["SEARCH job USING INDEX job_due"],
    "note": [BY_ID],
    "park": [BY_ROWID],
    "parked_keys": ["SCAN job USING INDEX job_parked"],
    "parked_of": ["SEARCH job USING COVERING INDEX job_parked (concurrency_key=?)"],
    "promote": [BY_ROWID, "SEARCH job USING INDEX job_due (scheduled_for<?)"],
    "record_step": [BY_ID],
    "release_child": [BY_ID],
    "reusable": ["SEARCH job USING INDEX job_content (content_hash=? AND job_type=? AND completed_at>?)"],
    "standing": [BY_ID],
    "unmet_edges": [
        "SEARCH e USING COVERING INDEX edge_unmet (parent_id=?)",
        "SEARCH c USING INDEX sqlite_autoindex_job_1 (job_id=?)",
    ],
    "unpark": [
        BY_ROWID,
        "SEARCH job USING COVERING INDEX job_key"
        " (concurrency_key=? AND status=? AND queue=? AND job_type=? AND parked=?)",
    ],
}
FIND_PLANS = {
    "subject": "SEARCH job USING INDEX job_subject (subject=?)",
    "content_hash": "SEARCH job USING INDEX job_content (content_hash=?)",
    "root": "SEARCH job USING INDEX job_root (root_job_id=?)",
    "worker": "SCAN job USING INDEX job_lease",
    "processing": "SCAN job USING INDEX job_lease",
    "pending": "SCAN job USING INDEX job_ready",
    "later": "SEARCH job USING INDEX job_later (status=?)",
    "ended_badly": "SEARCH job USING INDEX job_ended_badly (status=?)",
    "arrival": "SCAN job",
}

# Partial indexes over few rows, which are walked from end to end; and what reads the whole table, on purpose.
WALKS = {
    "anyone_waits": "SCAN edge USING COVERING INDEX edge_unmet",
    "claimed_before": "SCAN job USING INDEX job_lease",
    "held_by": "SCAN job USING INDEX job_lease",
    "parked_keys": "SCAN job USING INDEX job_parked",
    "counts": "SCAN job",
}
# Sorts of a handful of rows: five errors, the keys of a batch, groups of errors.
SORTS = {"apply", "counts", "dead", "keys_of"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = Path(tmp_path_factory.mktemp("plans")) / "jobs.db"
    connection.create(path)
    opened = connection.connect(path)
    connection.migrate(opened, path)
    yield opened
    opened.close()


def plan_of(database: apsw.Connection, statement: str) -> list[str]:
    names = database.execute("EXPLAIN " + statement, _Nulls()).fetchall()  # it must compile, whatever it binds
    assert names
    return [str(row[3]) for row in database.execute("EXPLAIN QUERY PLAN " + statement, _Nulls())]


class _Nulls(dict[str, None]):
    """Bindings for any statement: everything is NULL."""

    def __missing__(self, key: str) -> None:
        return None


def statements() -> list[str]:
    folder = resources.files("holdfast.stores.sqlite").joinpath("sql")
    return sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql"))


def test_every_statement_has_a_plan_here_and_every_plan_a_statement() -> None:
    assert statements() == sorted(PLANS)


@pytest.mark.parametrize("name", statements())
def test_a_statement_goes_through_its_index(database: apsw.Connection, name: str) -> None:
    plan = plan_of(database, load(name))

    for step in PLANS[name]:
        assert step in plan


@pytest.mark.parametrize("name", statements())
def test_no_statement_walks_the_table(database: apsw.Connection, name: str) -> None:
    walks = [step for step in plan_of(database, load(name)) if step.startswith(("SCAN job", "SCAN edge", "SCAN step"))]

    assert walks == ([WALKS[name]] if name in WALKS else [])


@pytest.mark.parametrize("name", statements())
def test_no_statement_sorts_what_an_index_could_give_in_order(database: apsw.Connection, name: str) -> None:
    sorts = [step for step in plan_of(database, load(name)) if "TEMP B-TREE" in step]

    assert bool(sorts) == (name in SORTS)


@pytest.mark.parametrize("name", statements())
def test_a_statement_says_what_it_promises_and_which_index_serves_it(name: str) -> None:
    header = load(name).partition("\nSELECT")[0].partition("\nUPDATE")[0].partition("\nINSERT")[0]

    assert header.startswith("-- ")
    for index in (
        "job_ready",
        "job_due",
        "job_lease",
        "job_later",
        "job_ended_badly",
        "job_content",
        "job_key",
        "job_parked",
    ):
        if any(index in step for step in PLANS[name]):
            assert index in header


@pytest.mark.parametrize(("lead", "order"), reading.FIND)
def test_a_search_goes_through_the_index_of_its_leading_qualifier(
    database: apsw.Connection, lead: str, order: str
) -> None:
    steps = [step for step in plan_of(database, reading.FIND[lead, order]) if " job" in step]

    assert steps == [FIND_PLANS[lead]]


@pytest.mark.parametrize("lead", ["subject", "root", "later", "ended_badly", "arrival"])
def test_a_search_by_order_of_arrival_sorts_nothing(database: apsw.Connection, lead: str) -> None:
    assert not [step for step in plan_of(database, reading.FIND[lead, "created"]) if "TEMP B-TREE" in step]
