"""Maintenance verbs on PostgreSQL: promote, release, queues, schedules, migrations, diagnosis.

Migrations are numbered, forward only, one transaction each, one migrating process at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from backstay.clock import MICROS, Instant
from backstay.core import run_limits, sensitive
from backstay.core.records import (
    Declaration,
    Finding,
    Firing,
    JobType,
    LimitChange,
    LimitOf,
    LimitRow,
    Promoted,
    QueueChange,
    QueueRow,
    Schedule,
    Signal,
    Verdict,
)
from backstay.engines import sql_rows
from backstay.engines.postgres import access, admission, insert, settle, waits
from backstay.engines.postgres import release as postgres_release
from backstay.engines.postgres.connection import Statements, Tx, migrations
from backstay.errors import SchemaMismatch, StoreUnsafe

# The order of a schedule's fields in the statements.
_SCHEDULE_ORDER = (
    "name", "cron", "timezone", "missed", "job_type", "template", "created_at", "updated_at", "next_at", "version",
    "paused_at", "paused_by", "last_at", "last_job_id", "overlap", "jitter_micros", "starts_at", "ends_at",
    "declared_by", "skipped", "skipped_at",
)  # fmt: skip


async def promote(tx: Tx, now: Instant, limit: int) -> Promoted:
    count = await tx.execute("promote", now, limit)
    count += await waits.time_out(tx, now, limit)
    if count:
        tx.signals.add(Signal.READY)
    await admission.unpark_due(tx, now)
    await _end_pauses(tx, now)
    return Promoted(count, await next_due(tx, now))


async def next_due(tx: Tx, now: Instant) -> Instant | None:
    """Return when the next scheduled, retrying or rate-limited job may run, a wait for an event times out, or a pause
    is over."""
    due = await tx.value("next_due")
    rate_due = await admission.next_due(tx, now)
    times = (due, rate_due, await tx.value("next_timeout"))
    return min((each for each in times if each is not None), default=None)


async def announce(tx: Tx, types: Sequence[JobType]) -> None:
    """Store types. A new one is inserted first: only a row that exists can be locked, and without the lock one of two
    announcements at the same time would lose its marks."""
    latest = {each.job_type: each for each in types}
    new = [sensitive.announced(None, latest[name]) for name in sorted(latest)]
    await tx.execute("announce", [each.job_type for each in new], [_details(each) for each in new])
    stored = await _locked(tx, list(latest))
    changed = [(old, now) for old in stored if (now := sensitive.announced(old, latest[old.job_type])) != old]
    if changed:
        await tx.execute("save_types", [old.job_type for old, _ in changed], [_details(now) for _, now in changed])


async def unmark(tx: Tx, job_type: str, marks: Sequence[str]) -> Verdict:
    for stored in await _locked(tx, [job_type]):
        await tx.execute("save_types", [job_type], [_details(sensitive.without(stored, marks))])
        return Verdict.APPLIED
    return Verdict.GONE


async def _locked(tx: Tx, names: list[str]) -> list[JobType]:
    return [msgspec.json.decode(details, type=JobType) for details in await tx.column("lock_types", names)]


def _details(job_type: JobType) -> str:
    return msgspec.json.encode(job_type).decode()


async def release(tx: Tx, now: Instant, limit: int) -> tuple[int, bool]:
    """Continue releases; return how many jobs were released, and whether there are staged children to store."""
    await access.add_up(tx, now)
    done = await waits.send_due(tx, now, limit)
    done += await postgres_release.release(tx, now, limit)
    if not await tx.value("staged_any"):
        return done, False
    return done + await settle.drop_stale(tx), True


# Queues, and limits at run time


async def change_queue(tx: Tx, name: str, change: QueueChange, now: Instant) -> QueueRow:
    row = run_limits.changed_queue(await _queue(tx, name), change, now)
    await _save_queue(tx, row)
    _tell(tx, change)
    return row


async def change_limit(tx: Tx, of: LimitOf, name: str, change: LimitChange, now: Instant) -> LimitRow:
    row = run_limits.changed_limit(await _limit(tx, of, name), change, now)
    await _save_limit(tx, row)
    _tell(tx, change)
    if change.limits:  # for jobs that wait already, too
        await postgres_release.unpark_now(tx, name)
        await admission.look_again(tx, name, now)
    return row


def _tell(tx: Tx, change: QueueChange | LimitChange) -> None:
    if change.paused is False:
        tx.signals.add(Signal.READY)
    if change.until is not None:
        tx.signals.add(Signal.DUE)


async def _queue(tx: Tx, name: str) -> QueueRow:
    """Return the settings of a queue, locked."""
    row: Any = await tx.row("open_queue", name)
    return sql_rows.queue(row)


async def _save_queue(tx: Tx, row: QueueRow) -> None:
    if run_limits.says_nothing(row):
        await tx.execute("drop_queue", row.name)
    else:
        await tx.execute("save_queue", *msgspec.structs.astuple(row))


async def _limit(tx: Tx, of: LimitOf, name: str) -> LimitRow:
    """Return what was set for a type or a key, locked."""
    row: Any = await tx.row("open_limit", of.value, name)
    return sql_rows.limit(row)


async def _save_limit(tx: Tx, row: LimitRow) -> None:
    if run_limits.says_nothing(row):
        await tx.execute("drop_limit", row.of.value, row.name)
    else:
        await tx.execute("save_limit", *msgspec.structs.astuple(row))


async def _end_pauses(tx: Tx, now: Instant) -> None:
    for of, name in await tx.rows("pauses_over", now):
        # Locked from here on, and perhaps changed since it was listed.
        if of == "queue":
            queue = await _queue(tx, name)
            await _save_queue(tx, run_limits.resumed(queue) if run_limits.is_over(queue, now) else queue)
        else:
            limit = await _limit(tx, LimitOf(of), name)
            await _save_limit(tx, run_limits.resumed(limit) if run_limits.is_over(limit, now) else limit)
        tx.signals.add(Signal.READY)


# Schedules


async def save_schedule(tx: Tx, schedule: Schedule, expected_version: int | None, repeat: bool) -> Verdict:
    if expected_version is not None and await tx.row("schedule_version", schedule.name) is None:
        return Verdict.GONE
    values = [getattr(schedule, name) for name in _SCHEDULE_ORDER]
    saved = await tx.execute("save_schedule", *values, expected_version)
    if not saved and repeat:  # the earlier try may have been applied
        saved = [schedule] == await schedules(tx, [schedule.name])
    if not saved:
        return Verdict.STALE
    tx.signals.add(Signal.PLANNED)
    return Verdict.APPLIED


async def drop_schedule(tx: Tx, name: str, expected_version: int | None, repeat: bool) -> Verdict:
    if await tx.execute("drop_schedule", name, expected_version):
        return Verdict.APPLIED
    if await tx.row("schedule_version", name) is not None:
        return Verdict.STALE
    return Verdict.APPLIED if repeat else Verdict.GONE  # the earlier try may have deleted it


async def save_declaration(tx: Tx, declaration: Declaration, expected_version: int | None, repeat: bool) -> Verdict:
    details = msgspec.json.encode(declaration).decode()
    saved = await tx.execute("save_declaration", declaration.origin, declaration.version, details, expected_version)
    if not saved and repeat:  # the earlier try may have been applied
        saved = declaration in await declarations(tx)
    return Verdict.APPLIED if saved else Verdict.STALE


async def declarations(tx: Tx) -> list[Declaration]:
    return [msgspec.json.decode(details, type=Declaration) for details in await tx.column("declarations")]


async def schedules(tx: Tx, names: Sequence[str], after: str = "", limit: int | None = None) -> list[Schedule]:
    found = await (tx.rows("schedules_named", list(names)) if names else tx.rows("schedules", after, limit))
    return [Schedule(**dict(zip(_SCHEDULE_ORDER, row, strict=True))) for row in found]


async def upcoming(tx: Tx, limit: int) -> list[Schedule]:
    found = await tx.rows("upcoming", limit)
    return [Schedule(**dict(zip(_SCHEDULE_ORDER, row, strict=True))) for row in found]


async def fire(tx: Tx, firing: Firing, now: Instant, store_now: Instant | None, repeat: bool) -> Verdict:
    last = firing.jobs[-1] if firing.jobs else None
    moved = await tx.execute(
        "fire",
        firing.name,
        firing.version,
        firing.due_at,
        firing.next_at,
        None if last is None else last.tick_at,
        None if last is None else last.job_id,
        firing.skipped,
        firing.skipped_at,
    )
    if not moved:
        found = await schedules(tx, [firing.name])
        if not found:
            return Verdict.GONE
        stored = found[0]
        # Our earlier try, whose answer was lost, was applied: no other process advances a schedule to this tick with
        # this job.
        ours = last is not None and (stored.next_at, stored.last_job_id) == (firing.next_at, last.job_id)
        return Verdict.APPLIED if repeat and ours else Verdict.STALE
    if last is not None:
        stands_for = (await insert.insert(tx, firing.jobs, now, store_now, repeat=False))[-1].job_id
        if stands_for != last.job_id:
            await tx.execute("fired_into", firing.name, stands_for)
    return Verdict.APPLIED


# Migrations

MIGRATION_SECONDS = 3600.0  # no timeout: a new index on many jobs can take long
_BREAKING = re.compile(r"^-- breaking\b", re.MULTILINE)
_TABLE = """
CREATE TABLE IF NOT EXISTS backstay.migration (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    breaking   boolean NOT NULL, -- an older release cannot work with what comes after
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


def is_breaking(text: str) -> bool:
    return bool(_BREAKING.search(text))


async def migrate(connection: Any, sql: Statements) -> list[str]:
    """Apply missing migrations; return their names."""
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '10s'")
            return await _apply_missing(connection, sql)
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaMismatch(
            f'this role is not allowed to create or change the schema "{sql.schema}" ({error}): run'
            ' "backstay migrate" as a role that is, or apply the script that "backstay migrate --sql" prints'
        ) from None


async def _apply_missing(connection: Any, sql: Statements) -> list[str]:
    names = []
    # One lock for all of it: twenty processes that start at once wait for the first, and find everything done.
    await connection.execute(f"SELECT {_lock(sql)}", timeout=MIGRATION_SECONDS)
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", f'"{sql.schema}"'):
        # if the schema exists, no permission to create one is needed
        await connection.execute(f'CREATE SCHEMA "{sql.schema}"')
    await connection.execute(sql.named(_TABLE))
    done = {row["number"] for row in await applied(connection, sql)}
    for number, name, text in migrations():
        if number not in done:
            await connection.execute(sql.named(text), timeout=MIGRATION_SECONDS)
            await connection.execute(_mark(sql, number, name, text))
            names.append(name)
    return names


def _lock(sql: Statements) -> str:
    return f"pg_advisory_xact_lock(hashtextextended('{sql.named('backstay.migrate')}', 0))"


def _mark(sql: Statements, number: int, name: str, text: str) -> str:
    values = f"({number}, '{name}', {'true' if is_breaking(text) else 'false'})"
    return sql.named(f"INSERT INTO backstay.migration (number, name, breaking) VALUES {values}")  # noqa: S608


_CREATED = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?backstay\.(\w+)", re.MULTILINE)


def own_tables() -> list[str]:
    """Return the names of all tables that the migrations create."""
    return sorted(
        {name for text in (_TABLE, *(text for _, _, text in migrations())) for name in _CREATED.findall(text)}
    )


async def exists(connection: Any, sql: Statements, where: str) -> bool:
    """Return whether there is a queue; refuse a schema in which another program has tables with names of ours."""
    found = dict(await connection.fetch(sql["relations"], sql.schema, own_tables()))
    if not found:
        return False
    if not {"number", "name", "breaking"} <= set(found.get("migration", ())):
        raise StoreUnsafe(
            f"{where}: the schema has tables of another program ({', '.join(sorted(found))}): nothing was changed;"
            " choose another with schema= in the URL"
        )
    return True


async def check(connection: Any, sql: Statements, where: str) -> bool:
    """Return whether the schema exists; raise SchemaMismatch if this release cannot work with it."""
    if not await exists(connection, sql, where):
        return False
    rows = await applied(connection, sql)
    later = newer(rows)
    if any(row["breaking"] for row in later):
        raise SchemaMismatch(
            f"{where} was migrated to {later[-1]['name']}, which this release does not support: upgrade backstay"
        )
    return {number for number, _, _ in migrations()} <= {row["number"] for row in rows}


async def applied(connection: Any, sql: Statements) -> list[Any]:
    return list(await connection.fetch(sql["applied"]))


def newer(rows: list[Any]) -> list[Any]:
    """Return the migrations that a later release has applied."""
    known = {number for number, _, _ in migrations()}
    return [row for row in rows if row["number"] not in known]


def last() -> str:
    """Return the name of this release's last migration."""
    return migrations()[-1][1]


def script(sql: Statements) -> str:
    """Return all migrations as one script, each guarded by a check whether it was applied: safe to run again after an
    upgrade."""
    parts = [
        f'-- The migrations of Backstay for the schema "{sql.schema}". Migrations already applied are skipped.',
        "BEGIN;",
        "SET LOCAL client_min_messages = warning;",
        f"DO $backstay$ BEGIN PERFORM {_lock(sql)}; END $backstay$;",
        f'CREATE SCHEMA IF NOT EXISTS "{sql.schema}";',
        f"{sql.named(_TABLE).strip()};",
    ]
    for number, name, text in migrations():
        missing = sql.named(f"NOT EXISTS (SELECT FROM backstay.migration WHERE number = {number})")
        parts += [
            f"\n-- {name}",
            f"DO $backstay$ BEGIN IF {missing} THEN EXECUTE $migration$",
            sql.named(text).strip(),
            f"$migration$; {_mark(sql, number, name, text)}; END IF; END $backstay$;",
        ]
    return "\n".join([*parts, "\nCOMMIT;", ""])


CLOCK_SECONDS_WARN = 2.0
DEAD_SHARE_WARN = 0.5  # dead rows as a share of live rows …
DEAD_ROWS_WARN = 50_000  # … and at least this many: fewer do not slow down a claim
TRANSACTION_SECONDS_WARN = 300.0
PLACES_CHECKED_MAX = 1_000
CONNECTIONS_SHARE_WARN = 0.9

_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
_TIME_LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


async def diagnose(tx: Tx, now: Instant) -> list[Finding]:
    clock = await _clock(tx, now)  # first: what is asked before it would count as being off
    names = ["server_version", "max_connections", *_DURABLE, *_TIME_LIMITS]
    settings = dict(await tx.rows("settings", names))
    return [
        Finding("engine", "ok", f"PostgreSQL {settings['server_version']}"),
        _durability(settings),
        await _time_limits(tx, settings),
        await _schema(tx),
        clock,
        await _places(tx),
        await _dead_rows(tx),
        await _oldest_transaction(tx),
        await _connections(tx, int(settings["max_connections"])),
    ]


def _durability(settings: dict[str, str]) -> Finding:
    wrong = [f"{name}={settings[name]}" for name in _DURABLE if settings[name] == "off"]
    if wrong:
        return Finding("durability", "bad", ", ".join(wrong), "set it to on: otherwise a crash loses acknowledged jobs")
    return Finding("durability", "ok", ", ".join(f"{name}={settings[name]}" for name in _DURABLE))


async def _time_limits(tx: Tx, settings: dict[str, str]) -> Finding:
    """Check the timeouts. Each session sets its own, except through a pooler in transaction mode: there they are those
    of the role."""
    missing = [name for name in _TIME_LIMITS if settings[name] == "0"]
    if missing:
        role = await tx.value("role")
        return Finding(
            "time limits",
            "warn",
            f"none for {', '.join(missing)}: a stuck session keeps its locks",
            " ".join(f"ALTER ROLE {role} SET {name} = '{_advised(name)}';" for name in missing),
        )
    limits = (f"{name} {int(settings[name]) / 1000:g} s" for name in _TIME_LIMITS)
    return Finding("time limits", "ok", ", ".join(limits))


def _advised(name: str) -> str:
    return {"statement_timeout": "15s", "lock_timeout": "5s"}.get(name, "30s")


async def _schema(tx: Tx) -> Finding:
    unknown = newer(await applied(tx.connection, tx.sql))
    latest = last()
    if unknown:
        return Finding(
            "schema", "ok", f"{tx.sql.schema} is at {unknown[-1]['name']}, newer than this release ({latest})"
        )
    return Finding("schema", "ok", f"{tx.sql.schema} is at {latest}")


async def _clock(tx: Tx, now: Instant) -> Finding:
    off = (now - int(await tx.value("now"))) / MICROS
    if abs(off) > CLOCK_SECONDS_WARN:
        return Finding(
            "server clock",
            "warn",
            f"this machine is {off:+.1f} s off the server's clock",
            "synchronise both with NTP: scheduled jobs follow the server's clock",
        )
    return Finding("server clock", "ok", f"{off:+.3f} s from here")


async def _dead_rows(tx: Tx) -> Finding:
    """Look at the place that has most of them: each job passes the line and the claims."""
    row = await tx.row("dead_rows", tx.sql.schema)
    table, live, dead, age = row or ("ready", 0, 0, None)
    vacuumed = "never vacuumed" if age is None else f"last vacuumed {age / 60:,.0f} min ago"
    says = f"{dead:,} next to {live:,} live ones in the table {table}, {vacuumed}"
    if dead > DEAD_ROWS_WARN and dead > DEAD_SHARE_WARN * live:
        return Finding(
            "dead rows",
            "warn",
            says,
            f'VACUUM "{tx.sql.schema}".{table}, and check that autovacuum is on and no old transaction blocks it',
        )
    return Finding("dead rows", "ok", says)


async def _places(tx: Tx) -> Finding:
    """Check that jobs have one place each, and places a job: the newest of them, so that it takes no time."""
    found = await tx.row("misplaced", PLACES_CHECKED_MAX)
    return sql_rows.places_finding(*(found or (0, 0, 0, 0, 0, None)))


async def _oldest_transaction(tx: Tx) -> Finding:
    """Return the oldest transaction that holds back vacuum in this database: of sessions, or prepared and abandoned."""
    row = await tx.row("oldest_transaction")
    unseen = await tx.value("hidden_sessions")
    note = f"; {unseen} sessions of other roles are hidden (GRANT pg_read_all_stats shows them)" if unseen else ""
    if row is None:
        return Finding("oldest transaction", "ok", f"none are open{note}")
    seconds, pid, application, state, name = row
    holder = (
        f"prepared transaction {name}" if pid is None else f"pid {pid} ({application or 'no name'}, {name}, {state})"
    )
    if seconds <= TRANSACTION_SECONDS_WARN:
        return Finding("oldest transaction", "ok", f"{seconds:,.0f} s, {holder}{note}")
    return Finding(
        "oldest transaction",
        "warn",
        f"{seconds:,.0f} s, {holder}: vacuum cannot remove rows deleted since{note}",
        f"ROLLBACK PREPARED '{name}'"
        if pid is None
        else f"SELECT pg_terminate_backend({pid}), and find out why it stays open",
    )


async def _connections(tx: Tx, most: int) -> Finding:
    used, ours = await tx.row("sessions") or (0, 0)
    says = f"{used} of {most} used, {ours} by Backstay"
    if used >= CONNECTIONS_SHARE_WARN * most:
        return Finding("connections", "warn", says, "lower ?pool=, put PgBouncer in front, or raise max_connections")
    return Finding("connections", "ok", says)
