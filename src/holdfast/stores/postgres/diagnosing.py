"""What a PostgreSQL server can tell about the health of the queue on it."""

from __future__ import annotations

from typing import Any

from holdfast.clock import MICROS, Instant
from holdfast.store.types import Finding
from holdfast.stores.postgres.tx import Tx

CLOCK_SECONDS_WARN = 2.0
DEAD_SHARE_WARN = 0.5
DEAD_ROWS_WARN = 50_000
TRANSACTION_SECONDS_WARN = 300.0


async def diagnose(tx: Tx, now: Instant) -> list[Finding]:
    settings = dict(
        await tx.connection.fetch(
            "SELECT name, setting FROM pg_settings WHERE name IN"
            " ('server_version', 'fsync', 'full_page_writes', 'synchronous_commit', 'max_connections')"
        )
    )
    return [
        Finding("engine", "ok", f"PostgreSQL {settings['server_version']}"),
        _durability(settings),
        await _clock(tx, now),
        await _dead_rows(tx),
        await _oldest_transaction(tx),
        await _connections(tx, int(settings["max_connections"])),
    ]


def _durability(settings: dict[str, str]) -> Finding:
    wrong = [
        f"{name}={settings[name]}"
        for name in ("fsync", "full_page_writes", "synchronous_commit")
        if settings[name] == "off"
    ]
    if wrong:
        return Finding("durability", "bad", ", ".join(wrong), "set them to on: a crash loses acknowledged jobs")
    return Finding("durability", "ok", "fsync, full_page_writes and synchronous_commit are on")


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
        "SELECT n_live_tup, n_dead_tup, last_autovacuum FROM pg_stat_all_tables WHERE relid = $1::regclass",
        tx.sql.named("holdfast.job"),
    )
    live, dead = (row[0], row[1]) if row else (0, 0)
    if dead > DEAD_ROWS_WARN and dead > DEAD_SHARE_WARN * live:
        return Finding(
            "dead rows",
            "warn",
            f"{dead:,} beside {live:,} live ones",
            "see that autovacuum runs and nothing holds it up",
        )
    return Finding("dead rows", "ok", f"{dead:,} beside {live:,} live ones")


async def _oldest_transaction(tx: Tx) -> Finding:
    seconds = await tx.connection.fetchval(
        "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::double precision"
        " FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
    )
    if seconds > TRANSACTION_SECONDS_WARN:
        return Finding(
            "oldest transaction",
            "warn",
            f"{seconds:,.0f} s: vacuum cannot clean behind it",
            "find and end it (pg_stat_activity)",
        )
    return Finding("oldest transaction", "ok", f"{seconds:,.0f} s")


async def _connections(tx: Tx, most: int) -> Finding:
    used = await tx.connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
    if used > 0.9 * most:
        return Finding(
            "connections", "warn", f"{used} of {most} used", "lower ?pool=, or put a connection pooler in front"
        )
    return Finding("connections", "ok", f"{used} of {most} used")
