"""Import of a Delphi job queue, made as the document's text and as its code make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from backstay import Backstay
from tests.imports.conftest import ENGINES, Place, imported, planned, refused
from tests.imports.delphi_source import (
    create_as_the_text_says,
    create_job_queue_table,
    facts,
    facts_of,
    item,
    job_id,
    make,
    scanned,
)
from tests.imports.facts import digest, jobs_of

FORMS = {"text": create_as_the_text_says, "code": create_job_queue_table}


@pytest.fixture(params=FORMS)
def table(request: pytest.FixtureRequest, boto: Any, table_address: str) -> Any:
    return FORMS[request.param](boto, urlsplit(table_address).netloc)


@pytest.fixture
def text_table(boto: Any, table_address: str) -> Any:
    return create_as_the_text_says(boto, urlsplit(table_address).netloc)


def waits_for(number: int, *others: int, **changes: Any) -> dict[str, Any]:
    return item(number) | {"status": "PENDING", "dependencies": [job_id(each) for each in others]} | changes


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_job_is_the_same_on_every_engine(table: Any, table_address: str, place: Place, engine: str) -> None:
    make(table, 60)
    async with Backstay(place(engine)) as app:
        report = await imported(app, "delphi", table_address)

        assert (report.imported, report.compared, report.changed) == (60, 60, 0)
        assert digest([facts_of(job) async for job in jobs_of(app)]) == digest(facts(table))


async def test_nothing_in_the_table_is_changed(table: Any, table_address: str, place: Place) -> None:
    make(table, 20)
    before = sorted(scanned(table), key=lambda each: each["job_id"])
    async with Backstay(place("sqlite")) as app:
        await imported(app, "delphi", table_address)

    assert sorted(scanned(table), key=lambda each: each["job_id"]) == before


async def test_a_waiting_job_starts_after_the_jobs_that_it_depends_on(
    text_table: Any, table_address: str, place: Place
) -> None:
    app = Backstay(place("sqlite"))
    ran: list[str] = []

    async def note(payload: dict[str, Any], ctx: Any) -> None:
        ran.append(ctx.job_id)

    for name in ("PCA", "UMAP", "REPORT", "FULL_PIPELINE"):
        app.job(name)(note)
    text_table.put_item(Item=waits_for(5, 0, 1, 2))  # on one that waits, one that runs, one that has completed
    for number in (0, 1, 2):
        text_table.put_item(Item=item(number))
    async with app:
        await imported(app, "delphi", table_address)

        waiting = await app.get(job_id(5))
        assert waiting.status == "waiting"
        assert set(waiting.dependencies) == {job_id(each) for each in (0, 1, 2)}
        async with app.worker(concurrency=1, poll_interval=0.05):
            await app.result(job_id(5), timeout=20)
        assert set(ran[:2]) == {job_id(0), job_id(1)} and ran[2:] == [job_id(5)]


async def test_a_job_that_waits_for_one_imported_before_looks_at_how_that_ended(
    text_table: Any, table_address: str, place: Place
) -> None:
    text_table.put_item(Item=item(0))
    async with Backstay(place("sqlite")) as app:
        await imported(app, "delphi", table_address)
        await app.cancel(job_id(0))
        text_table.put_item(Item=waits_for(5, 0))

        report = await imported(app, "delphi", table_address)

        assert report.imported == 1
        assert (await app.get(job_id(5))).status == "cancelled"


async def test_a_job_whose_dependency_has_failed_is_cancelled_and_the_table_says_so(
    text_table: Any, table_address: str, place: Place
) -> None:
    text_table.put_item(Item=item(3))
    text_table.put_item(Item=waits_for(5, 3))
    async with Backstay(place("sqlite")) as app:
        plan = await planned(app, "delphi", table_address)
        await imported(app, "delphi", table_address)

        [line] = [line for line in plan.lines if line.state == "PENDING"]
        assert (line.becomes, line.note) == ("cancelled", "a job that it depends on has failed")
        assert (await app.get(job_id(5))).status == "cancelled"


async def test_no_job_waits_for_one_that_is_not_imported(text_table: Any, table_address: str, place: Place) -> None:
    text_table.put_item(Item=item(0) | {"priority": 500})
    text_table.put_item(Item=waits_for(5, 0))
    text_table.put_item(Item=waits_for(6, 5, priority=50))
    text_table.put_item(Item=waits_for(10, 999))
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "delphi", table_address)

        assert report.imported == 0
        assert {each.reason: set(each.examples) for each in report.plan.refused} == {
            "priority: use 0 to 100, or one of low, normal, high, urgent": {job_id(0)},
            "it waits for a job that cannot be imported": {job_id(5), job_id(6)},
            "it depends on a job that is not in the table": {job_id(10)},
        }


async def test_a_job_that_a_crash_left_twice_is_imported_as_its_newer_item(
    boto: Any, table_address: str, place: Place
) -> None:
    table = create_job_queue_table(boto, urlsplit(table_address).netloc)
    old = {name: value for name, value in item(0).items() if value != ""} | {"version": 1}
    table.put_item(Item=old)
    table.put_item(Item={name: value for name, value in item(2).items() if value != ""} | {"job_id": job_id(0)})
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "delphi", table_address)

        assert report.imported == 1
        assert (await app.get(job_id(0))).status == "completed"
        assert [each.reason for each in report.plan.refused] == ["a newer item of the same job is imported instead"]


@pytest.mark.parametrize("spelt", [str, dict])
async def test_the_example_items_of_the_document_are_imported(
    text_table: Any, table_address: str, place: Place, spelt: Callable[[Any], Any]
) -> None:
    """The second one has an id that is not a UUID, although it looks like one."""
    pipeline = "a1b2c3d4-5e6f-7g8h-9i0j-k1l2m3n4o5p6"
    config = {"max_votes": 500000, "batch_size": 50000, "n_components": 2}
    for each, job_type in (("d290f1ee-6c54-4b01-90e6-d701748f0851", "PCA"), (pipeline, "FULL_PIPELINE")):
        text_table.put_item(
            Item={
                "job_id": each,
                "status": "PENDING",
                "created_at": "2025-04-23T19:15:00Z",
                "updated_at": "2025-04-23T19:15:00Z",
                "started_at": None,
                "completed_at": None,
                "job_type": job_type,
                "priority": 50,
                "conversation_id": "19305",
                "retry_count": 0,
                "max_retries": 3,
                "timeout_seconds": 3600,
                "job_config": config
                if spelt is dict
                else '{"max_votes": 500000, "batch_size": 50000, "n_components": 2}',
                "job_results": None,
                "logs": {"entries": [], "log_location": None},
                "created_by": "server-api",
                "dependencies": [],
                "dependent_jobs": [],
            }
        )
    async with Backstay(place("sqlite")) as app:
        await imported(app, "delphi", table_address)

        job = await app.get("d290f1ee-6c54-4b01-90e6-d701748f0851")
        assert (job.status, job.payload, job.subject, job.max_attempts) == ("pending", config, "19305", 4)
        [other] = await app.find(tag=pipeline)
        assert other.job_type == "FULL_PIPELINE"


async def test_broken_items_are_named_and_the_others_imported(
    text_table: Any, table_address: str, place: Place
) -> None:
    broken: list[tuple[dict[str, Any], str]] = [
        ({"dependencies": 7}, "it is not as its system makes them (TypeError)"),
        ({"dependencies": "not JSON"}, "dependencies is not JSON"),
        ({"created_at": "once"}, "created_at is not an ISO 8601 time"),
        ({"created_at": "1066-10-14T09:00:00Z"}, "it is not as its system makes them: created_at: expected `int` >= 0"),
        ({"timeout_seconds": "long"}, "it is not as its system makes them: timeout_seconds: expected `float | null`"),
        ({"retry_count": -1}, "retry_count is not a whole number"),
        ({"logs": "half a li"}, "logs is not JSON"),
        ({"job_config": {"note": "x" * 300_000}}, "its payload is larger than 262,144 bytes"),
        ({"conversation_id": "c" * 600}, "subject: use a string"),
    ]
    for number, (changes, _) in enumerate(broken):
        text_table.put_item(Item=item(5 * number) | changes)
    nameless = item(100)
    del nameless["job_type"]  # a key of an index may be absent
    text_table.put_item(Item=nameless)
    broken.append(({}, "it has no job_type"))
    text_table.put_item(Item=item(1))
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "delphi", table_address)

        assert report.imported == 1
        named = {example: each.reason for each in report.plan.refused for example in each.examples}
        for number, (_, why) in enumerate(broken):
            assert why in named.get(job_id(5 * number if why != "it has no job_type" else 100), "it was imported")


async def test_another_table_is_refused(boto: Any, table_address: str) -> None:
    await refused("delphi", table_address, "there is no table")
    boto.create_table(
        TableName=urlsplit(table_address).netloc,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    await refused("delphi", table_address, "is not a Delphi job queue: its key is id")
