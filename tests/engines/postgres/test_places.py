"""Facts and places in PostgreSQL: what a plain job leaves behind, what is said twice, and what doctor finds."""

import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from backstay import ids
from backstay.core import admission
from backstay.core.admission import Bucket, Level
from backstay.core.records import Finding
from backstay.core.states import Event
from backstay.engines.postgres import maintenance, transfer
from backstay.engines.postgres.connection import Statements, migrations
from backstay.engines.postgres.store import PostgresStore
from backstay.engines.sql_rows import Restored
from backstay.limits import IN_SIGHT_MAX, PAYLOAD_BYTES_MAX
from backstay.testing.conformance.factories import HOUR, NOW, SECOND, claim_ids, record, running, settle, submit
from tests.support.servers.postgres import Postgres

HERE = [ids.derived(ids.floor(at), "one") for at in (NOW, NOW - 90 * SECOND)]  # of now, and of a while ago
TABLES = ("job", "ready", "later", "waiting", "running", "ended", "detail", "event")


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres.url(schema=f"places_{secrets.token_hex(4)}", clock="caller"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def connection(postgres: Postgres) -> AsyncIterator[Any]:
    opened = await asyncpg.connect(postgres.url())
    yield opened
    await opened.close()


@pytest.fixture
def sql(store: PostgresStore) -> Statements:
    return Statements(store.address.schema)


async def rows(connection: Any, sql: Statements) -> dict[str, int]:
    """How many each table has, where it has some."""
    found = {table: await connection.fetchval(sql.named(f"SELECT count(*) FROM backstay.{table}")) for table in TABLES}
    return {table: count for table, count in found.items() if count}


async def test_a_job_that_ran_through_is_what_was_submitted_and_how_it_ended(
    store: PostgresStore, connection: Any, sql: Statements
) -> None:
    claim = await running(store)
    assert await rows(connection, sql) == {"job": 1, "running": 1}
    await settle(store, claim.completes())

    assert await rows(connection, sql) == {"job": 1, "ended": 1}
    told = (await record(store, claim.job_id)).history
    assert [(each.version, each.event) for each in told] == [(1, Event.SUBMIT), (2, Event.CLAIM), (3, Event.COMPLETE)]


async def test_a_view_shows_a_job_as_it_stands(store: PostgresStore, connection: Any, sql: Statements) -> None:
    claim = await running(store)
    await settle(store, claim.fails("ValueError", "no"))

    row = await connection.fetchrow(
        sql.named("SELECT status, attempt, last_error FROM backstay.standing WHERE job_id = $1"), claim.job_id
    )

    assert tuple(row) == ("retrying", 1, "ValueError: no")


_ENDED = "INSERT INTO backstay.ended (job_id, completed_at, attempt, failures, version, status)"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DELETE FROM backstay.ready WHERE job_id = $1", "1 has no place"),
        (f"{_ENDED} VALUES ($1, 1, 0, 0, 2, 'cancelled')", "1 has several places"),
        ("UPDATE backstay.ready SET priority = priority + 1 WHERE job_id = $1", "1 has a place out of order"),
        ("DELETE FROM backstay.job WHERE job_id = $1", "1 place has no job"),
    ],
)
@pytest.mark.parametrize("looked_at", [1, 1_000])
async def test_doctor_finds_a_job_that_does_not_have_one_place(
    store: PostgresStore, connection: Any, sql: Statements, change: str, says: str, looked_at: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(maintenance, "PLACES_CHECKED_MAX", looked_at)
    job_id = await submit(store)
    assert (await _places(store)).level == "ok"

    await connection.execute(sql.named(change), job_id)

    found = await _places(store)
    assert (found.level, "restore a whole backup" in found.advice) == ("bad", True)
    assert says in found.says
    assert (job_id in found.says) == ("no job" not in says)


async def test_doctor_finds_a_second_place_of_a_job_that_is_older_than_those_that_it_looks_at(
    store: PostgresStore, connection: Any, sql: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PLACES_CHECKED_MAX", 1)
    old = await submit(store)
    await claim_ids(store)
    await submit(store)
    await connection.execute(sql.named(f"{_ENDED} VALUES ($1, 1, 0, 0, 2, 'cancelled')"), old)

    assert f"1 has several places ({old} among them)" in (await _places(store)).says


async def _places(store: PostgresStore) -> Finding:
    return next(each for each in await store.diagnose(NOW) if each.check == "places")


@pytest.mark.parametrize(
    "job_id", [*HERE, "00000000-0000-4000-8000-000000000001"], ids=["of now", "of a while ago", "of no time"]
)
@pytest.mark.parametrize("parent", [None, HERE[0]], ids=["alone", "child"])
async def test_where_a_job_is_among_the_others_is_the_same_in_sql_as_in_python(
    connection: Any, sql: Statements, job_id: str, parent: str | None
) -> None:
    facts = {"job_id": job_id, "created_at": NOW + 7, "parent_job_id": parent}
    [expected] = transfer._arrivals([Restored(facts, None, (), {})], Counter())  # type: ignore[arg-type]

    told = await connection.fetchval(
        sql.named("SELECT backstay.arrival($1, $2, $3, 1)::text"), job_id, NOW + 7, parent is not None
    )

    assert told == expected


async def test_a_bucket_has_the_same_room_in_sql_as_in_python(connection: Any, sql: Statements) -> None:
    clocks = [NOW - 2 * HOUR, NOW - SECOND, NOW, NOW + 7, NOW + SECOND // 3, NOW + HOUR]
    cases = [
        (count, span, wanted, full_at, set_at, at)
        for count, span in [(1, SECOND), (3, SECOND), (7, 60 * SECOND), (1000, HOUR), (999_999_999, 86_400 * SECOND)]
        for wanted in [1, 3, 5_000]
        for full_at in [0, NOW, NOW + 1, NOW + span // 2, NOW + span, NOW + 3 * span]
        for set_at in [NOW, NOW + 61 * SECOND]
        for at in clocks
    ]

    told = await connection.fetch(
        sql.named(
            "SELECT least(200, backstay.rate_room(starts, span, wanted, full_at, at)) AS room,"
            " backstay.rate_due_at(starts, span, wanted, full_at, at) AS due_at FROM ("
            " SELECT starts, span, wanted, backstay.bucket(full_at, set_at, at) AS full_at, at"
            " FROM unnest($1::integer[], $2::bigint[], $3::integer[], $4::bigint[], $5::bigint[], $6::bigint[])"
            " WITH ORDINALITY AS c (starts, span, wanted, full_at, set_at, at, place) ORDER BY place) AS c"
        ),
        *(list(column) for column in zip(*cases, strict=True)),
    )

    expected = []
    for count, span, wanted, full_at, set_at, at in cases:
        bucket = Bucket("api", count, span)
        level = Level(admission.by_this_clock(full_at, set_at, at), wanted=wanted)
        expected.append((level.places(bucket, at), level.next_start(bucket, at)))
    assert [tuple(row) for row in told] == expected


def test_numbers_that_sql_repeats_are_those_of_python() -> None:
    text = "\n".join(text for _, _, text in migrations())

    assert set(re.findall(r"room integer := least\((\d+),", text)) == {str(IN_SIGHT_MAX)}
    assert str(admission.NO_TIME) in text
    assert set(re.findall(r"set_at - at > (\d+)", text)) == {str(admission.SET_BACK)}
    assert set(re.findall(r"> CASE WHEN child THEN 0 ELSE (\d+) END", text)) == {str(transfer.CLOCKS_APART_MILLIS)}
    assert set(re.findall(r"octet_length\(payload::text\) > (\d+)", text)) == {str(PAYLOAD_BYTES_MAX)}
