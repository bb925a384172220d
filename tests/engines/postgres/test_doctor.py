"""The check-up on PostgreSQL finds what is wrong with a server, and says what to do."""

import re
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from backstay import Backstay, Finding
from backstay.clock import MICROS, SystemClock
from backstay.engines.postgres import maintenance
from backstay.engines.postgres.connection import migrations
from backstay.engines.postgres.store import PostgresStore
from backstay.testing.conformance.factories import NOW, new_job
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres

CONNECTIONS = 20


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One of its own: its settings are changed."""
    settings = {"max_connections": str(CONNECTIONS), "max_prepared_transactions": "2", "autovacuum": "off"}
    with Postgres(settings=settings) as server:
        yield server


@pytest.fixture
def url(server: Postgres) -> str:
    return server.url(schema=f"doctor_{secrets.token_hex(3)}", pool="2")


@pytest.fixture
async def app(url: str) -> AsyncIterator[Backstay]:
    async with Backstay(url) as app:
        yield app


@pytest.fixture
async def owner(server: Postgres) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server.url(), server_settings={"application_name": "an owner"})
    yield connection
    await connection.close()


def schema_of(url: str) -> str:
    return url.partition("schema=")[2].partition("&")[0]


async def finding(app: Backstay, check: str) -> Finding:
    return next(each for each in await app.store.diagnose(app.clock.now()) if each.check == check)


async def found(app: Backstay, check: str, level: str) -> Finding:
    """Once the server's own statistics say so."""
    seen: list[Finding] = []

    async def is_so() -> bool:
        seen.append(await finding(app, check))
        return seen[-1].level == level

    await eventually(is_so)
    return seen[-1]


async def test_a_healthy_server_has_nothing_to_say(app: Backstay) -> None:
    findings = await app.store.diagnose(app.clock.now())

    assert {each.level for each in findings} == {"ok"}
    assert findings[0].says.startswith("PostgreSQL 18")
    assert all(each.advice == "" for each in findings)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
async def test_a_server_that_stopped_being_durable_is_bad(app: Backstay, owner: Any, setting: str) -> None:
    await owner.execute(f"ALTER SYSTEM SET {setting} = off")
    await owner.execute("SELECT pg_reload_conf()")
    try:
        bad = await found(app, "durability", "bad")
    finally:
        await owner.execute(f"ALTER SYSTEM RESET {setting}")
        await owner.execute("SELECT pg_reload_conf()")

    assert bad.says == f"{setting}=off"
    assert "on" in bad.advice
    await found(app, "durability", "ok")


async def test_a_clock_that_differs_from_the_servers_is_found(app: Backstay) -> None:
    findings = await app.store.diagnose(SystemClock().now() + 3600 * MICROS)

    off = next(each for each in findings if each.check == "server clock")
    [seconds] = re.findall(r"\+(\d+)", off.says)
    assert off.level == "warn" and 3600 - 60 < int(seconds) <= 3600 and "NTP" in off.advice


async def test_the_schema_says_where_it_is_and_if_a_later_release_was_there(
    app: Backstay, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await finding(app, "schema")).says.endswith(migrations()[-1][1])
    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "migrations", lambda: [*migrations(), (9999, "9999_later", "SELECT 1")])
        await PostgresStore(url).migrate()

    assert "9999_later, newer than" in (await finding(app, "schema")).says


async def test_rows_that_nobody_cleans_up_are_found(app: Backstay, owner: Any, url: str) -> None:
    schema = schema_of(url)
    await app.store.insert([new_job()], NOW)
    columns = await owner.fetchval(
        "SELECT string_agg(column_name, ', ') FROM information_schema.columns"
        " WHERE table_schema = $1 AND table_name = 'ready' AND column_name <> 'job_id'",
        schema,
    )
    await owner.execute(
        f"INSERT INTO {schema}.ready (job_id, {columns})"
        f" SELECT gen_random_uuid(), {columns} FROM {schema}.ready, generate_series(1, {maintenance.DEAD_ROWS_WARN})"
    )
    await owner.execute(f"UPDATE {schema}.ready SET awaited = true; SELECT pg_stat_force_next_flush()")

    async def all_are_counted() -> bool:  # the app's own session reports its row a little later
        return "50,001 next to 50,001" in (await found(app, "dead rows", "warn")).says

    await eventually(all_are_counted)
    dead = await found(app, "dead rows", "warn")
    assert "never vacuumed" in dead.says
    assert f'VACUUM "{schema}".ready' in dead.advice
    await owner.execute(f'VACUUM "{schema}".ready')
    assert "last vacuumed 0 min ago" in (await found(app, "dead rows", "ok")).says


async def test_a_transaction_that_stays_open_is_found_with_who_holds_it(
    app: Backstay, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "TRANSACTION_SECONDS_WARN", 0.0)
    pid = await owner.fetchval("SELECT pg_backend_pid()")
    await owner.execute("BEGIN")
    held = await finding(app, "oldest transaction")
    await owner.execute("ROLLBACK")

    assert held.level == "warn"
    assert f"pid {pid} (an owner, postgres, idle in transaction)" in held.says
    assert f"pg_terminate_backend({pid})" in held.advice


async def test_a_prepared_transaction_that_was_left_is_found(
    app: Backstay, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "TRANSACTION_SECONDS_WARN", 0.0)
    await owner.execute("BEGIN")
    await owner.execute("SELECT txid_current()")
    await owner.execute("PREPARE TRANSACTION 'left'")
    held = await finding(app, "oldest transaction")
    await owner.execute("ROLLBACK PREPARED 'left'")

    assert (held.level, held.advice) == ("warn", "ROLLBACK PREPARED 'left'")


async def test_a_role_that_may_not_see_others_says_that_it_does_not(
    url: str, app: Backstay, owner: Any, server: Postgres
) -> None:
    role = f"blind_{secrets.token_hex(3)}"
    schema = schema_of(url)
    await owner.execute(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    await owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")

    async with Backstay(url.replace("postgres@", f"{role}@")) as blind:
        seen = await finding(blind, "oldest transaction")

    assert "of other roles are hidden (GRANT pg_read_all_stats" in seen.says


async def test_a_server_that_runs_out_of_connections_is_found(app: Backstay, server: Postgres) -> None:
    others = [await asyncpg.connect(server.url()) for _ in range(CONNECTIONS - 3)]
    full = await finding(app, "connections")
    for each in others:
        await each.close()

    assert full.level == "warn"
    assert f"of {CONNECTIONS} used" in full.says
    assert "pool=" in full.advice
