"""Each statement of the hot path goes through its index and touches what it answers with, whatever else is stored."""

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from backstay.core.records import Query, Transition
from backstay.core.states import Event, Status
from backstay.core.suspicion import RUNS_ALONE
from backstay.engines.postgres import read, settle
from backstay.engines.postgres.connection import Statements
from backstay.engines.postgres.store import PostgresStore
from tests.engines.postgres.query_plans import (
    DUE,
    FAILED,
    MINE,
    RUNNING,
    add_pending,
    add_running,
    explain,
    fill,
)
from tests.support.servers.postgres import Postgres

pytestmark = pytest.mark.slow

SCHEMA = f"plans_{secrets.token_hex(3)}"
SQL = Statements(SCHEMA)
MODES = ["force_custom_plan", "force_generic_plan"]
LIMIT = 7
ANY_VERSION = 2**31 - 1
TABLES = {"job", "detail", "ready", "later", "waiting", "running", "ended", "event"}
# Whatever the planner may come to prefer one day.
WAYS = [
    "hashjoin", "mergejoin", "nestloop", "hashagg", "sort", "incremental_sort", "material", "memoize", "indexscan",
    "indexonlyscan", "bitmapscan", "seqscan",
]  # fmt: skip


@pytest.fixture(scope="session")  # workers come back to a module: its schema is filled once
def filled(postgres: Postgres) -> str:
    async def prepare() -> None:
        store = PostgresStore(postgres.url(schema=SCHEMA))
        await store.open()
        await store.close()
        connection = await asyncpg.connect(postgres.url())
        await fill(connection, SQL)
        await connection.close()

    asyncio.run(prepare())
    return postgres.url()


@pytest.fixture
async def connection(filled: str) -> AsyncIterator[Any]:
    opened = await asyncpg.connect(filled)
    yield opened
    await opened.close()


CLAIMANT = [7, "me", "1", 10**9, 10**12, RUNS_ALONE - 1]


def lane_values(lanes: list[tuple[str, str, int]], limit: int) -> list[Any]:
    queues, types, slots = (list(column) for column in zip(*lanes, strict=True))
    return [queues, types, slots, [ANY_VERSION] * len(lanes), limit, *CLAIMANT]


def completions(ids: list[str]) -> list[Any]:
    done = [
        Transition(
            job_id=job_id,
            event=Event.COMPLETE,
            source=Status.PROCESSING,
            target=Status.COMPLETED,
            attempt=1,
            token="t",
            kind=("mine", "default", 50),
            by="w",
            result="1",
        )
        for job_id in ids
    ]
    columns = settle.completion_columns(done)
    columns[10] = [7]  # the token as add_running stores it
    return [*columns, 10**12, False, len(ids)]


def claim_values(lanes: list[tuple[str, str, int]], limit: int) -> list[Any]:
    return [*lane_values(lanes, limit), None, None, None]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lanes", [[("default", "mine", LIMIT)], [("other", "none", 9), ("default", "mine", LIMIT)]])
async def test_a_claim_does_not_walk_past_what_is_foreign(
    connection: Any, lanes: list[tuple[str, str, int]], mode: str
) -> None:
    plan = await explain(connection, SQL["claim_plain"], claim_values(lanes, LIMIT), mode)

    assert "ready_line" in plan.indexes
    assert not plan.scanned_whole & TABLES
    assert plan.rows <= 5 * LIMIT


@pytest.mark.parametrize("mode", MODES)
async def test_a_claim_from_a_single_lane_does_not_walk_past_what_is_foreign(connection: Any, mode: str) -> None:
    plan = await explain(connection, SQL["claim_lane"], ["default", "mine", LIMIT, ANY_VERSION, LIMIT, *CLAIMANT], mode)

    assert "ready_line" in plan.indexes
    assert not plan.scanned_whole & TABLES
    assert plan.rows <= 5 * LIMIT


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("statement", ["claim_lane", "claim_plain"])
async def test_a_claim_does_not_try_to_lock_what_another_is_about_to_take(
    connection: Any, filled: str, statement: str, mode: str
) -> None:
    lane = ["default", "mine", LIMIT, ANY_VERSION, LIMIT, *CLAIMANT]
    values = lane if statement == "claim_lane" else claim_values([("default", "mine", LIMIT)], LIMIT)
    other = await asyncpg.connect(filled)
    transaction = other.transaction()
    await transaction.start()
    assert len(await other.fetch(SQL["claim_lane"], *lane)) == LIMIT

    plan = await explain(connection, SQL[statement], values, mode)

    assert plan.tried_to_lock == LIMIT
    await transaction.rollback()
    await other.close()


@pytest.mark.parametrize("mode", MODES)
async def test_a_walk_along_the_lanes_takes_a_row_for_each_and_none_of_the_rest(connection: Any, mode: str) -> None:
    asked = [sorted([*(f"empty-{number}" for number in range(300)), "other"]), ["a", "mine", "none"]]

    plan = await explain(connection, SQL["lanes"], [*asked, asked[0][0], "a", 500], mode)

    assert "ready_line" in plan.indexes
    assert not plan.scanned_whole & TABLES
    assert plan.rows <= 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("known", ["nothing", "that none is pending", "all"])
async def test_a_walk_along_the_lanes_is_as_short_whatever_the_server_knows_of_the_table(
    postgres: Postgres, known: str, mode: str
) -> None:
    sql = Statements(f"lanes_{secrets.token_hex(3)}")
    store = PostgresStore(postgres.url(schema=sql.schema))
    await store.open()
    await store.close()
    connection = await asyncpg.connect(postgres.url())
    await add_pending(connection, sql, 6_000, kinds=30, analysed={"nothing": None, "all": "after"}.get(known, "before"))
    asked = [["default", "other"], sorted(f"type-{number}" for number in range(0, 30, 2))]

    plan = await explain(connection, sql["lanes"], [*asked, "default", "", 500], mode)

    await connection.close()
    assert not plan.scanned_whole & TABLES
    assert plan.rows <= 30


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("line", [0, 1])
async def test_the_heads_of_lanes_are_read_without_what_is_foreign(connection: Any, line: int, mode: str) -> None:
    lanes = [("other", "none", 9), ("default", "mine", LIMIT)]

    asked = [*lane_values(lanes, LIMIT)[:4], RUNS_ALONE - 1, line, 10**15]
    plan = await explain(connection, SQL["lane_heads"], asked, mode)

    assert plan.indexes == {"ready_line"}
    assert plan.rows <= LIMIT


@pytest.mark.parametrize("mode", MODES)
async def test_to_see_that_no_key_waits_takes_no_rows(connection: Any, mode: str) -> None:
    plan = await explain(connection, SQL["keyed_any"], [["default", "other"], ["mine", "mine"]], mode)

    assert plan.indexes == {"ready_line", "run_limit_pkey"}
    assert (plan.rows, plan.scanned_whole) == (0, set())


@pytest.mark.parametrize("mode", MODES)
async def test_a_promotion_touches_what_is_due(connection: Any, mode: str) -> None:
    plan = await explain(connection, SQL["promote"], [10**6, LIMIT], mode)

    assert "later_due" in plan.indexes
    assert not plan.scanned_whole & TABLES
    assert plan.rows <= 5 * LIMIT < 5 * DUE


@pytest.mark.parametrize("mode", MODES)
async def test_jobs_that_were_to_start_are_found_without_looking_at_any_other(connection: Any, mode: str) -> None:
    plan = await explain(connection, SQL["overdue"], [10**15, LIMIT], mode)

    assert not plan.scanned_whole & TABLES
    assert plan.rows == 0


@pytest.mark.parametrize("mode", MODES)
async def test_the_next_due_time_is_one_row(connection: Any, mode: str) -> None:
    plan = await explain(connection, SQL["next_due"], [], mode)

    assert (plan.indexes, plan.rows) == ({"later_due"}, 1)


@pytest.mark.parametrize("mode", MODES)
async def test_expired_claims_are_looked_for_among_what_runs(connection: Any, mode: str) -> None:
    plan = await explain(connection, SQL["expired"], [10, 100, ["w1"]], mode)

    assert plan.rows <= RUNNING + 3 * 100


@pytest.mark.parametrize("mode", MODES)
async def test_jobs_that_run_are_found_by_their_start_without_looking_at_any_other_job(
    connection: Any, mode: str
) -> None:
    asked = "SELECT job_id FROM backstay.running WHERE started_at < $1 ORDER BY started_at LIMIT 100"
    plan = await explain(connection, SQL.named(asked), [2**60], mode)

    assert plan.rows <= 2 * RUNNING


@pytest.mark.parametrize("mode", MODES)
async def test_a_settlement_touches_its_own_jobs(connection: Any, mode: str) -> None:
    running = await connection.fetch(SQL.named("SELECT job_id FROM backstay.running LIMIT 10"))
    ids = [str(row[0]) for row in running]
    values = completions(ids)

    plan = await explain(connection, SQL["complete"], values, mode)

    assert "running_pkey" in plan.indexes
    assert not plan.scanned_whole & TABLES
    assert plan.rows <= 2 * len(ids)  # each claim is found, and deleted; the facts are not read


@pytest.mark.parametrize("statement", ["complete", "extend", "note"])
@pytest.mark.parametrize("known", ["nothing", "that none runs"])
async def test_a_large_settlement_touches_its_own_jobs_whatever_the_server_knows_of_the_table(
    postgres: Postgres, known: str, statement: str
) -> None:
    """A backlog was just loaded, or begun: the server takes what it has not seen yet for rare."""
    sql = Statements(f"unknown_{secrets.token_hex(3)}")
    store = PostgresStore(postgres.url(schema=sql.schema))
    await store.open()
    await store.close()
    connection = await asyncpg.connect(postgres.url())
    await add_running(connection, sql, 3_000, analysed_before=known == "that none runs")
    ids = [str(row[0]) for row in await connection.fetch(sql.named("SELECT job_id FROM backstay.running LIMIT 500"))]
    holds = [ids, [1] * 500, [7] * 500]
    values = {
        "complete": completions(ids),
        "extend": [*holds, 10**6, 10**12],
        "note": [*holds, [0.5] * 500, *[[None] * 500] * 5, 10**12],
    }[statement]

    plan = await explain(connection, sql[statement], values, "force_custom_plan")

    await connection.close()
    assert plan.rows <= 3 * len(ids)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("query", "index", "most"),
    [
        (Query(status=Status.FAILED, limit=LIMIT), "ended_state", 4 * (LIMIT + 1)),
        (Query(status=Status.FAILED, limit=500), "ended_state", 4 * FAILED),
        (Query(status=Status.RETRYING, limit=LIMIT), "later_pkey", DUE + 2_000 + 3 * (LIMIT + 1)),
        (Query(subject="song-17", limit=LIMIT), "job_subject", 4 * (LIMIT + 1)),
        (Query(subject="song-17", status=Status.PENDING, limit=LIMIT), "job_subject", 10),
        (Query(limit=LIMIT), "job_pkey", 3 * (LIMIT + 1)),
    ],
    ids=str,
)
async def test_a_search_goes_through_the_index_of_what_it_asks_for(
    connection: Any, query: Query, index: str, most: int, mode: str
) -> None:
    statement, values = read.search(query)

    plan = await explain(connection, SQL.named(statement), values, mode)

    assert index in plan.indexes
    assert not plan.scanned_whole & TABLES
    assert plan.rows <= most


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("query", "index"),
    [
        (Query(queue="nowhere", limit=LIMIT), "job_pkey"),
        (Query(status=Status.COMPLETED, tag="rare", limit=LIMIT), "ended_pkey"),
        (Query(status=Status.PENDING, created_by="nobody", limit=LIMIT), "job_pkey"),
        (Query(status=Status.FAILED, created_by="nobody", limit=LIMIT), "ended_state"),
    ],
    ids=str,
)
async def test_a_search_that_nothing_narrows_looks_at_a_window(
    connection: Any, query: Query, index: str, mode: str
) -> None:
    start = SQL.named(read.window_of(query.status))
    newest = await explain(connection, start, ["ffffffff-ffff-ffff-ffff-ffffffffffff", 50], mode)
    assert index in newest.indexes
    assert newest.rows <= 51
    floor = await connection.fetchval(start, "ffffffff-ffff-ffff-ffff-ffffffffffff", 50)

    statement, values = read.search(query, (floor, "ffffffff-ffff-ffff-ffff-ffffffffffff"))
    plan = await explain(connection, SQL.named(statement), values, mode)

    assert index in plan.indexes
    assert not plan.scanned_whole & TABLES
    assert plan.rows <= 5 * 50


@pytest.mark.parametrize("statement", ["counts", "depths", "lined"])
@pytest.mark.parametrize("known", ["nothing", "that none is pending", "all"])
async def test_what_counts_jobs_looks_at_few_of_them_whatever_the_server_knows_of_the_table(
    postgres: Postgres, known: str, statement: str
) -> None:
    sql = Statements(f"depths_{secrets.token_hex(3)}")
    store = PostgresStore(postgres.url(schema=sql.schema))
    await store.open()
    await store.close()
    connection = await asyncpg.connect(postgres.url())
    await add_pending(connection, sql, 3_000, kinds=10, analysed={"nothing": None, "all": "after"}.get(known, "before"))
    await connection.execute(
        sql.named(
            "INSERT INTO backstay.tally (shard, job_type, queue, priority, status, count)"
            " SELECT -1, job_type, queue, priority, 'stored', count(*) FROM backstay.ready GROUP BY 2, 3, 4"
        )
    )

    values = [None, None, 5, 101, 0, str(uuid.UUID(int=0))] if statement == "lined" else []
    plan = await explain(connection, sql[statement], values, "force_custom_plan")

    await connection.close()
    assert statement == "counts" or "ready_line" in plan.indexes
    assert plan.rows <= 10 * 100  # kinds
    assert not plan.scanned_whole & {"job", "ready", "ended", "later", "waiting"}


@pytest.mark.parametrize("off", [*([way] for way in WAYS), WAYS[:8], WAYS], ids=lambda off: "+".join(off))
async def test_a_claim_never_takes_more_than_its_limit_however_it_is_planned(
    filled: str, connection: Any, off: list[str]
) -> None:
    other = await asyncpg.connect(filled)
    values = claim_values([("default", "mine", 5), ("other", "mine", 5), ("default", "foreign", LIMIT)], LIMIT)
    taken = []
    for each in (connection, other):
        await each.execute("BEGIN")
        for way in off:
            await each.execute(f"SET LOCAL enable_{way} = off")
        taken.append([row[0] for row in await each.fetch(SQL["claim_plain"], *values)])
    for each in (connection, other):
        await each.execute("ROLLBACK")
    await other.close()

    assert [len(ids) for ids in taken] == [LIMIT, LIMIT]
    assert len(set(taken[0] + taken[1])) == 2 * LIMIT


async def test_a_type_takes_no_more_than_its_slots_over_all_its_queues(connection: Any) -> None:
    await connection.execute("BEGIN")
    taken = await connection.fetch(
        SQL["claim_plain"], *claim_values([("default", "mine", 5), ("other", "mine", 5)], 99)
    )
    await connection.execute("ROLLBACK")

    assert len(taken) == 5 < MINE
