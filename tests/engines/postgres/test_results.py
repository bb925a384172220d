"""Result tables on PostgreSQL: real tables with real types, made once by whoever may."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from backstay import Backstay, ConfigurationError, Context, ResultRow, Vector
from backstay.clock import to_datetime
from backstay.core.records import Verdict
from backstay.core.result_tables import RowBatch
from backstay.engines.postgres import results
from backstay.engines.postgres.connection import Statements
from backstay.engines.postgres.store import PostgresStore
from backstay.errors import StoreUnsafe
from backstay.testing import drain
from backstay.testing.conformance.factories import NOW, running, settle
from backstay.testing.conformance.test_results import POINTS, TABLES, VECTORS, WORDS, put, vector, words
from tests.engines.postgres.query_plans import explain, rows
from tests.support.servers.postgres import Postgres

MODES = ["force_custom_plan", "force_generic_plan"]
JOBS, ROWS = 1_000, 50


class Point(ResultRow, table="points_of_sql", key="number"):
    number: int
    at: Vector[3]
    data: dict[str, float] = {}  # noqa: RUF012


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url(schema=f"results_{secrets.token_hex(4)}")


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(url)
    await opened.open()
    yield opened
    await opened.close()


def schema_of(url: str) -> str:
    return url.partition("schema=")[2]


async def test_whoever_knows_sql_finds_tables_with_their_own_types(url: str, postgres: Postgres) -> None:
    app = Backstay(url)

    @app.job("put", results=[Point])
    async def put_points(payload: Any, ctx: Context) -> None:
        await ctx.results(Point).put(Point(number=n, at=[n, 0, 0], data={"n": n}) for n in range(5))

    async with app:
        job = await put_points.submit(None)
        await drain(app)
        await job.result(timeout=10)
    connection = await asyncpg.connect(postgres.url())
    table = f'"{schema_of(url)}".result_points_of_sql'
    kinds = await connection.fetch(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = $1::regclass AND attnum > 0",
        table,
    )
    nearest = await connection.fetchval(f"SELECT number FROM {table} ORDER BY at <-> '[3.2, 0, 0]' LIMIT 1")
    await connection.close()

    assert (
        dict(map(tuple, kinds)).items()
        >= {
            "job_id": "uuid",
            "created_at": "timestamp with time zone",
            "number": "bigint",
            "at": "vector(3)",
            "data": "json",
        }.items()
    )
    assert nearest == 3


async def test_many_who_start_at_once_make_a_table_once(url: str, store: PostgresStore) -> None:
    others = [PostgresStore(url) for _ in range(6)]
    for each in others:
        await each.open()

    answers = await asyncio.gather(*(each.declare([*TABLES, VECTORS]) for each in others))

    assert sorted(map(len, answers)) == [0] * 5 + [4]
    assert len(await store.result_tables()) == 4
    for each in others:
        await each.close()


async def made_role(connection: Any, *rights: str) -> str:
    name = f"role_{secrets.token_hex(4)}"
    await connection.execute(f"CREATE ROLE {name} LOGIN")
    for right in rights:
        await connection.execute(right.format(role=name))
    return name


def as_role(url: str, role: str) -> str:
    return url.replace("//postgres@", f"//{role}@")


async def test_a_role_that_may_not_make_tables_uses_those_that_there_are(
    url: str, store: PostgresStore, postgres: Postgres
) -> None:
    await store.declare([WORDS])
    connection = await asyncpg.connect(postgres.url())
    schema = schema_of(url)
    role = await made_role(
        connection,
        f'GRANT USAGE ON SCHEMA "{schema}" TO {{role}}',
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO {{role}}',
        f'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "{schema}" TO {{role}}',
    )
    lesser = PostgresStore(as_role(url, role))
    await lesser.open()

    assert await lesser.declare([WORDS]) == []
    claim = await running(lesser)
    await put(lesser, claim, WORDS, *words("cat"))
    with pytest.raises(ConfigurationError, match="is not allowed to create or change a result table"):
        await lesser.declare([POINTS])

    await lesser.close()
    await connection.close()


async def test_where_there_is_no_pgvector_it_says_what_to_do(postgres: Postgres) -> None:
    connection = await asyncpg.connect(postgres.url())
    role = await made_role(connection)
    database = f"bare_{secrets.token_hex(4)}"
    await connection.execute(f"CREATE DATABASE {database}")
    elsewhere = postgres.url(schema="bare").replace("/postgres?", f"/{database}?")
    inside = await asyncpg.connect(elsewhere.partition("?")[0])
    await inside.execute(f"CREATE SCHEMA bare AUTHORIZATION {role}")
    store = PostgresStore(as_role(elsewhere, role))
    await store.open()

    with pytest.raises(
        ConfigurationError, match=r"vectors.embedding is a vector.*CREATE EXTENSION vector.*list\[float\]"
    ):
        await store.declare([WORDS, VECTORS])
    assert await store.result_tables() == []
    await inside.execute("CREATE EXTENSION vector")
    assert await store.declare([WORDS, VECTORS]) == ["words", "vectors"]
    claim = await running(store)
    await put(store, claim, VECTORS, (1, vector(1, 2, 3)))

    await store.close()
    await inside.close()
    await connection.execute(f"DROP DATABASE {database}")
    await connection.close()


async def test_rows_of_a_job_that_sql_removes_go_with_it(url: str, store: PostgresStore, postgres: Postgres) -> None:
    await store.declare([WORDS, POINTS])
    gone = await running(store, job_type="report", subject="rule:7")
    kept = await running(store, job_type="report", subject="rule:8")
    for claim in (gone, kept):
        await put(store, claim, WORDS, *words("cat", "dog"))
        await settle(store, claim.completes())
    connection = await asyncpg.connect(postgres.url())
    schema = schema_of(url)

    await connection.fetchval(f"SELECT \"{schema}\".drop_jobs('report', 'rule:7', 'me')")

    left = await connection.fetch(f'SELECT DISTINCT job_id::text FROM "{schema}".result_words')
    await connection.close()
    assert [each for (each,) in left] == [kept.job_id]


async def test_a_run_that_is_cancelled_between_two_parts_marks_no_table(url: str, store: PostgresStore) -> None:
    """The look at the claim takes no lock: the mark, which is a write, is guarded by itself."""
    await store.declare([WORDS, POINTS])
    claim = await running(store)
    await put(store, claim, WORDS, *words("cat"))
    await settle(store, claim.gives_back())

    answer = await store.put_rows([RowBatch(claim.hold, POINTS, 0, ((1, 0.5),))], NOW)

    assert answer == [Verdict.STALE]
    [job] = await store.get([claim.job_id])
    assert job is not None
    assert job.result_tables == ("words",)


# How the server runs the statements


_CROWD = (
    rows("completed", count=JOBS, job_type="'crowd'"),
    "INSERT INTO backstay.result_words (job_id, bs_attempt, bs_part, created_at, word, topic, count)"
    " SELECT job_id, 1, 0, now() + random() * interval '1 day', n::text, (ARRAY['pets', 'oaks', 'fish'])[1 + n % 3], n"
    f" FROM backstay.job, generate_series(1, {ROWS}) AS n WHERE job_type = 'crowd'",
    "ANALYZE backstay.result_words",
    "ANALYZE backstay.job, backstay.ended",
)


@pytest.fixture
async def crowd(url: str, store: PostgresStore, postgres: Postgres) -> AsyncIterator[tuple[Any, str]]:
    """Rows of many jobs, all younger, and a job of whose rows a page is read."""
    await store.declare([WORDS])
    claim = await running(store, subject="town", job_type="report")
    await put(store, claim, WORDS, *words(*(f"{n:03d}" for n in range(200))))
    await settle(store, claim.completes())
    connection = await asyncpg.connect(postgres.url())
    sql = Statements(schema_of(url))
    for statement in _CROWD:
        await connection.execute(sql.named(statement))
    yield connection, claim.job_id
    await connection.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("key", "after", "subject", "values", "rows"),
    [
        (False, False, False, [], 10),
        (False, True, False, ["100"], 10),
        (True, False, False, ["100"], 1),
        (False, True, True, ["100", "pets"], 10),
    ],
    ids=["first page", "following page", "one row", "of a subject"],
)
async def test_a_page_touches_its_own_rows(
    url: str, crowd: tuple[Any, str], mode: str, key: bool, after: bool, subject: bool, values: list[Any], rows: int
) -> None:
    connection, job_id = crowd
    statement = results.page(schema_of(url), WORDS, WORDS.columns, key, after, subject)

    plan = await explain(connection, statement, [job_id, 10, *values], mode)

    assert "result_words_pkey" in plan.indexes
    assert "result_words" not in plan.scanned_whole
    assert plan.rows <= rows + 3  # and of the job its facts, its place, and a row more


@pytest.mark.parametrize("mode", MODES)
async def test_a_page_of_a_subject_touches_its_own_rows(url: str, crowd: tuple[Any, str], mode: str) -> None:
    connection, job_id = crowd
    first = results.by_subject(schema_of(url), WORDS, WORDS.columns, False)
    following = results.by_subject(schema_of(url), WORDS, WORDS.columns, True)
    place = [to_datetime(NOW - 10**9).isoformat(), job_id, "100"]

    for statement, values in ((first, ["pets", 10]), (following, ["pets", 10, *place])):
        plan = await explain(connection, statement, values, mode)
        assert "result_words_subject" in plan.indexes
        assert "result_words" not in plan.scanned_whole
        assert plan.rows <= 21


@pytest.mark.parametrize("mode", MODES)
async def test_removing_touches_the_rows_of_the_job(url: str, crowd: tuple[Any, str], mode: str) -> None:
    connection, job_id = crowd

    plan = await explain(connection, results.drop(schema_of(url), "words"), [job_id, 5], mode)

    assert plan.indexes == {"result_words_pkey"}
    assert plan.rows <= 3 * 5


async def test_a_table_that_is_not_ours_does_not_become_a_result_table(url: str, store: PostgresStore) -> None:
    connection = await asyncpg.connect(url.partition("?")[0])
    await connection.execute(f"CREATE TABLE {results.name_of(schema_of(url), WORDS.name)} (theirs int)")
    await connection.close()

    with pytest.raises(StoreUnsafe, match="another name"):
        await store.declare([WORDS])
