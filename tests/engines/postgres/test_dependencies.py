"""Trees on PostgreSQL, where SQL has a part of its own: rules said twice, jobs that SQL brings, ends and drops."""

import itertools
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from backstay.core.dependencies import Brood, TriggerRule, began
from backstay.core.records import JobType
from backstay.core.states import Status
from backstay.engines.postgres.store import PostgresStore
from backstay.testing.conformance.factories import NOW, Claim, new_job, quiet, record, request, running, status, submit
from backstay.testing.conformance.factories import settle as settle_job
from backstay.testing.conformance.test_children import brood
from tests.engines.postgres.query_plans import explain
from tests.support.servers.postgres import Postgres


@pytest.fixture
def schema() -> str:
    return f"trees_{secrets.token_hex(3)}"


@pytest.fixture
async def store(postgres: Postgres, schema: str) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres.url(schema=schema))
    await opened.open()
    await opened.announce(
        [
            JobType(
                job_type="work",
                queue="default",
                priority=50,
                max_attempts=3,
                timeout_micros=10**9,
                payload_schema=None,
                version=1,
                last_seen=NOW,
            )
        ]
    )
    yield opened
    await opened.close()


@pytest.fixture
async def sql(postgres: Postgres, schema: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres.url(), server_settings={"search_path": f"{schema}, public"})
    yield connection
    await connection.close()


async def test_a_rule_says_the_same_in_sql_as_in_python(store: PostgresStore, sql: Any) -> None:
    """Of three jobs that it depends on, however each of them stands."""
    states = [Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.PENDING]
    numbers = [each for each in itertools.product(range(4), repeat=4) if sum(each) <= 3]
    asked = list(itertools.product(TriggerRule, numbers, ("cancel", "fail"), (False, True)))

    for rule, counts, policy, later in asked:
        begins = began(
            rule=rule,
            outcomes=dict(zip(states, counts, strict=True)),
            on_failure=policy,
            scheduled_for=NOW + later,
            now=NOW,
        )
        said = await sql.fetchval("SELECT began($1, $2, $3, $4, $5, $6, $7)", rule, *counts, policy, later)
        assert said == (begins.then or begins.status).value, (rule, counts, policy, later)


async def test_sql_submits_with_a_rule(store: PostgresStore, sql: Any) -> None:
    parent = await running(store)

    job_id = str(
        await sql.fetchval(
            "SELECT submit('work', depends_on => ARRAY[$1::uuid], trigger_rule => 'all_done')", parent.job_id
        )
    )
    assert (await record(store, job_id)).trigger_rule == "all_done"
    await settle_job(store, parent.ends_as(Status.FAILED))

    assert await status(store, job_id) is Status.PENDING


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("trigger_rule => 'any', depends_on => ARRAY[$1::uuid]", "use all_success, all_done"),
        ("trigger_rule => 'all_done', subject => $1::text", "needs depends_on"),
        ("depends_on => ARRAY[$1::uuid], parent => $1::uuid", "or its parent"),
        ("depends_on => ARRAY[$1::uuid], job_id => $1::uuid", "the job itself"),
    ],
)
async def test_sql_is_refused_what_cannot_be_meant(store: PostgresStore, sql: Any, arguments: str, said: str) -> None:
    job_id = await submit(store)

    with pytest.raises(asyncpg.PostgresError, match=said):
        await sql.fetchval(f"SELECT submit('work', {arguments})", job_id)


async def test_a_child_from_sql_is_counted(store: PostgresStore, sql: Any) -> None:
    parent = await submit(store)

    for _ in range(2):
        await sql.fetchval("SELECT submit('work', parent => $1::uuid)", parent)

    assert await brood(store, parent) == Brood(2, 2)


async def test_children_in_a_transaction_of_the_callers_own_are_counted_with_it(store: PostgresStore, sql: Any) -> None:
    parent = await submit(store)
    jobs = [new_job(parent_job_id=parent, own_id=True) for _ in range(3)]

    async with sql.transaction():
        await store.insert_in(sql, jobs, NOW)
        await store.insert_in(sql, jobs[:1], NOW)
        assert await brood(store, parent) == Brood()

    assert await brood(store, parent) == Brood(3, 3)


async def _waiting(store: PostgresStore, **fields: Any) -> tuple[Claim, list[Claim]]:
    parent = await running(store)
    jobs = tuple(new_job(parent_job_id=parent.job_id, own_id=True, **fields) for _ in range(2))
    await settle_job(store, parent.waits(children=jobs))
    asked = request()
    return parent, [Claim(job, asked.token) for job in await store.claim(asked, NOW)]


async def test_children_that_sql_cancels_let_their_parent_go_on(store: PostgresStore, sql: Any) -> None:
    parent, _ = await _waiting(store, subject="song")

    assert await sql.fetchval("SELECT cancel_jobs('work', 'song')") == 2
    await quiet(store)

    assert await status(store, parent.job_id) is Status.PENDING
    assert await brood(store, parent.job_id) == Brood(2, cancelled=2)


async def test_sql_does_not_drop_jobs_out_of_a_tree(store: PostgresStore, sql: Any) -> None:
    parent, children = await _waiting(store, subject="song")
    alone = await submit(store, subject="song")

    assert await sql.fetchval("SELECT drop_jobs('work', 'song')") == 1
    await quiet(store)

    assert await store.statuses([alone, *(child.job_id for child in children)]) == [
        None,
        Status.CANCELLED,
        Status.CANCELLED,
    ]
    assert await status(store, parent.job_id) is Status.PENDING


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("analysed", [False, True])
async def test_a_page_of_children_is_read_through_their_index(
    store: PostgresStore, sql: Any, mode: str, analysed: bool
) -> None:
    parent = await submit(store)
    await sql.execute(
        "INSERT INTO job (job_id, job_type, queue, priority, scheduled_for, max_attempts, timeout_micros, created_at,"
        " payload, parent_job_id)"
        " SELECT gen_random_uuid(), 'work', 'default', 50, 0, 1, 1, 0, '{}',"
        " CASE WHEN n % 2 = 0 THEN $1::uuid END FROM generate_series(1, 20000) AS n",
        parent,
    )
    await sql.execute(
        "INSERT INTO ended (job_id, completed_at, attempt, failures, version, status)"
        f" SELECT job_id, 1, 1, 0, 3, 'completed' FROM job WHERE job_id <> '{parent}'"
    )
    if analysed:
        await sql.execute("ANALYZE job, ended")
    statement = store._session.sql["children"]

    plan = await explain(sql, statement, [parent, "00000000-0000-0000-0000-000000000000", None, 11], mode)

    assert "job_parent" in plan.indexes
    assert not plan.scanned_whole & {"job", "ended"}
    # Of a table that it knows nothing of yet, the server sorts the children; it never walks past others.
    assert plan.rows <= (5 * 11 if analysed else 10_000 + 5 * 11)
