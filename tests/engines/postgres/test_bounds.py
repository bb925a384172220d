"""Functions in PostgreSQL refuse what Python refuses: their bounds are those of limits.py."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

import asyncpg
import pytest

from backstay import limits
from backstay.core.records import JobType
from backstay.core.states import BOUNDS_MICROS, BUCKETS
from backstay.engines.postgres.connection import Statements
from backstay.engines.postgres.store import PostgresStore
from backstay.testing.conformance.factories import NOW
from tests.support.servers.postgres import Postgres

OF_SQL = {
    "1000000",  # microseconds per second …
    "60000000",  # … and per minute
    "64",  # shards of counters, by connection
    "100",  # the highest priority
    "4611686018427387904",  # never, of a rate; see tests/engines/postgres/test_places.py
    "80",  # characters of a wrong name in a message
}
NUMBER = re.compile(r"(?<![\w$.])\d{2,}(?![\w.])")
REGISTERED = JobType(
    job_type="work",
    queue="default",
    priority=50,
    max_attempts=3,
    timeout_micros=1_000_000,
    payload_schema=None,
    version=1,
    last_seen=NOW,
)


@pytest.fixture(scope="module")
def sql(postgres: Postgres) -> Statements:
    store = PostgresStore(postgres.url(schema=f"bounds_{secrets.token_hex(4)}", clock="caller"))

    async def prepare() -> None:
        await store.open()
        await store.announce([REGISTERED])
        await store.close()

    asyncio.run(prepare())
    return Statements(store.address.schema)


@pytest.fixture
async def connection(postgres: Postgres) -> AsyncIterator[Any]:
    opened = await asyncpg.connect(postgres.url())
    yield opened
    await opened.close()


def test_the_functions_that_submit_have_no_bounds_of_their_own() -> None:
    file = resources.files("backstay.engines.postgres") / "migrations" / "0003_submit.sql"
    text = re.sub(r"--.*", "", file.read_text(encoding="utf-8"))

    assert set(NUMBER.findall(text)) <= OF_SQL, "a limit is written as {payload_bytes_max}"


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ("subject => repeat('x', $1)", limits.KEY_LENGTH_MAX),
        ("dedup_key => repeat('x', $1)", limits.KEY_LENGTH_MAX),
        ("content_hash => repeat('x', $1)", limits.KEY_LENGTH_MAX),
        ("fairness_key => repeat('x', $1)", limits.KEY_LENGTH_MAX),
        ("queue => repeat('q', $1)", limits.NAME_LENGTH_MAX),
        ("created_by => repeat('x', $1)", limits.NAME_LENGTH_MAX),
        ("stage => repeat('x', $1)", limits.STAGE_LENGTH_MAX),
        ("tags => array_fill('t'::text, ARRAY[$1])", limits.TAGS_MAX),
        ("tags => ARRAY[repeat('t', $1)]", limits.TAG_LENGTH_MAX),
        ("payload => to_jsonb(repeat('x', $1 - 2))", limits.PAYLOAD_BYTES_MAX),  # with its quotes
        ("max_attempts => $1", limits.MAX_ATTEMPTS_MAX),
        ("fairness_weight => $1", limits.FAIRNESS_WEIGHT_MAX),
        ("timeout => make_interval(secs => $1)", limits.TIMEOUT_SECONDS_MAX),
        ("delay => make_interval(secs => $1)", limits.DELAY_SECONDS_MAX),
        ("dedup_key => 'k', dedup_for => ($1::text || ' s')", limits.SPAN_SECONDS_MAX),
        ("content_hash => 'h', reuse => ($1::text || ' s')", limits.SPAN_SECONDS_MAX),
    ],
)
async def test_sql_submits_up_to_the_limit_and_refuses_more(
    sql: Statements, connection: Any, options: str, most: int
) -> None:
    submit = sql.named(f"SELECT backstay.submit('work', {options})")

    assert await connection.fetchval(submit.replace("$1", str(most)))
    with pytest.raises(asyncpg.PostgresError) as refused:
        await connection.fetchval(submit.replace("$1", str(most + 1)))
    assert refused.value.sqlstate == "BS005"


async def test_an_attempt_is_counted_in_the_bucket_that_python_says(sql: Statements, connection: Any) -> None:
    ask = sql.named("SELECT backstay.bucket_of($1, $2)")

    for place, bound in enumerate(BOUNDS_MICROS):
        assert await connection.fetchval(ask, bound, 0) == 1 + place * BUCKETS
        assert await connection.fetchval(ask, bound + 1, bound) == 1 + (place + 1) * BUCKETS + place
