"""Import of a queue that PgQueuer has made and worked on."""

from __future__ import annotations

import psycopg
import pytest

from backstay import Backstay
from backstay.imports import opened
from tests.imports.conftest import ENGINES, Place, database, imported, planned, refused
from tests.imports.facts import digest, jobs_of
from tests.imports.pgqueuer_source import facts, facts_of, make
from tests.support.servers.postgres import Postgres

EACH = 3  # jobs of each kind
JOBS = 8 * EACH + 3


@pytest.fixture
async def source(postgres: Postgres) -> str:
    url = database(postgres)
    await make(url, EACH)
    return url


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_job_is_the_same_on_every_engine(source: str, place: Place, engine: str) -> None:
    async with Backstay(place(engine)) as app:
        before = list(facts(source))

        report = await imported(app, "pgqueuer", source)

        assert (report.imported, report.compared, report.changed) == (JOBS, JOBS, 0)
        assert digest([facts_of(job) async for job in jobs_of(app)]) == digest(before) == digest(facts(source))


async def test_the_plan_says_what_becomes_of_which_jobs(source: str, place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        plan = await planned(app, "pgqueuer", source)

        assert {(line.job_type, line.state, line.becomes, line.count) for line in plan.lines} == {
            ("send", "successful", "completed", EACH),
            ("fail", "exception", "failed", EACH),
            ("hold", "failed", "failed", EACH),
            ("later", "queued", "retrying", EACH),
            ("send", "deleted", "cancelled", EACH),
            ("send", "queued", "scheduled", EACH),
            ("send", "queued", "pending", EACH + 3),
            ("draw", "picked", "retrying", EACH),
        }


async def test_a_payload_is_json_or_text_or_bytes(source: str, place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        await imported(app, "pgqueuer", source)

        payloads = [job.payload for job in await app.find(status="pending", job_type="send", limit=100)]
        assert {"base64": "/wA="} in payloads
        assert "plain text" in payloads
        assert None in payloads


async def test_a_job_keeps_its_headers_as_tags_and_its_traceback(source: str, place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        await imported(app, "pgqueuer", source)

        assert len(await app.find(tag="tenant=north")) == EACH
        [job, *_] = await app.find(job_type="hold")
        assert job.last_error == "ValueError: no ink"
        assert "raise ValueError" in job.errors[-1]["traceback"]


async def test_a_dedupe_key_still_refuses_a_second_job(source: str, place: Place) -> None:
    app = Backstay(place("sqlite"))
    app.job("send")(lambda payload: payload)
    async with app:
        await imported(app, "pgqueuer", source)

        assert (await app.submit("send", {}, dedup_key="once-0")).deduplicated


async def test_waiting_jobs_run(source: str, place: Place) -> None:
    app = Backstay(place("sqlite"))
    ran = []

    @app.job("draw")
    async def draw(payload: dict[str, object]) -> None:
        ran.append(payload["pages"])

    async with app:
        await imported(app, "pgqueuer", source)
        async with app.worker():
            for job in await app.find(job_type="draw"):
                await app.result(job.job_id, timeout=30)

    assert sorted(ran) == list(range(EACH))


async def test_broken_rows_are_named_and_the_others_imported(source: str, place: Place) -> None:
    with psycopg.connect(source) as connection:
        rows = connection.execute("SELECT id FROM pgqueuer WHERE entrypoint = 'draw' ORDER BY id").fetchall()
        (first,), (second,), *_ = rows
        connection.execute("UPDATE pgqueuer SET headers = '[1]' WHERE id = %s", (first,))
        connection.execute("UPDATE pgqueuer SET created = '1066-10-14' WHERE id = %s", (second,))
        connection.execute("UPDATE pgqueuer_log SET traceback = '7' WHERE entrypoint = 'hold'")
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "pgqueuer", source)

        assert report.imported == JOBS - 2 - EACH
        named = {each.reason: each.examples for each in report.plan.refused}
        assert named["it is not as its system makes them: created_at: expected `int` >= 0"] == (str(second),)
        assert str(first) in named["it is not as its system makes them (AttributeError)"]


async def test_the_source_is_opened_read_only(source: str) -> None:
    async with opened("pgqueuer", source) as found:
        with pytest.raises(Exception, match="read-only transaction"):
            await found._tables.connection.execute("DELETE FROM pgqueuer")


async def test_another_database_is_refused(postgres: Postgres) -> None:
    await refused("pgqueuer", postgres.url(), "there is no table pgqueuer with a column id")
    await refused("pgqueuer", "dynamodb://x", "postgresql://")
