"""Import of a queue that Procrastinate has made and worked on."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from backstay import Backstay
from backstay.imports import opened
from tests.imports.conftest import ENGINES, Place, database, imported, planned, refused
from tests.imports.facts import digest, jobs_of
from tests.imports.letters import Letter
from tests.imports.procrastinate_source import an_app, facts, facts_of, in_an_hour, make
from tests.support.servers.postgres import Postgres

EACH = 3  # jobs of each kind


@pytest.fixture
async def source(postgres: Postgres) -> str:
    url = database(postgres)
    await make(url, EACH)
    return url


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_job_is_the_same_on_every_engine(source: str, place: Place, engine: str) -> None:
    async with Backstay(place(engine)) as app:
        before = list(facts(source))

        report = await imported(app, "procrastinate", source)

        assert (report.imported, report.compared, report.changed) == (7 * EACH, 7 * EACH, 0)
        assert digest([facts_of(job) async for job in jobs_of(app)]) == digest(before) == digest(facts(source))


async def test_the_plan_says_what_becomes_of_which_jobs(source: str, place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        plan = await planned(app, "procrastinate", source)

        assert {(line.job_type, line.state, line.becomes, line.queue, line.count) for line in plan.lines} == {
            ("reports.send", "succeeded", "completed", "mail", EACH),
            ("reports.send", "failed", "failed", "mail", EACH),
            ("reports.draw", "todo", "retrying", "pictures", EACH),
            ("reports.send", "cancelled", "cancelled", "mail", EACH),
            ("reports.send", "doing", "retrying", "mail", EACH),
            ("reports.send", "todo", "scheduled", "mail", EACH),
            ("reports.send", "todo", "pending", "mail", EACH),
        }


async def test_a_failed_attempt_is_tried_again_when_it_would_have_been(source: str, place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        await imported(app, "procrastinate", source)

        jobs = await app.find(job_type="reports.draw")
        assert all(in_an_hour(job.scheduled_for) for job in jobs)
        assert {(job.attempt, job.failures) for job in jobs} == {(1, 1)}


async def test_waiting_jobs_run_and_those_with_one_lock_never_at_the_same_time(source: str, place: Place) -> None:
    app = Backstay(place("sqlite"))
    running, most, ran = 0, 0, []

    @app.job("reports.send", queue="mail")
    async def send(payload: Letter) -> None:
        nonlocal running, most
        if payload.to == "f":
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            running -= 1
        ran.append((payload.to, payload.pages))

    async with app:
        await imported(app, "procrastinate", source)
        waiting = [*await app.find(status="pending"), *await app.find(status="retrying", job_type="reports.send")]
        async with app.worker(concurrency=10, queues=["mail"]):
            for job in waiting:
                await app.result(job.job_id, timeout=30)

    assert sorted(ran) == sorted((to, n) for to in "df" for n in range(EACH))
    assert most == 1


async def test_a_queueing_lock_still_refuses_a_second_job(source: str, place: Place) -> None:
    app = Backstay(place("sqlite"))
    app.job("reports.send", queue="mail")(lambda payload: payload)
    async with app:
        await imported(app, "procrastinate", source)

        again = await app.submit("reports.send", {"to": "f", "pages": 0}, dedup_key="once-0")

        assert again.deduplicated
        assert (await app.find(tag=str(await _waiting_id(source))))[0].job_id == again.job_id


async def _waiting_id(source: str) -> Any:
    with psycopg.connect(source) as connection:
        row = connection.execute("SELECT id FROM procrastinate_jobs WHERE queueing_lock = 'once-0'").fetchone()
        assert row is not None
        return row[0]


async def test_what_cannot_be_imported_is_listed_with_the_reason(source: str, place: Place) -> None:
    with psycopg.connect(source) as connection:
        connection.execute(
            "UPDATE procrastinate_jobs SET abort_requested = true WHERE id ="
            " (SELECT min(id) FROM procrastinate_jobs WHERE status = 'doing')"
        )
    procrastinate = an_app(source)
    async with procrastinate.open_async():
        await procrastinate.configure_task("builtin:procrastinate.builtin_tasks.remove_old_jobs").defer_async(
            max_hours=1
        )
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "procrastinate", source)

        assert report.imported == 7 * EACH - 1
        assert [(each.state, each.reason.partition(":")[0]) for each in report.plan.refused] == [
            ("doing", "it was told to stop and has not yet"),
            ("todo", "a task of Procrastinate itself"),
        ]


async def test_jobs_of_two_databases_are_told_apart_by_a_name(source: str, place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        await imported(app, "procrastinate", source)

        report = await imported(app, "procrastinate", f"{source}?name=shop")

        assert (report.imported, report.not_imported) == (7 * EACH - EACH, EACH)
        assert len(await app.find(tag="shop-1")) == 1


async def test_the_source_is_opened_read_only(source: str) -> None:
    async with opened("procrastinate", source) as found:
        with pytest.raises(Exception, match="read-only transaction"):
            await found._tables.connection.execute("DELETE FROM procrastinate_jobs")


async def test_another_database_is_refused(postgres: Postgres) -> None:
    await refused("procrastinate", postgres.url(), "there is no table procrastinate_jobs")
    await refused("procrastinate", "dynamodb://x", "postgresql://")
