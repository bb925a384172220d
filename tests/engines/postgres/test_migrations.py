"""A schema that is made by hand, and roles that may not make one."""

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from backstay import Backstay, Context
from backstay.engines.postgres import maintenance
from backstay.engines.postgres.connection import migrations
from backstay.engines.postgres.store import PostgresStore
from backstay.errors import ConfigurationError, SchemaMismatch, StoreError
from tests.support.servers.postgres import Postgres, installed_binaries

# As docs/howto/postgresql.md says.
RIGHTS = """
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
"""


@pytest.fixture
def schema() -> str:
    return f"by_hand_{secrets.token_hex(3)}"


@pytest.fixture
def url(postgres: Postgres, schema: str) -> str:
    return postgres.url(schema=schema)


@pytest.fixture
async def owner(postgres: Postgres) -> AsyncIterator[Any]:
    """Who may do everything."""
    connection = await asyncpg.connect(postgres.url())
    yield connection
    await connection.close()


@pytest.fixture
async def role(owner: Any, schema: str) -> str:
    """A login that may do nothing yet."""
    await owner.execute(f"CREATE ROLE {schema} LOGIN")
    return schema


def as_role(url: str, role: str) -> str:
    return url.replace("postgres@", f"{role}@")


async def printed(url: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "backstay", "--url", url, "migrate", "--sql"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def an_app(url: str) -> Backstay:
    app = Backstay(url)

    @app.job("report", global_concurrency=2)
    async def report(payload: Any, ctx: Context) -> str:
        ctx.log.info("writing it")
        await ctx.artifact("report.txt", b"kept")
        return "x" * 100_000

    return app


async def test_a_schema_applied_by_hand_is_accepted_as_it_is(url: str, owner: Any, schema: str) -> None:
    await owner.execute(await printed(url))

    assert await PostgresStore(url).migrate() == []
    done = await owner.fetch(f"SELECT name, breaking FROM {schema}.migration ORDER BY number")
    assert [tuple(row) for row in done] == [(name, maintenance.is_breaking(text)) for _, name, text in migrations()]


async def test_the_script_makes_what_migrating_makes(url: str, owner: Any, schema: str, postgres: Postgres) -> None:
    await owner.execute(await printed(url))
    await PostgresStore(postgres.url(schema=f"{schema}_2")).migrate()

    columns = "table_name, column_name, data_type, is_nullable, column_default IS NULL, ordinal_position"
    shapes = [
        await owner.fetch(
            f"SELECT {columns} FROM information_schema.columns WHERE table_schema = $1 ORDER BY 1, 2", each
        )
        for each in (schema, f"{schema}_2")
    ]
    functions = [
        await owner.fetch(
            "SELECT proname, replace(prosrc, $1, 'backstay') FROM pg_proc WHERE pronamespace = $2::regnamespace"
            " ORDER BY proname, prosrc",
            each,
            each,
        )
        for each in (schema, f"{schema}_2")
    ]
    assert len(shapes[0]) > 100 and shapes[0] == shapes[1]
    assert functions[0] == functions[1]


async def test_the_script_of_a_later_release_adds_what_is_missing(
    url: str, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(maintenance, "migrations", lambda: migrations()[:2])
        await owner.execute(PostgresStore(url).migration_sql())
    async with an_app(url) as app:  # whose release has more of them
        job = await app.submit("report")

    script = PostgresStore(url).migration_sql()
    await owner.execute(script)
    await owner.execute(script)

    async with an_app(url) as app:
        assert (await app.get(job.job_id)).status == "pending"


async def test_the_script_prints_nothing_and_says_nothing_when_it_is_run_again(url: str, owner: Any) -> None:
    script = PostgresStore(url).migration_sql()
    heard: list[Any] = []
    owner.add_log_listener(lambda _, message: heard.append(message))

    await owner.execute(script)
    await owner.execute(script)

    assert heard == []
    assert "\nSELECT pg_advisory" not in script


async def test_a_role_that_may_not_make_the_schema_is_told_which_command_helps(url: str, role: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"is not allowed to create or change.*backstay migrate --sql"):
        await PostgresStore(as_role(url, role)).open()
    with pytest.raises(SchemaMismatch, match="backstay migrate --sql"):
        await PostgresStore(as_role(url, role)).migrate()


async def test_a_role_that_may_not_change_the_schema_is_told_when_there_is_nothing_to_do(
    url: str, role: str, owner: Any, schema: str
) -> None:
    await owner.execute(await printed(url))
    await owner.execute(RIGHTS.format(schema=schema, role=role))

    assert await PostgresStore(as_role(url, role)).migrate() == []


async def test_a_role_without_rights_is_told_which_it_needs(url: str, role: str, owner: Any) -> None:
    await owner.execute(await printed(url))

    with pytest.raises(StoreError, match="USAGE on the schema and SELECT, INSERT, UPDATE, DELETE on all its tables"):
        await PostgresStore(as_role(url, role)).open()


async def test_a_role_that_may_use_the_tables_needs_no_other_right_to_submit_and_work(
    url: str, role: str, owner: Any, schema: str
) -> None:
    await owner.execute(await printed(url))
    await owner.execute(RIGHTS.format(schema=schema, role=role))

    async with an_app(as_role(url, role)) as app, app.worker():
        job = await app.submit("report")
        assert await job.result(timeout=20) == "x" * 100_000
        assert await app.artifact(job.job_id, "report.txt") == b"kept"
        assert await app.purge(older_than=0) == 1
        await app.schedule("often", "* * * * *", "report")
        assert {each.level for each in await app.check_up()} <= {"ok", "warn"}


async def test_a_role_that_owns_only_its_schema_makes_the_tables_itself(
    url: str, role: str, owner: Any, schema: str
) -> None:
    await owner.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {role}")

    assert await PostgresStore(as_role(url, role)).migrate() == [name for _, name, _ in migrations()]


async def test_a_role_without_rights_on_a_schema_that_is_there_is_told_so(url: str, role: str, owner: Any) -> None:
    await owner.execute(await printed(url))

    with pytest.raises(StoreError, match=r"permission denied.*grant"):
        await PostgresStore(as_role(url, role)).open()


async def test_an_older_server_takes_the_same_schema_and_runs_the_same_jobs() -> None:
    binaries = installed_binaries()
    if binaries is None:
        pytest.skip("POSTGRESQL 15 IS NOT TESTED: it is not installed")
    with Postgres(binaries) as older:
        connection = await asyncpg.connect(older.url())
        await connection.execute(await printed(older.url()))
        async with an_app(older.url()) as app, app.worker():
            job = await app.submit("report")
            assert await job.result(timeout=20) == "x" * 100_000
            from_sql = await connection.fetchval("SELECT backstay.submit('report')::text")
            assert await app.result(from_sql, timeout=20) == "x" * 100_000
            assert {each.level for each in await app.store.diagnose(app.clock.now())} == {"ok"}
        await connection.close()


def test_a_file_has_no_script() -> None:
    with pytest.raises(ConfigurationError, match="migrated when it is opened"):
        Backstay("sqlite:///jobs.db").migration_sql()
