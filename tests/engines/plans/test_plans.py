"""Every statement of the SQLite engine goes through the index that its header names; none walks the table."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from backstay.engines.sqlite import access, admission, connection, insert, read, release, settle, transfer
from backstay.engines.sqlite.connection import load

BY_ID = "SEARCH job USING INDEX sqlite_autoindex_job_1 (job_id=?)"
BY_ROWID = "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)"
OF_LANE = "(concurrency_key=? AND queue=? AND job_type=? AND payload_version=?)"
KEY_LANE = "concurrency_key=? AND status=? AND queue=? AND job_type=? AND payload_version=? AND parked=?"
OF_RATE = "rate_key=? AND rate_count=? AND rate_micros=?"
RATE_LANE = f"{OF_RATE} AND queue=? AND job_type=? AND payload_version=?"
STAGED = "SEARCH staged USING COVERING INDEX sqlite_autoindex_staged_1 (job_id=? AND attempt=? AND part<?)"
AT_LEVEL = "(queue=? AND job_type=? AND parked=? AND priority=?"

# What each statement's plan must say.
PLANS = {
    "ahead": ["SEARCH job USING INDEX job_ready (queue=? AND job_type=? AND parked=?)"],
    "anyone_waits": [
        "SCAN edge USING COVERING INDEX edge_unmet",
        "SEARCH job USING COVERING INDEX job_key (concurrency_key>?)",
    ],
    "apply": [BY_ID],
    "archive": [BY_ROWID],
    "archive_files": [
        "SCAN a USING INDEX archive_files",
        "SEARCH job USING INDEX job_content (content_hash=? AND job_type=?)",
    ],
    "archive_get": ["SEARCH archive USING PRIMARY KEY (job_id=?)"],
    "archive_over": ["SEARCH archive USING INDEX archive_age (archived_at<?)"],
    "audit": [],
    "audited": ["SEARCH audit USING PRIMARY KEY (entry_id<?)"],
    "awaited": [BY_ID],
    "awaited_by": [BY_ID, "SEARCH edge USING INDEX edge_child (child_id=?)"],
    "candidates": [
        "SEARCH queue USING PRIMARY KEY (name=?)",
        "SEARCH job USING COVERING INDEX job_fair (queue=? AND job_type=? AND parked=?)",
        "SEARCH job USING INDEX job_ready (queue=? AND job_type=? AND parked=?)",
    ],
    "claim": [BY_ROWID],
    "claimed": [BY_ROWID],
    "claimed_before": ["SCAN job USING INDEX job_lease"],
    "complete": [BY_ID],
    "count": [],
    "count_children": [BY_ID],
    "counters": ["SEARCH counter USING PRIMARY KEY (minute>? AND minute<?)"],
    "counts": [
        "SCAN job USING INDEX job_ready",
        "SCAN job USING COVERING INDEX job_fair",
        "SCAN job USING COVERING INDEX job_lease",
        "SEARCH job USING COVERING INDEX job_later (status>?)",
        "SEARCH job USING COVERING INDEX job_ended_badly (status=?)",
        "SCAN job USING COVERING INDEX sqlite_autoindex_job_1",
    ],
    "dead": ["SEARCH job USING INDEX job_ended_badly (status=?)"],
    "depths": [
        "SCAN job USING INDEX job_ready",
        "SCAN job USING COVERING INDEX job_fair",
        "SCAN job USING INDEX job_lease",
        "SEARCH job USING INDEX job_later (status>?)",
    ],
    "edges_of": [
        "SEARCH edge USING COVERING INDEX edge_child (child_id=?)",
        "SEARCH edge USING PRIMARY KEY (parent_id=?)",
    ],
    "expired": ["SEARCH job USING INDEX job_lease (lease_expires_at<?)"],
    "export_archive": ["SEARCH archive USING PRIMARY KEY (job_id>?)"],
    "export_audit": ["SEARCH audit USING PRIMARY KEY (entry_id>?)"],
    "export_counters": ["SEARCH counter USING PRIMARY KEY ((minute,job_type,queue,priority,outcome)>(?,?,?,?,?))"],
    "export_guards": ["SEARCH dedup USING PRIMARY KEY (dedup_key>?)"],
    "export_steps": ["SEARCH step USING PRIMARY KEY ((job_id,name)>(?,?))"],
    "export_totals": ["SEARCH counter_sum USING PRIMARY KEY ((job_type,queue,outcome)>(?,?,?))"],
    "extend": [BY_ID],
    "fair_ahead": [f"SEARCH job USING COVERING INDEX job_fair {AT_LEVEL} AND fairness_key=?)"],
    "fair_head": [f"SEARCH job USING INDEX job_fair {AT_LEVEL} AND fairness_key=?)"],
    "fair_keys": [
        f"SEARCH job USING COVERING INDEX job_fair {AT_LEVEL} AND fairness_key>?)",
        f"SEARCH job USING INDEX job_fair {AT_LEVEL} AND fairness_key=?)",
        "SEARCH fair_key USING PRIMARY KEY (queue=? AND job_type=? AND fairness_key=?)",
    ],
    "fair_level": [
        "SEARCH job USING COVERING INDEX job_fair (queue=? AND job_type=? AND parked=? AND priority<?)",
        "SEARCH job USING INDEX job_ready (queue=? AND job_type=? AND parked=? AND priority<?)",
    ],
    "fire": ["SEARCH schedule USING PRIMARY KEY (name=?)"],
    "get": [BY_ID],
    "held_by": ["SCAN job USING INDEX job_lease"],
    "insert": [],
    "insert_extras": [BY_ID],
    "insert_reused": [BY_ID],
    "joinable": ["SEARCH job USING INDEX job_content (content_hash=? AND job_type=? AND completed_at=?)"],
    "key_ahead": [
        f"SEARCH job USING INDEX job_parked {OF_LANE}",
        f"SEARCH job USING COVERING INDEX job_key ({KEY_LANE} AND priority>?)",
    ],
    "key_in_sight": [f"SEARCH job USING COVERING INDEX job_key ({KEY_LANE})"],
    "key_running": ["SEARCH job USING COVERING INDEX job_key (concurrency_key=? AND status=?)"],
    "keys": ["SCAN api_key"],
    "keys_named": ["SEARCH api_key USING PRIMARY KEY (key_id=?)"],
    "keys_of": [BY_ID],
    "meet_edge": ["SEARCH edge USING PRIMARY KEY (parent_id=? AND child_id=?)"],
    "next_due": ["SEARCH job USING INDEX job_due"],
    "note": [BY_ID],
    "outcomes_of": [
        "SEARCH e USING INDEX edge_child (child_id=?)",
        "SEARCH p USING INDEX sqlite_autoindex_job_1 (job_id=?) LEFT-JOIN",
        "SEARCH a USING PRIMARY KEY (job_id=?) LEFT-JOIN",
    ],
    "park": [BY_ROWID],
    "parked_keys": [
        "SEARCH job USING INDEX job_parked (concurrency_key>?)",
        "SEARCH job USING INDEX job_parked (concurrency_key=?)",
    ],
    "parked_of": [
        "SEARCH job USING INDEX job_parked (concurrency_key=?)",
        "SEARCH job USING INDEX job_parked (concurrency_key=? AND queue>?)",
        "SEARCH next USING INTEGER PRIMARY KEY (rowid=?)",
    ],
    "pending_in": [
        "SEARCH job USING INDEX job_ready (queue=?)",
        "SEARCH job USING COVERING INDEX job_fair (queue=?)",
    ],
    "plain_head": [f"SEARCH job USING INDEX job_ready {AT_LEVEL})"],
    "promote": [BY_ROWID, "SEARCH job USING INDEX job_due (scheduled_for<?)"],
    "rate_ahead": [
        f"SEARCH job USING COVERING INDEX job_rate_parked ({RATE_LANE})",
        f"SEARCH job USING INDEX job_rate ({RATE_LANE} AND priority>?)",
    ],
    "rate_due": [
        "SEARCH rate USING COVERING INDEX rate_due (due_at<?)",
        "SEARCH rate USING COVERING INDEX rate_set (set_at>?)",
    ],
    "rate_in_sight": [f"SEARCH job USING INDEX job_rate ({RATE_LANE})"],
    "rate_lanes": [
        f"SEARCH job USING COVERING INDEX job_rate_parked ({OF_RATE})",
        f"SEARCH job USING COVERING INDEX job_rate_parked ({OF_RATE} AND queue>?)",
        "SEARCH next USING INTEGER PRIMARY KEY (rowid=?)",
    ],
    "rate_save": [],
    "rate_unpark": [
        BY_ROWID,
        f"SEARCH job USING COVERING INDEX job_rate_parked ({RATE_LANE})",
        f"SEARCH job USING INDEX job_rate ({RATE_LANE})",
    ],
    "record_step": [BY_ID],
    "release_child": [BY_ID],
    "release_parent": [BY_ID],
    "retirable": [
        "SEARCH job USING INTEGER PRIMARY KEY (rowid>?)",
        "SEARCH member USING COVERING INDEX job_root (root_job_id=?)",
    ],
    "retire": [BY_ROWID],
    "retire_standing": [
        BY_ROWID,
        "SEARCH member USING COVERING INDEX job_root (root_job_id=?)",
        "SEARCH top USING COVERING INDEX sqlite_autoindex_job_1 (job_id=?)",
        "SEARCH release_due USING PRIMARY KEY (parent_id=?)",
    ],
    "reusable": [
        "SEARCH d USING INDEX job_content (content_hash=? AND job_type=? AND completed_at>?)",
        "SEARCH o USING INDEX sqlite_autoindex_job_1 (job_id=?)",
        "SEARCH a USING PRIMARY KEY (job_id=?)",
    ],
    "rows_add_table": [BY_ID],
    "rows_holder": [BY_ID],
    "rows_latest": ["SEARCH job USING INDEX job_latest (subject=? AND job_type=?)"],
    "rows_source": [BY_ID, "SEARCH donor USING INDEX sqlite_autoindex_job_1 (job_id=?) LEFT-JOIN"],
    "save_key": [],
    "save_schedule": [],
    "staged_stale": [
        "SEARCH staged USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH d USING PRIMARY KEY (job_id=? AND attempt=?)",
        "SEARCH j USING INDEX sqlite_autoindex_job_1 (job_id=?)",
    ],
    "standing": [BY_ID],
    "status": [BY_ID, "SEARCH archive USING PRIMARY KEY (job_id=?)"],
    "sum_counters": ["SEARCH counter USING PRIMARY KEY (minute>? AND minute<?)"],
    "totals": ["SCAN counter_sum", "SEARCH counter USING PRIMARY KEY (minute>?)"],
    "tree_members": [BY_ID, "SEARCH job USING INDEX job_root (root_job_id=?)"],
    "unmeet": [
        "SEARCH edge USING INDEX edge_child (child_id=?)",
        "SEARCH p USING INDEX sqlite_autoindex_job_1 (job_id=?)",
    ],
    "unmet_edges": [
        "SEARCH e USING COVERING INDEX edge_unmet (parent_id=?)",
        "SEARCH c USING INDEX sqlite_autoindex_job_1 (job_id=?)",
    ],
    "unpark": [
        BY_ROWID,
        f"SEARCH job USING INDEX job_parked {OF_LANE}",
        f"SEARCH job USING COVERING INDEX job_key ({KEY_LANE})",
    ],
}
FIND_PLANS = {
    "subject": ["SEARCH job USING INDEX job_subject (subject=?)"],
    "content_hash": ["SEARCH job USING INDEX job_content (content_hash=?)"],
    "parent": ["SEARCH job USING INDEX job_parent (parent_job_id=?)"],
    "root": ["SEARCH job USING INDEX job_root (root_job_id=?)"],
    "worker": ["SCAN job USING INDEX job_lease"],
    "processing": ["SCAN job USING INDEX job_lease"],
    "pending": [BY_ROWID, "SCAN job USING INDEX job_ready", "SCAN job USING COVERING INDEX job_fair"],
    "concurrency_key": ["SEARCH job USING INDEX job_key (concurrency_key=?)"],
    "holders": ["SEARCH job USING INDEX job_key (concurrency_key=? AND status=?)"],
    "later": ["SEARCH job USING INDEX job_later (status=?)"],
    "ended_badly": ["SEARCH job USING INDEX job_ended_badly (status=?)"],
    "arrival": ["SCAN job"],
}

# Statements in the code: too short for a file, and served all the same.
SHORT = {
    "old entries": (
        access.DROP,
        ["SEARCH audit USING PRIMARY KEY (entry_id=?)", "SEARCH audit USING PRIMARY KEY (entry_id<?)"],
    ),
    "first minute": (access._OLDEST, ["SEARCH counter USING PRIMARY KEY (minute>?)"]),
    "export": (transfer._JOBS, ["SEARCH job USING INTEGER PRIMARY KEY (rowid>?)"]),
    "edges": (transfer._EDGES, ["SEARCH edge USING INDEX edge_child (child_id=?)"]),
    "bucket": (admission._BUCKET, [f"SEARCH rate USING PRIMARY KEY ({OF_RATE})"]),
    "settled": (admission._SETTLED, [f"SEARCH rate USING PRIMARY KEY ({OF_RATE})"]),
    "left": (admission._LEFT, ["SEARCH rate USING PRIMARY KEY (rate_key=?)"]),
    "keys of": (admission._KEYS_OF, [BY_ID]),
    "rate of": (admission._RATE_OF, [BY_ID]),
    "forget": (admission._FORGET, ["SEARCH rate USING INDEX rate_full (full_at<?)"]),
    "next": (admission._NEXT, ["SEARCH rate USING COVERING INDEX rate_due (due_at<?)"]),
    "jumped": (admission._JUMPED, ["SEARCH rate USING COVERING INDEX rate_set (set_at>?)"]),
    "position": (
        admission._POSITION,
        ["SEARCH fair_key USING PRIMARY KEY (queue=? AND job_type=? AND fairness_key=?)"],
    ),
    "lane": (admission._LANE, ["SEARCH fair_lane USING PRIMARY KEY (queue=? AND job_type=?)"]),
    "place": (read._PLACE, [BY_ID]),
    "root": (insert.ROOT, [BY_ID]),
    "took": (release.TOOK, [BY_ID]),
    "staged": (settle._COUNT, [STAGED]),
    "staged beyond": (settle._DROP_FROM, [STAGED.replace("<", ">").replace("COVERING ", "")]),
    "next part": (settle._NEXT, [STAGED.replace(" AND part<?", "").replace("COVERING ", "")]),
}

# Partial indexes over few rows, which are walked from end to end; and what counts all there is, on purpose.
WALKS = {
    "anyone_waits": ["SCAN edge USING COVERING INDEX edge_unmet"],
    "claimed_before": ["SCAN job USING INDEX job_lease"],
    "counts": [step for step in PLANS["counts"] if step.startswith("SCAN")],
    "depths": [step for step in PLANS["depths"] if step.startswith("SCAN")],
    "held_by": ["SCAN job USING INDEX job_lease"],
    "keys": ["SCAN api_key"],
    "totals": ["SCAN counter_sum"],
}
# Sorts of a handful of rows: five errors, the keys of a batch, groups of errors or of active jobs, keys that are due,
# the trees of a batch, those who may be let in, the states of what a job depends on, the kinds that are counted.
SORTS = {
    "apply", "dead", "depths", "keys_of", "outcomes_of", "rate_due", "rate_unpark", "retire_standing", "sum_counters",
    "totals", "unpark",
}  # fmt: skip
TABLES = (
    "job",
    "edge",
    "step",
    "archive",
    "counter",
    "counter_sum",
    "api_key",
    "audit",
    "rate",
    "schedule",
    "fair_key",
    "fair_lane",
    "queue",
    "dedup",
    "release_due",
    "staged",
    "unpack_due",
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = Path(tmp_path_factory.mktemp("plans")) / "jobs.db"
    connection.create(path)
    opened = connection.connect(path)
    connection.migrate(opened, path)
    yield opened
    opened.close()


def plan_of(database: apsw.Connection, statement: str) -> list[str]:
    return [str(row[3]) for row in database.execute("EXPLAIN QUERY PLAN " + statement, _Nulls())]


class _Nulls(dict[str, None]):
    """Bindings for any statement: everything is NULL."""

    def __missing__(self, key: str) -> None:
        return None


def statements() -> list[str]:
    return sorted(connection.STATEMENTS)


def test_every_statement_has_a_plan_here_and_every_plan_a_statement() -> None:
    assert statements() == sorted(PLANS)


@pytest.mark.parametrize("name", statements())
def test_a_statement_goes_through_its_index(database: apsw.Connection, name: str) -> None:
    plan = plan_of(database, load(name))

    for step in PLANS[name]:
        assert step in plan


@pytest.mark.parametrize("name", statements())
def test_no_statement_walks_the_table(database: apsw.Connection, name: str) -> None:
    walks = [step for step in plan_of(database, load(name)) if _walks(step)]

    assert walks == WALKS.get(name, [])


def _walks(step: str) -> bool:
    words = step.split()
    return words[0] == "SCAN" and words[1] in TABLES


@pytest.mark.parametrize("name", SHORT)
def test_a_short_statement_goes_through_its_index_too(database: apsw.Connection, name: str) -> None:
    statement, plan = SHORT[name]

    found = plan_of(database, statement.replace("?", "NULL"))

    assert [step for step in found if step.split()[1] in TABLES] == plan


@pytest.mark.parametrize("name", statements())
def test_no_statement_sorts_what_an_index_could_give_in_order(database: apsw.Connection, name: str) -> None:
    sorts = [step for step in plan_of(database, load(name)) if "TEMP B-TREE" in step]

    assert bool(sorts) == (name in SORTS)


@pytest.mark.parametrize("name", statements())
def test_a_statement_says_what_it_promises_and_which_index_serves_it(name: str) -> None:
    header = "\n".join(itertools.takewhile(lambda line: line.startswith("--"), load(name).splitlines()))

    assert header.startswith("-- ")
    for index in _indexes(PLANS[name]):
        assert index in header


def _indexes(plan: list[str]) -> set[str]:
    """Those that are named in a plan; a key of a table goes without saying."""
    found = {step.partition("INDEX ")[2].split()[0] for step in plan if "USING INDEX" in step or "COVERING" in step}
    return {index for index in found if not index.startswith("sqlite_autoindex")}


@pytest.mark.parametrize(("lead", "order"), read.FIND)
def test_a_search_goes_through_the_index_of_its_leading_qualifier(
    database: apsw.Connection, lead: str, order: str
) -> None:
    steps = [step for step in plan_of(database, read.FIND[lead, order]) if " job " in f"{step} "]

    assert steps == FIND_PLANS[lead]


@pytest.mark.parametrize("lead", ["subject", "root", "pending"])
def test_a_search_by_order_of_arrival_sorts_nothing(database: apsw.Connection, lead: str) -> None:
    assert not [step for step in plan_of(database, read.FIND[lead, "created"]) if "TEMP B-TREE" in step]


@pytest.mark.parametrize(
    ("lead", "place"),
    [
        ("later", "INDEX job_later (status=?"),
        ("ended_badly", "INDEX job_ended_badly (status=?"),
        ("arrival", "INTEGER PRIMARY KEY ("),
    ],
)
def test_a_search_that_nothing_narrows_looks_at_a_window(database: apsw.Connection, lead: str, place: str) -> None:
    for statements, step in (
        (read.WINDOW_OF, f"SEARCH job USING {place} AND rowid>? AND rowid<?)"),
        (read.NEWEST, f"SEARCH job USING {place} AND rowid<?)"),
    ):
        plan = plan_of(database, statements[lead])
        wanted = step.replace("( AND ", "(")
        assert [each.replace("COVERING ", "") for each in plan if " job " in f"{each} "] == [wanted]
        assert not [each for each in plan if "TEMP B-TREE" in each]


def test_a_page_of_children_goes_through_their_index_in_its_order(database: apsw.Connection) -> None:
    assert plan_of(database, settle.CHILDREN) == ["SEARCH job USING INDEX job_parent (parent_job_id=? AND job_id>?)"]
