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

SKEW_SECONDS_WARN = 1.0
SKEW_SECONDS_BAD = 2.0
MARK_SECONDS_WARN = 300  # what a commit has begun is finished by the next sweep, unless nobody sweeps
CONFLICTS_WARN = 100
_MARKS_MAX = 100


async def diagnose(ground: Ground, now: Instant) -> list[Finding]:
    findings = []
    for table in Table:
        findings += await _table(ground, table)
    findings.append(await _schema(ground))
    findings.append(_clock(ground))
    findings.append(_throttles(ground))
    findings.append(_conflicts(ground))
    findings.append(await _outbox(ground, now))
    findings.append(await _sweeps(ground, now))
    findings.append(_costs())
    return findings


async def _table(ground: Ground, table: Table) -> list[Finding]:
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
    billing = described.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    size = f"about {described.get('ItemCount', 0):,} items, {described.get('TableSizeBytes', 0) / 2**20:,.1f} MiB"
    says = f"{name}: {status.lower()}, {billing.lower().replace('_', ' ')}, {size}"
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
    return Finding("schema", "ok", f"version {stored}, made for {schema['shards']} shards, opened with {ground.shards}")


def _clock(ground: Ground) -> Finding:
    skew = ground.tables.wire.skew_seconds
    if skew is None:
        return Finding("clock", "ok", "DynamoDB has not said often enough what time it is to compare")
    says = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} DynamoDB's"
    if abs(skew) > SKEW_SECONDS_BAD:
        return Finding("clock", "bad", says, "set this machine's clock: nothing is claimed until then")
    if abs(skew) > SKEW_SECONDS_WARN:
        return Finding("clock", "warn", says, "let this machine's clock be kept by NTP")
    return Finding("clock", "ok", says)


def _throttles(ground: Ground) -> Finding:
    meter = ground.tables.wire.meter
    calls = sum(meter.calls.values())
    says = f"{meter.throttled:,} of {calls:,} calls since opening were throttled"
    if meter.throttled > calls // 20:
        return Finding("throttling", "warn", says, "raise the tables' capacity, or bill them on demand")
    return Finding("throttling", "ok", says)


def _conflicts(ground: Ground) -> Finding:
    meter = ground.tables.wire.meter
    calls = meter.calls["TransactWriteItems"]
    says = f"{meter.conflicts:,} of {calls:,} transactions since opening met another one"
    if meter.conflicts > max(CONFLICTS_WARN, calls // 5):
        return Finding("conflicts", "warn", says, "many claim from one queue and type at once: open with more ?shards=")
    return Finding("conflicts", "ok", says)


async def _outbox(ground: Ground, now: Instant) -> Finding:
    oldest: Instant | None = None
    count = 0
    async for mark in outbox.marks(ground.tables, _MARKS_MAX):
        count += 1
        oldest = mark.at if oldest is None else min(oldest, mark.at)
    if oldest is None:
        return Finding("outbox", "ok", "nothing is left half done")
    age = max(0, now - oldest) // MICROS
    says = f"{count} marks of work to go on with, the oldest {age:,} s old"
    if age > MARK_SECONDS_WARN:
        return Finding("outbox", "warn", says, "start a worker: its upkeep goes on from there")
    return Finding("outbox", "ok", says)


async def _sweeps(ground: Ground, now: Instant) -> Finding:
    [turn] = await ground.tables.get(Table.RECORDS, [keys.turn("sweep")], lane=Lane.IDLE)
    if turn is None:
        return Finding("sweep", "ok", "no worker has swept here yet")
    return Finding("sweep", "ok", f"last {max(0, now - turn['taken_at']) // MICROS:,} s ago, by {turn['by']}")


def _costs() -> Finding:
    alone, together = costs.dollars_of_million_jobs(1), costs.dollars_of_million_jobs(50)
    idle = costs.dollars_of_idle_day(4, 30)
    says = (
        f"on demand a million plain jobs cost {together} in batches of 50 and {alone} one by one,"
        f" an idle worker ${idle:.3f} a day ({costs.PRICES_OF})"
    )
    return Finding("costs", "ok", says)
