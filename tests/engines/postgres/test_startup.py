"""Migrations: whoever starts first makes the schema, and a release that cannot work with one says so."""

import asyncio
import secrets

import asyncpg
import pytest

from backstay.engines.postgres import maintenance
from backstay.engines.postgres.connection import migrations
from backstay.engines.postgres.store import PostgresStore
from backstay.errors import SchemaMismatch, StoreUnsafe
from tests.support.servers.postgres import Postgres

STARTERS = 20


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url(schema=f"start_{secrets.token_hex(3)}", pool="1")


async def _migrated_by(url: str, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """As if a later release with one migration more had been here."""
    later = [*migrations(), (9999, "9999_later", text)]
    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "migrations", lambda: later)
        assert (await PostgresStore(url).migrate())[-1] == "9999_later"


async def test_twenty_who_start_at_once_find_one_schema(url: str, postgres: Postgres) -> None:
    stores = [PostgresStore(url) for _ in range(STARTERS)]

    await asyncio.gather(*(store.open() for store in stores))

    assert [sum((await store.counts()).values()) for store in stores] == [0] * STARTERS
    assert await stores[0].migrate() == []
    for store in stores:
        await store.close()
    connection = await asyncpg.connect(postgres.url())
    done = await connection.fetch(f'SELECT name FROM "{stores[0].address.schema}".migration ORDER BY number')
    await connection.close()
    assert [row[0] for row in done] == [name for _, name, _ in migrations()]


async def test_of_twenty_who_migrate_at_once_one_does(url: str) -> None:
    done = await asyncio.gather(*(PostgresStore(url).migrate() for _ in range(STARTERS)))

    assert sorted(done, key=len)[:-1] == [[]] * (STARTERS - 1)
    assert max(done, key=len) == [name for _, name, _ in migrations()]


async def test_a_migration_marked_breaking_refuses_an_older_release(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await _migrated_by(url, monkeypatch, "-- Another order of things.\n-- breaking\nSELECT 1")

    with pytest.raises(SchemaMismatch, match=r"9999_later.*upgrade"):
        await PostgresStore(url).open()


async def test_a_later_migration_that_breaks_nothing_lets_an_older_release_work(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _migrated_by(url, monkeypatch, "-- Nothing is breaking here.\nSELECT 1")

    store = PostgresStore(url)
    await store.open()
    assert sum((await store.counts()).values()) == 0
    await store.close()


async def test_a_schema_that_is_open_stays_open_while_it_is_migrated(url: str) -> None:
    store = PostgresStore(url)
    await store.open()

    assert await store.migrate() == []

    assert sum((await store.counts()).values()) == 0
    await store.close()


@pytest.mark.parametrize(
    "theirs",
    ["CREATE TABLE {}.job (id int)", "CREATE VIEW {}.worker AS SELECT 1", "CREATE TABLE {}.migration (version text)"],
    ids=["job", "view", "migration"],
)
async def test_a_schema_with_tables_of_another_program_is_refused_and_left_as_it_was(
    url: str, postgres: Postgres, theirs: str
) -> None:
    schema = PostgresStore(url).address.schema
    connection = await asyncpg.connect(postgres.url())
    await connection.execute(f"CREATE SCHEMA {schema}")
    await connection.execute(theirs.format(schema))
    everything = f"SELECT relname FROM pg_class WHERE relnamespace = '{schema}'::regnamespace"
    before = await connection.fetch(everything)

    for way_in in (PostgresStore.open, PostgresStore.migrate, PostgresStore.erase, PostgresStore.exists):
        with pytest.raises(StoreUnsafe, match=r"tables of another program \(\w+\).*schema="):
            await way_in(PostgresStore(url))

    assert await connection.fetch(everything) == before
    await connection.close()


async def test_other_tables_may_be_in_the_same_schema(url: str, postgres: Postgres) -> None:
    schema = PostgresStore(url).address.schema
    connection = await asyncpg.connect(postgres.url())
    await connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.customer (id int)")
    await connection.close()

    assert await PostgresStore(url).migrate()


async def test_every_table_of_a_queue_is_known_as_its_own(url: str, postgres: Postgres) -> None:
    await PostgresStore(url).migrate()
    schema = PostgresStore(url).address.schema
    connection = await asyncpg.connect(postgres.url())
    made = await connection.fetch(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")
    await connection.close()

    assert sorted(row[0] for row in made) == maintenance.own_tables()
