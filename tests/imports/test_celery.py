"""Import of queues and results that Celery has made and worked on, in a real Redis."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from redis import Redis as Client

from backstay import Backstay
from backstay.imports.importer import Part
from tests.imports.celery_source import LATER, TASK, celery, facts_of, linked, make, ordered, result_of, taken, typed
from tests.imports.conftest import ENGINES, Place, imported, planned, refused
from tests.imports.facts import digest, jobs_of
from tests.imports.letters import app_of

EACH = 3  # tasks of each kind
JOBS = 7 * EACH


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("serializer", ["json", "pickle"])
async def test_every_task_is_the_same_on_every_engine(
    redis_url: str, place: Place, engine: str, serializer: str
) -> None:
    settings = {"task_serializer": serializer, "accept_content": ["json", "pickle"], "result_serializer": serializer}
    expected = [tuple(each) for each in celery(make, redis_url, EACH, **settings)]
    async with app_of(place(engine), TASK) as app:
        report = await imported(app, "celery", redis_url)

        assert (report.imported, report.compared, report.changed) == (JOBS, JOBS, 0)
        assert digest([facts_of(job) async for job in jobs_of(app)]) == digest(expected)


async def test_waiting_tasks_run_in_their_order(redis_url: str, place: Place) -> None:
    celery(ordered, redis_url)
    async with app_of(place("sqlite"), TASK) as app:
        await imported(app, "celery", redis_url)
        async with app.worker(concurrency=1):
            for job in await app.find():
                await app.result(job.job_id, timeout=30)

        ran = sorted(await app.find(), key=lambda job: job.started_at or LATER)
        assert [job.result for job in ran] == ["0", "1", "2", "3", "4", "middle", "last"]


async def test_a_result_is_found_by_the_id_of_its_task(redis_url: str, place: Place) -> None:
    celery(make, redis_url, 1)
    async with app_of(place("sqlite"), TASK) as app:
        await imported(app, "celery", redis_url, part=Part.ENDED)

        [job] = await app.find(status="completed")
        assert celery(result_of, redis_url, job.job_id) == await app.result(job.job_id) == {"sent": True, "to": "Zoë"}


async def test_a_result_without_the_name_of_its_task_is_kept_under_another(redis_url: str, place: Place) -> None:
    celery(make, redis_url, 1, result_extended=False)
    async with app_of(place("sqlite"), TASK) as app:
        report = await imported(app, "celery", redis_url)

        [job] = await app.find(status="completed")
        assert (job.job_type, job.result) == ("celery.unnamed", {"sent": True, "to": "Zoë"})
        assert any("--rename celery.unnamed=TYPE" in note for note in report.plan.notes)


async def test_results_may_be_in_another_database(redis_url: str, redis_url_too: str, place: Place) -> None:
    celery(make, redis_url, EACH, results=redis_url_too)
    async with app_of(place("sqlite"), TASK) as app:
        report = await imported(app, "celery", f"{redis_url}?results={redis_url_too}")

        assert report.imported == JOBS


async def test_a_task_that_a_worker_has_taken_is_imported_too(redis_url: str, place: Place) -> None:
    celery(taken, redis_url)
    async with app_of(place("sqlite"), TASK) as app:
        plan = await planned(app, "celery", redis_url)

        assert [(line.becomes, line.note) for line in plan.lines] == [
            ("pending", "a worker had taken it and not acknowledged it")
        ]


async def test_times_and_ids_in_arguments_become_text(redis_url: str, place: Place) -> None:
    celery(typed, redis_url)
    async with app_of(place("sqlite"), TASK) as app:
        await imported(app, "celery", redis_url)

        [job] = await app.find()
        assert job.payload == {"to": "a", "pages": {"at": LATER.isoformat(), "id": str(UUID(int=7))}}


async def test_what_only_celery_can_continue_is_listed_with_the_reason(redis_url: str, place: Place) -> None:
    celery(linked, redis_url)
    async with app_of(place("sqlite"), TASK) as app:
        report = await imported(app, "celery", redis_url)

        assert sorted(each.reason.partition(",")[0] for each in report.plan.refused) == [
            "it expires",
            "it has a chain",
            "it has a link",
        ]
        assert sorted(job.payload["to"] for job in await app.find()) == ["f", "g"]


async def test_what_is_no_message_is_named_and_the_others_imported(redis_url: str, place: Place) -> None:
    celery(ordered, redis_url)
    client = Client.from_url(redis_url)
    good = json.loads(client.lrange("mail", 0, 0)[0])
    broken: list[tuple[Any, str]] = [
        (b"\xff\xfe", "it is not a message of Celery's protocol 2"),
        ([1, 2], "it is not a message of Celery's protocol 2"),
        ({"task": "old", "id": "x", "args": []}, "it is not a message of Celery's protocol 2"),
        ({**good, "headers": {**good["headers"], "id": "1", "retries": "two"}}, "retries is not a whole number"),
        ({**good, "headers": {**good["headers"], "id": 2}}, "it has no id"),
        (
            {**good, "headers": {**good["headers"], "id": "3"}, "body": "abc"},
            "it is not as its system makes them (Error)",
        ),
        (
            {**good, "headers": {**good["headers"], "id": "4", "compression": "application/x-gzip"}},
            "as its system makes them (error)",
        ),
        ({**good, "headers": {**good["headers"], "id": "5"}, "body": "W10="}, "(ValueError)"),
    ]
    for message, _ in broken:
        client.lpush("mail", message if isinstance(message, bytes) else json.dumps(message))
    client.set("celery-task-meta-6", b"\xff")
    client.set("celery-task-meta-7", json.dumps(["SUCCESS"]))
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "celery", redis_url)

        reasons = [each.reason for each in report.plan.refused]
        assert [why for _, why in broken if not any(why in reason for reason in reasons)] == []
        assert {"its result is not JSON", "its result is not one of Celery"} < set(reasons)
        assert (report.imported, report.plan.unmapped) == (7, len(broken) + 2)


async def test_nothing_in_redis_is_changed(redis_url: str, place: Place) -> None:
    celery(make, redis_url, 1)
    client = Client.from_url(redis_url)
    before = {key: client.dump(key) for key in client.scan_iter()}
    async with Backstay(place("sqlite")) as app:
        await imported(app, "celery", redis_url)

    assert {key: client.dump(key) for key in client.scan_iter()} == before


async def test_another_database_is_refused(redis_url: str) -> None:
    await refused("celery", redis_url, "has no messages or results")
    await refused("celery", "amqp://x", "redis://")
