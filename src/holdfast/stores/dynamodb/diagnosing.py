"""What the tables can tell about their own health, and what they will cost."""

from __future__ import annotations

from typing import Any

from holdfast.clock import MICROS, Instant
from holdfast.errors import HoldfastError
from holdfast.store.types import Finding
from holdfast.stores.dynamodb import costs, keys, outbox
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import INDEXES, SCHEMA, Table
from holdfast.stores.dynamodb.wire import Lane
from holdfast.words import count

SKEW_SECONDS_WARN = 1.0
SKEW_SECONDS_BAD = 2.0
MARK_SECONDS_WARN = 300  # what a commit has begun is finished by the next sweep, unless nobody sweeps
_MARKS_MAX = 100


async def diagnose(ground: Ground, now: Instant) -> list[Finding]:
    billings: list[str] = []
    findings = []
    for table in Table:
        findings += await _table(ground, table, billings)
    findings.append(await _schema(ground))
    findings.append(_clock(ground))
    findings.append(await _outbox(ground, now))
    findings.append(await _sweeps(ground, now))
    findings.append(_costs("provisioned" in billings, ground.board.ceiling_seconds))
    return findings


async def _table(ground: Ground, table: Table, billings: list[str]) -> list[Finding]:
    name = ground.tables.names[table]
    check = f"table {table.value}"
    try:
        reply = await ground.tables.call("DescribeTable", {"TableName": name})
    except HoldfastError as error:
        return [
            Finding(
                check, "warn", f"{name} cannot be described: {error}", "allow dynamodb:DescribeTable, or look yourself"
            )
        ]
    described: dict[str, Any] = reply["Table"]
    status = described.get("TableStatus", "ACTIVE")
    billing = described.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED").lower().replace("_", " ")
    billings.append(billing)
    items, size = described.get("ItemCount", 0), described.get("TableSizeBytes", 0)
    says = f"{name}: {status.lower()}, {billing}, about {count(items, 'item')}, {size / 2**20:,.1f} MiB"
    if described.get("Replicas"):
        return [
            Finding(check, "bad", f"{name} is a global table", "remove its replicas: a job could run in two regions")
        ]
    if status not in ("ACTIVE", "UPDATING"):
        return [Finding(check, "bad", says, "wait until it is active, or look at it in the console")]
    findings = [Finding(check, "ok", says), *await _time_to_live(ground, name)]
    if table is Table.JOBS:
        findings.append(_indexes(described))
    return findings


async def _time_to_live(ground: Ground, name: str) -> list[Finding]:
    """DynamoDB would delete jobs on its own, without a history and under running workers."""
    try:
        reply = await ground.tables.call("DescribeTimeToLive", {"TableName": name})
    except HoldfastError:
        return []  # a role that may not ask: most that may describe a table may not
    described = reply.get("TimeToLiveDescription", {})
    if described.get("TimeToLiveStatus", "DISABLED") not in ("ENABLED", "ENABLING"):
        return []
    says = f"{name} has a time to live by {described.get('AttributeName')!r}: items can vanish under the queue"
    return [Finding("time to live", "bad", says, "turn it off: retention removes old jobs")]


def _indexes(described: dict[str, Any]) -> Finding:
    there = {
        each["IndexName"]: each.get("IndexStatus", "ACTIVE") for each in described.get("GlobalSecondaryIndexes", ())
    }
    missing = sorted(set(INDEXES) - set(there))
    if missing:
        return Finding("indexes", "bad", f"missing: {', '.join(missing)}", 'run "holdfast migrate"')
    building = sorted(name for name, status in there.items() if status not in ("ACTIVE", "UPDATING"))
    if building:
        return Finding("indexes", "warn", f"being made: {', '.join(building)}", "wait until they are active")
    return Finding("indexes", "ok", f"all {len(INDEXES)} are there and active")


async def _schema(ground: Ground) -> Finding:
    [schema] = await ground.tables.get(Table.RECORDS, [keys.SCHEMA_KEY])
    stored = None if schema is None else schema["number"]
    if schema is None or stored != SCHEMA:
        return Finding("schema", "bad", f"version {stored}; this release has {SCHEMA}", 'run "holdfast migrate"')
    return Finding("schema", "ok", f"version {stored}, {count(schema['shards'], 'shard')}")


def _clock(ground: Ground) -> Finding:
    skew = ground.tables.wire.skew_seconds
    if skew is None:
        return Finding("server clock", "ok", "DynamoDB has not said often enough what time it is to compare")
    says = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} DynamoDB's"
    if abs(skew) > SKEW_SECONDS_BAD:
        return Finding("server clock", "bad", says, "set this machine's clock: nothing is claimed until then")
    if abs(skew) > SKEW_SECONDS_WARN:
        return Finding("server clock", "warn", says, "let this machine's clock be kept by NTP")
    return Finding("server clock", "ok", says)


async def _outbox(ground: Ground, now: Instant) -> Finding:
    oldest: Instant | None = None
    marks = 0
    async for mark in outbox.marks(ground.tables, _MARKS_MAX):
        marks += 1
        oldest = mark.at if oldest is None else min(oldest, mark.at)
    if oldest is None:
        return Finding("outbox", "ok", "nothing is left half done")
    age = max(0, now - oldest) // MICROS
    says = f"{count(marks, 'commit')} left half done, the oldest {age:,} s old"
    if age > MARK_SECONDS_WARN:
        return Finding("outbox", "warn", says, "start a worker: its upkeep goes on from there")
    return Finding("outbox", "ok", says)


async def _sweeps(ground: Ground, now: Instant) -> Finding:
    [turn] = await ground.tables.get(Table.RECORDS, [keys.turn("sweep")], lane=Lane.IDLE)
    if turn is None:
        return Finding("sweep", "ok", "no worker has swept here yet")
    return Finding("sweep", "ok", f"last {max(0, now - turn['taken_at']) // MICROS:,} s ago")


def _costs(provisioned: bool, wake_ceiling: float) -> Finding:
    """Whether Amazon counts entries of indexes twice in transactions we do not know: so it is a range."""
    alone, together = costs.units_of_job(1), costs.units_of_job(50)
    units = costs.Range(min(alone.least, together.least), max(alone.most, together.most))
    if provisioned:
        says = (
            f"provisioned capacity is paid for whether it is used or not; a million plain jobs write"
            f" {units.least:.0f} to {units.most:.0f} million units"
        )
        return Finding("costs", "ok", says)
    jobs, idle = costs.dollars(units), costs.dollars_of_idle_day(4, 30, wake_ceiling)
    says = (
        f"a million plain jobs cost {jobs}, a worker with nothing to do ${idle:.3f} a day"
        f" (on demand at the prices of {costs.PRICES_OF}; Amazon does not say whether entries of indexes count twice)"
    )
    return Finding("costs", "ok", says)
