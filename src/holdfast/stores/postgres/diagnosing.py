"""What a PostgreSQL server can tell about the health of the queue on it."""

from __future__ import annotations

from typing import Any

from holdfast.clock import MICROS, Instant
from holdfast.store.types import Finding
from holdfast.stores.postgres import migrating
from holdfast.stores.postgres.tx import Tx

CLOCK_SECONDS_WARN = 2.0
DEAD_SHARE_WARN = 0.5  # of the live rows, …
DEAD_ROWS_WARN = 50_000  # … and at least so many: fewer cost a claim nothing
TRANSACTION_SECONDS_WARN = 300.0
CONNECTIONS_SHARE_WARN = 0.9

_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
_TIME_LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


async def diagnose(tx: Tx, now: Instant) -> list[Finding]:
    names = ["server_version", "max_connections", *_DURABLE, *_TIME_LIMITS]
    settings = dict(
        await tx.connection.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY ($1::text[])", names)
    )
    return [
        Finding("engine", "ok", f"PostgreSQL {settings['server_version']}"),
        _durability(settings),
        await _time_limits(tx, settings),
        await _schema(tx),
        await _clock(tx, now),
        await _dead_rows(tx),
        await _oldest_transaction(tx),
        await _connections(tx, int(settings["max_connections"])),
    ]


def _durability(settings: dict[str, str]) -> Finding:
    wrong = [f"{name}={settings[name]}" for name in _DURABLE if settings[name] == "off"]
    if wrong:
        return Finding("durability", "bad", ", ".join(wrong), "set it to on: a crash would lose acknowledged jobs")
    return Finding("durability", "ok", ", ".join(f"{name}={settings[name]}" for name in _DURABLE))


async def _time_limits(tx: Tx, settings: dict[str, str]) -> Finding:
    """Each session sets its own, but not through a pooler in transaction mode: there they are the role's."""
    missing = [name for name in _TIME_LIMITS if settings[name] == "0"]
    if missing:
        role = await tx.connection.fetchval("SELECT current_user")
        return Finding(
            "time limits",
            "warn",
            f"none for {', '.join(missing)}: what hangs on the server holds its locks",
            " ".join(f"ALTER ROLE {role} SET {name} = '{_advised(name)}';" for name in missing),
        )
    limits = (f"{name} {int(settings[name]) / 1000:g} s" for name in _TIME_LIMITS)
    return Finding("time limits", "ok", ", ".join(limits))


def _advised(name: str) -> str:
    return {"statement_timeout": "15s", "lock_timeout": "5s"}.get(name, "30s")


async def _schema(tx: Tx) -> Finding:
    newer = migrating.newer(await migrating.applied(tx.connection, tx.sql))
    last = migrating.last()
    if newer:
        return Finding("schema", "ok", f"{tx.sql.schema} is at {newer[-1]['name']}, newer than {last} of this release")
    return Finding("schema", "ok", f"{tx.sql.schema} is at {last}")


async def _clock(tx: Tx, now: Instant) -> Finding:
    off = (now - int(await tx.value("now"))) / MICROS
    if abs(off) > CLOCK_SECONDS_WARN:
        return Finding(
            "server clock",
            "warn",
            f"this machine is {off:+.1f} s off the server",
            "set both by NTP: jobs for later start by the server's",
        )
    return Finding("server clock", "ok", f"{off:+.3f} s from here")


async def _dead_rows(tx: Tx) -> Finding:
    row: Any = await tx.connection.fetchrow(
        "SELECT n_live_tup, n_dead_tup,"
        " extract(epoch FROM clock_timestamp() - greatest(last_autovacuum, last_vacuum))::double precision"
        " FROM pg_stat_all_tables WHERE relid = $1::regclass",
        tx.sql.named("holdfast.job"),
    )
    live, dead, age = row or (0, 0, None)
    vacuumed = "never vacuumed" if age is None else f"last vacuumed {age / 60:,.0f} min ago"
    says = f"{dead:,} beside {live:,} live ones in the job table, {vacuumed}"
    if dead > DEAD_ROWS_WARN and dead > DEAD_SHARE_WARN * live:
        return Finding(
            "dead rows",
            "warn",
            says,
            f'VACUUM "{tx.sql.schema}".job, and see that autovacuum is on and no old transaction holds it up',
        )
    return Finding("dead rows", "ok", says)


async def _oldest_transaction(tx: Tx) -> Finding:
    """Of those that hold vacuum back in this database: sessions, and transactions that someone prepared and left."""
    row: Any = await tx.connection.fetchrow(
        "SELECT extract(epoch FROM clock_timestamp() - since)::double precision, pid, application, state, name"
        " FROM (SELECT xact_start AS since, pid, application_name AS application, state, usename::text AS name"
        " FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
        " AND backend_type IN ('client backend', 'walsender') AND (datname = current_database() OR datname IS NULL)"
        " UNION ALL SELECT prepared, NULL, NULL, NULL, gid FROM pg_prepared_xacts WHERE database = current_database())"
        " AS held ORDER BY since LIMIT 1"
    )
    unseen = await tx.connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type IS NULL AND datname = current_database()"
    )
    note = f"; {unseen} sessions of other roles are hidden (GRANT pg_read_all_stats shows them)" if unseen else ""
    if row is None:
        return Finding("oldest transaction", "ok", f"none is open{note}")
    seconds, pid, application, state, name = row
    holder = (
        f"prepared transaction {name}" if pid is None else f"pid {pid} ({application or 'no name'}, {name}, {state})"
    )
    if seconds <= TRANSACTION_SECONDS_WARN:
        return Finding("oldest transaction", "ok", f"{seconds:,.0f} s, {holder}{note}")
    return Finding(
        "oldest transaction",
        "warn",
        f"{seconds:,.0f} s, {holder}: vacuum removes nothing that was deleted since{note}",
        f"ROLLBACK PREPARED '{name}'"
        if pid is None
        else f"SELECT pg_terminate_backend({pid}), and find out why it stays open",
    )


async def _connections(tx: Tx, most: int) -> Finding:
    used, ours = await tx.connection.fetchrow(
        "SELECT count(*), count(*) FILTER (WHERE application_name = 'holdfast') FROM pg_stat_activity"
        " WHERE datid IS NOT NULL"
    ) or (0, 0)
    says = f"{used} of {most} used, {ours} by Holdfast"
    if used >= CONNECTIONS_SHARE_WARN * most:
        return Finding("connections", "warn", says, "lower ?pool=, put PgBouncer in front, or raise max_connections")
    return Finding("connections", "ok", says)
