"""Whatever an engine keeps is carried along, or known to stay behind: a new column or table cannot be forgotten."""

from __future__ import annotations

import secrets
from pathlib import Path

import asyncpg
import pytest

from backstay.engines import places, sql_rows
from backstay.engines.postgres.store import PostgresStore
from backstay.engines.sqlite import connection
from tests.support.servers.postgres import Postgres

# The order of arrival is given anew.
COLUMNS_LEFT = {"seq", "arrival"}
# Workers, buckets and turns; what is under way, of which there is nothing; files, which have a way of their own;
# how far the sums go, which each of them says on its way; how many jobs there are of each kind and in each state, which
# is counted anew; submits that are not among the counters, of which there are none.
TABLES_LEFT = {
    "sqlite": {
        "tally", "worker", "former_worker", "rate", "fair_lane", "fair_key", "release_due", "staged", "unpack_due",
        "meta",
    },
    "postgres": {
        "tally", "arrived", "worker", "former_worker", "rate", "fair_lane", "fair_key", "release_due", "staged",
        "unpack_due", "join_due", "event_due", "file", "file_part", "migration", "move", "summed",
    },
}  # fmt: skip

Kept = tuple[set[str], set[str]]


@pytest.fixture
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    """The tables of an engine, and the columns of a job."""
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"
        connection.create(path)
        opened = connection.connect(path)
        connection.migrate(opened, path)
        tables = opened.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        columns = opened.execute("SELECT name FROM pragma_table_info('job')")
        found = ({str(row[0]) for row in tables.fetchall()}, {str(row[0]) for row in columns.fetchall()})
        opened.close()
        return found
    server: Postgres = request.getfixturevalue("postgres")
    schema = f"whole_{secrets.token_hex(3)}"
    await PostgresStore(server.url(schema=schema)).migrate()
    asked = await asyncpg.connect(server.url())
    rows = await asked.fetch(
        "SELECT c.table_name, c.column_name FROM information_schema.columns AS c"
        " JOIN information_schema.tables AS t USING (table_schema, table_name)"
        " WHERE table_schema = $1 AND table_type = 'BASE TABLE'",
        schema,
    )
    await asked.close()
    return {row[0] for row in rows}, {row[1] for row in rows if row[0] == "job"}


@pytest.mark.parametrize(("engine", "kept"), [("sqlite", "sqlite"), ("postgres", "postgres")], indirect=["kept"])
async def test_every_column_of_a_job_and_every_table_is_carried_or_known_to_stay(engine: str, kept: Kept) -> None:
    tables, columns = kept

    assert columns - COLUMNS_LEFT == set(places.FACTS)
    assert tables - TABLES_LEFT[engine] == set(sql_rows.PLACED_TABLES)


def test_a_restored_job_has_every_column_of_its_place_and_detail(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    connection.create(path)
    opened = connection.connect(path)
    connection.migrate(opened, path)

    def columns(table: str) -> set[str]:
        return {str(row[0]) for row in opened.execute("SELECT name FROM pragma_table_info(?)", (table,))} - {"seq"}

    for place in places.PLACES:
        assert columns(place) - {"fair"} == set(places.COLUMNS[place])
    assert columns("detail") == {*places.DETAIL, *places.KEPT, *places.CHILDREN}
    assert columns("event") == set(places.EVENT)
    opened.close()
