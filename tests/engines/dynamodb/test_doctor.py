"""What `doctor` says of DynamoDB, and what it costs."""

from __future__ import annotations

from backstay.engines.dynamodb import maintenance, outbox
from backstay.engines.dynamodb.outbox import MarkKind
from backstay.engines.dynamodb.schema import Table
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing.conformance.factories import NOW, SECOND
from tests.support.servers.dynamodb import DynamoDB


async def test_work_that_was_left_half_done_is_named_when_nobody_goes_on_with_it(store: DynamoStore) -> None:
    assert store._session is not None
    mark = outbox.new_mark(MarkKind.ENDED, "0198d0c2-6c1e-7001-8a3b-1f2e3d4c5b6a", NOW)
    await store._session.tables.update(outbox.written(mark))

    levels = {each.check: each.level for each in await store.diagnose(NOW + 10 * SECOND)}
    assert levels["outbox"] == "ok"
    levels = {each.check: each.level for each in await store.diagnose(NOW + 3_600 * SECOND)}
    assert levels["outbox"] == "warn"


async def test_tables_indexes_schema_clock_and_costs_are_looked_at(store: DynamoStore) -> None:
    found = {each.check: each for each in await store.diagnose(NOW)}

    assert {"table jobs", "table records", "indexes", "schema", "server clock", "costs"} <= set(found)
    assert found["schema"].says == "version 1, 1 shard"
    assert found["indexes"].says == "all 11 are there and active"
    assert "a million plain jobs" in found["costs"].says


async def test_a_table_whose_items_expire_by_themselves_is_bad(store: DynamoStore) -> None:
    assert store._session is not None
    tables = store._session.tables
    assert "time to live" not in {each.check for each in await store.diagnose(NOW)}

    async def expire(enabled: bool) -> None:
        wanted = {"AttributeName": "completed_at", "Enabled": enabled}
        await tables.call(
            "UpdateTimeToLive", {"TableName": tables.names[Table.JOBS], "TimeToLiveSpecification": wanted}
        )

    await expire(True)
    try:
        [found] = [each for each in await store.diagnose(NOW) if each.check == "time to live"]
    finally:
        await expire(False)

    assert (found.level, "'completed_at'" in found.says) == ("bad", True)


def test_a_plain_job_costs_nineteen_units_or_thirty_two_and_its_share_of_the_counters() -> None:
    assert maintenance.units_of_job(1) == maintenance.Range(22, 30)
    assert maintenance.units_of_job(50) == maintenance.Range(19 + 4 / 50, 32 + 4 / 50)
    assert str(maintenance.dollars(maintenance.units_of_job(50))) == "$12.24 to $20.36"


def test_who_is_woken_sooner_pays_for_the_looks() -> None:
    assert 0.005 < maintenance.dollars_of_idle_day(4, 30, wake_ceiling=30) < 0.01
    assert maintenance.dollars_of_idle_day(4, 30, wake_ceiling=0.2) > 0.02


async def test_costs_follow_how_the_tables_are_billed(dynamodb: DynamoDB) -> None:
    store = DynamoStore(dynamodb.url(billing="provisioned"))
    await store.open()
    found = {each.check: each.says for each in await store.diagnose(NOW)}
    await store.close()

    assert found["costs"].startswith("provisioned capacity is paid for")
    assert "$" not in found["costs"]
