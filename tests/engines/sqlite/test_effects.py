"""A handler's own statements change its own tables, never Backstay's, and hold the file only for so long."""

import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from backstay import Backstay, Context, JobFailed
from backstay.engines.sqlite import connection, effects
from backstay.errors import EffectFailed

CHANGES = (
    "INSERT INTO {0} DEFAULT VALUES",
    "UPDATE {0} SET {2} = 1",
    "DELETE FROM {0}",
    "delete from main.{1}",
    "DROP TABLE {0}",
    "ALTER TABLE {0} RENAME TO mine",
    "ALTER TABLE {0} ADD COLUMN mine",
    "CREATE INDEX mine ON {0} ({2})",
    "CREATE TRIGGER mine AFTER INSERT ON {0} BEGIN SELECT 1; END",
    "CREATE TEMP TRIGGER mine AFTER INSERT ON {0} BEGIN SELECT 1; END",
    "CREATE VIEW mine AS SELECT * FROM {0}",
    "CREATE TEMP VIEW mine AS SELECT * FROM {0}",
    "CREATE TEMP TABLE {0} (x)",
    "CREATE TABLE mine (x REFERENCES {0})",
    "CREATE TABLE mine (x, FOREIGN KEY (x) REFERENCES {1})",
    "CREATE TABLE mine (x REFERENCES {0}); ALTER TABLE mine RENAME TO other",
    "ALTER TABLE ledger ADD COLUMN mine REFERENCES {1}",
)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[apsw.Connection]:
    path = tmp_path / "jobs.db"
    connection.create(path)
    opened = connection.connect(path)
    connection.migrate(opened, path)
    opened.execute("INSERT INTO result_table VALUES ('points', '{}'); CREATE TABLE result_points (x)")
    opened.execute("CREATE TABLE ledger (who TEXT, amount INTEGER)")
    yield opened
    opened.close()


def run(file: apsw.Connection, *statements: str) -> None:
    """As a completion does: in its transaction."""
    file.execute("BEGIN IMMEDIATE")
    try:
        effects.run(file, "the-job", [(statement, ()) for statement in statements])
        file.execute("COMMIT")
    except BaseException:
        if file.in_transaction:
            file.execute("ROLLBACK")
        raise


def everything(file: apsw.Connection) -> list[tuple[object, ...]]:
    return sorted(file.execute("SELECT type, name, sql FROM sqlite_schema"), key=repr)


@pytest.mark.parametrize("statement", CHANGES)
def test_no_table_of_ours_is_changed_or_referred_to(file: apsw.Connection, statement: str) -> None:
    names = file.execute(
        "SELECT name, (SELECT name FROM pragma_table_info(m.name) LIMIT 1) FROM sqlite_schema AS m"
        " WHERE type = 'table' AND name <> 'ledger' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    before = everything(file)
    assert len(names) > 15

    for name, column in names:
        with pytest.raises(EffectFailed, match=r"belongs to Backstay|cannot be used in ctx\.transaction"):
            run(file, statement.format(name, str(name).upper(), column))

    assert everything(file) == before


def test_the_tables_of_ours_are_those_that_the_migrations_make(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    connection.create(path)
    opened = connection.connect(path)
    connection.migrate(opened, path)
    made = {str(name) for (name,) in opened.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    opened.close()

    assert made == effects.own_tables()
    assert {"job", "meta", "schedule", "queue"} <= made


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA foreign_keys = 0",
        "SELECT * FROM pragma_journal_mode('delete')",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "ANALYZE",
        "VACUUM",
        "COMMIT",
        "SELECT 1; COMMIT",
        "CREATE VIRTUAL TABLE mine USING fts5(x)",
        "CREATE TRIGGER mine AFTER INSERT ON ledger BEGIN DELETE FROM job; END",
        "DROP INDEX job_parent",
        "UPDATE sqlite_schema SET sql = ''",
    ],
)
def test_what_would_change_the_file_or_leave_the_transaction_is_refused(file: apsw.Connection, statement: str) -> None:
    before = everything(file)

    with pytest.raises(EffectFailed):
        run(file, "INSERT INTO ledger VALUES ('ann', 1)", statement)

    assert everything(file) == before
    assert file.execute("SELECT count(*) FROM ledger").get == 0
    assert file.pragma("foreign_keys") == 1


def test_a_trigger_from_elsewhere_that_reaches_into_our_tables_does_not_fire_in_a_job(file: apsw.Connection) -> None:
    file.execute("CREATE TRIGGER t AFTER INSERT ON ledger BEGIN DELETE FROM job; END")

    with pytest.raises(EffectFailed, match="job belongs to Backstay"):
        run(file, "INSERT INTO ledger VALUES ('ann', 1)")


def test_tables_of_ones_own_may_be_made_changed_and_dropped(file: apsw.Connection) -> None:
    run(
        file,
        "CREATE TABLE mine (x INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT)",
        "CREATE INDEX mine_job ON mine (job)",
        "ALTER TABLE mine ADD COLUMN who REFERENCES mine (x)",
        "INSERT INTO mine (job) SELECT count(*) FROM job",
        "UPDATE mine SET job = 'seven'",
        "CREATE TABLE other (x REFERENCES mine)",
        "DROP TABLE ledger",
    )

    assert file.execute("SELECT x, job FROM mine").fetchall() == [(1, "seven")]


@pytest.mark.parametrize("first", ["SELECT 1 UNION SELECT 2", "INSERT INTO ledger VALUES ('ann', 1) RETURNING amount"])
def test_every_statement_of_a_string_runs(file: apsw.Connection, first: str) -> None:
    run(file, f"{first}; INSERT INTO ledger VALUES ('bob', 2); -- and that is all")

    assert ("bob", 2) in file.execute("SELECT * FROM ledger").fetchall()


async def test_a_statement_without_end_is_ended_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.setattr(effects, "EFFECT_SECONDS_MAX", 0.1)

    @app.job("endless", max_attempts=1)
    async def endless(payload: None, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute(
                "CREATE TABLE mine AS WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n FROM n) SELECT 1 FROM n"
            )

    @app.job("good")
    async def good(payload: int) -> int:
        return payload

    async with app, app.worker():
        stuck = await endless.submit(None)
        others = [await good.submit(n) for n in range(5)]
        with pytest.raises(JobFailed, match=r"took longer than 0\.1 s"):
            await stuck.result(timeout=30)
        assert [await each.result(timeout=30) for each in others] == [0, 1, 2, 3, 4]


def test_time_is_given_to_each_job_anew(file: apsw.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    run(file, "INSERT INTO ledger VALUES ('ann', 1)")
    clock[0] += 100

    run(file, "INSERT INTO ledger VALUES ('bob', 2)")

    assert file.execute("SELECT count(*) FROM ledger").get == 2
