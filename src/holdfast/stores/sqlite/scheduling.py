"""Schedules: stored whole, and moved on past their ticks in the commit that inserts the jobs of these."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from holdfast.clock import Instant
from holdfast.errors import InvalidSchedule
from holdfast.limits import SCHEDULES_MAX
from holdfast.store.types import Firing, Schedule, Signal, Verdict
from holdfast.stores.sqlite import inserting, sql
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx

SAVE = load("save_schedule")
FIRE = load("fire")
_FIELDS = Schedule.__struct_fields__
_ALL = f"SELECT {', '.join(_FIELDS)} FROM schedule ORDER BY name"  # noqa: S608
_NAMED = _ALL.replace("ORDER BY", "WHERE name IN (SELECT value FROM json_each(?)) ORDER BY")
_EXISTS = "SELECT version FROM schedule WHERE name = ?"


def save_schedule(tx: Tx, schedule: Schedule, expected_version: int | None) -> Verdict:
    stored: int | None = tx.value(_EXISTS, (schedule.name,))
    if stored is None and expected_version is not None:
        return Verdict.GONE
    if stored is None and tx.value("SELECT count(*) FROM schedule") >= SCHEDULES_MAX:
        raise InvalidSchedule(f"there are {SCHEDULES_MAX:,} schedules already (SCHEDULES_MAX): remove some first")
    tx.execute(SAVE, {**msgspec.structs.asdict(schedule), "expected": expected_version})
    if not tx.connection.changes():
        return Verdict.STALE
    tx.signals.add(Signal.PLANNED)
    return Verdict.APPLIED


def drop_schedule(tx: Tx, name: str) -> Verdict:
    tx.execute("DELETE FROM schedule WHERE name = ?", (name,))
    return Verdict.APPLIED if tx.connection.changes() else Verdict.GONE


def schedules(connection: apsw.Connection, names: Sequence[str]) -> list[Schedule]:
    found = (
        sql.rows(connection, _NAMED, (msgspec.json.encode(names).decode(),)) if names else sql.rows(connection, _ALL)
    )
    return [Schedule(**dict(zip(_FIELDS, row, strict=True))) for row in found]


def fire(tx: Tx, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
    return [_fire_one(tx, firing, now) for firing in firings]


def _fire_one(tx: Tx, firing: Firing, now: Instant) -> Verdict:
    last = firing.jobs[-1] if firing.jobs else None
    tx.execute(
        FIRE,
        {
            "name": firing.name,
            "version": firing.version,
            "due_at": firing.due_at,
            "next_at": firing.next_at,
            "last_at": None if last is None else last.tick_at,
            "last_job_id": None if last is None else last.job_id,
        },
    )
    if not tx.connection.changes():
        return Verdict.GONE if tx.value(_EXISTS, (firing.name,)) is None else Verdict.STALE
    if firing.jobs:
        inserting.insert(tx, firing.jobs, now)
    return Verdict.APPLIED
