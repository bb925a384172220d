"""Import of an embedding queue, made by the SQL of its document."""

from __future__ import annotations

import psycopg
import pytest

from backstay import Backstay
from backstay.imports import opened
from tests.imports.conftest import ENGINES, Place, database, imported, refused
from tests.imports.embedding_source import DEAD_LETTERS, facts, facts_of, make
from tests.imports.facts import digest, jobs_of
from tests.support.servers.postgres import Postgres


@pytest.fixture
def source(postgres: Postgres) -> str:
    """The address of a database of its own."""
    url = database(postgres)
    make(url, 60)
    return url


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_job_is_the_same_on_every_engine(source: str, place: Place, engine: str) -> None:
    async with Backstay(place(engine)) as app:
        report = await imported(app, "embedding-jobs", source)

        assert (report.imported, report.compared, report.changed) == (60, 60, 0)
        assert digest([facts_of(job) async for job in jobs_of(app)]) == digest(facts(source))


async def test_a_text_that_was_embedded_is_not_embedded_again(source: str, place: Place) -> None:
    app = Backstay(place("sqlite"))
    app.job("embedding", queue="embeddings")(lambda payload: payload)
    async with app:
        await imported(app, "embedding-jobs", source)
        [done] = await app.find(status="completed", limit=1)

        again = await app.submit("embedding", done.payload, content_hash=done.content_hash, reuse=True)

        assert (await app.get(again.job_id)).result == done.result
        assert (done.queue, done.subject) == ("embeddings", f"rule:{done.payload['rule_id']}")


async def test_a_retrying_job_waits_as_long_as_before(source: str, place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        await imported(app, "embedding-jobs", source)

        for job in await app.find(status="retrying"):
            if "was running" not in (job.last_error or ""):
                assert job.started_at is not None
                assert (job.scheduled_for - job.started_at).total_seconds() == 60  # min(300, 30·2^1)


async def test_a_running_job_at_its_last_attempt_gets_one_more(source: str, place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        await imported(app, "embedding-jobs", source)

        running = [job for job in await app.find(status="retrying") if "was running" in (job.last_error or "")]
        assert {job.max_attempts - job.failures for job in running if job.failures == 3} == {1}
        assert all(job.failures < job.max_attempts for job in running)


async def test_dead_letters_that_were_taken_out_of_the_queue_are_imported_from_their_copy(
    source: str, place: Place
) -> None:
    with psycopg.connect(source) as connection:
        connection.execute(DEAD_LETTERS)
        connection.execute("DELETE FROM embedding_jobs WHERE status = 'failed' AND priority = 'low'")
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "embedding-jobs", source)

        assert report.imported == 60
        assert (await app.counts())["failed"] == 12


async def test_the_source_is_opened_read_only(source: str) -> None:
    async with opened("embedding-jobs", source) as found:
        with pytest.raises(Exception, match="read-only transaction"):
            await found._tables.connection.execute("DELETE FROM embedding_jobs")


async def test_another_table_is_refused(source: str) -> None:
    await refused("embedding-jobs", f"{source}?table=rules", "there is no table rules with a column rule_id")
    await refused("embedding-jobs", "dynamodb://x", "postgresql://")
