"""Import of a scheduled queue with its dedup records, whose items are those of the document."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from backstay import Backstay
from tests.imports.conftest import ENGINES, Place, imported, planned, refused
from tests.imports.delphi_source import create_as_the_text_says
from tests.imports.facts import digest, jobs_of
from tests.imports.scheduled_source import create_table, day, facts, facts_of, item, job_id, make, user


@pytest.fixture
def table(boto: Any, table_address: str) -> Any:
    made = create_table(boto, urlsplit(table_address).netloc)
    make(made, 60)
    return made


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_job_is_the_same_on_every_engine(table: Any, table_address: str, place: Place, engine: str) -> None:
    async with Backstay(place(engine)) as app:
        report = await imported(app, "scheduled", table_address)

        assert (report.imported, report.compared, report.changed) == (60, 60, 0)
        assert digest([facts_of(job) async for job in jobs_of(app)]) == digest(facts(table))


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_summary_that_was_scheduled_is_not_scheduled_again(
    table: Any, table_address: str, place: Place, engine: str
) -> None:
    app = Backstay(place(engine))
    app.job("daily_summary")(lambda payload: payload)
    async with app:
        await imported(app, "scheduled", table_address)

        for number in (0, 2, 4, 5):  # pending, completed, dead, cancelled
            key = f"summary:{user(number)}:{day(number)}"
            again = await app.submit("daily_summary", {}, dedup_key=key, dedup_for="forever")
            assert (again.job_id, again.deduplicated) == (job_id(number), True)


async def test_a_summary_that_the_new_queue_has_already_is_not_imported(
    table: Any, table_address: str, place: Place
) -> None:
    app = Backstay(place("sqlite"))
    app.job("daily_summary")(lambda payload: payload)
    async with app:
        await app.submit("daily_summary", {}, dedup_key=f"summary:{user(0)}:{day(0)}", dedup_for="forever")

        report = await imported(app, "scheduled", table_address)

        assert (report.imported, report.not_imported, report.not_imported_examples) == (59, 1, (job_id(0),))


async def test_a_job_gets_the_subject_that_its_type_derives(table: Any, table_address: str, place: Place) -> None:
    app = Backstay(place("sqlite"))

    @app.job("user_sync", subject="user:{user_id}", content_hash="sync:{user_id}")
    async def user_sync(payload: dict[str, str]) -> None: ...

    async with app:
        await imported(app, "scheduled", table_address)

        job = await app.get(job_id(3))
        assert (job.subject, job.content_hash) == ("user:U1", "sync:U1")


async def test_dedup_records_whose_job_is_gone_are_named(table: Any, table_address: str, place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        plan = await planned(app, "scheduled", table_address)

        assert "45 dedup records become dedup keys, kept forever" in plan.notes
        assert any("summary:gone:2026-01-01" in note for note in plan.notes)


async def test_a_job_for_later_is_due_at_its_time(table: Any, table_address: str, place: Place) -> None:
    later = item(1) | {"status": "pending", "scheduled_for": "2099-01-01T07:00:00+00:00"}
    later["SK"] = f"scheduled#2099-01-01T07:00:00+00:00#{job_id(999)}"
    table.put_item(Item=later)
    async with Backstay(place("sqlite")) as app:
        await imported(app, "scheduled", table_address)

        job = await app.get(job_id(999))
        assert (job.status, job.scheduled_for.isoformat()) == ("scheduled", "2099-01-01T07:00:00+00:00")


async def test_items_that_are_not_as_the_document_says_are_listed(table: Any, table_address: str, place: Place) -> None:
    table.put_item(Item=item(0) | {"SK": "scheduled#2026"})
    table.put_item(Item=item(100) | {"status": "asleep"})
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "scheduled", table_address)

        assert report.imported == 60
        assert {each.reason for each in report.plan.refused} == {
            "its sort key is not scheduled#<time>#<id>",
            "unknown status 'asleep'",
        }


async def test_a_job_that_a_crash_left_twice_is_imported_as_its_later_item_with_its_key(
    table: Any, table_address: str, place: Place
) -> None:
    """As it is if a retry moves a job to the key of its new time, and is killed in between."""
    later = item(0) | {"scheduled_for": "2099-01-01T07:00:00+00:00", "status": "failed", "attempts": 3}
    later["SK"] = f"scheduled#2099-01-01T07:00:00+00:00#{job_id(0)}"
    table.put_item(Item=later)
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "scheduled", table_address)

        assert (report.imported, report.compared, report.changed) == (60, 60, 0)
        [refused] = report.plan.refused
        assert (refused.reason, refused.count) == ("a later item of the same job is imported instead", 1)
        job = await app.get(job_id(0))
        assert (job.status, job.failures, job.dedup_key) == ("retrying", 3, f"summary:{user(0)}:{day(0)}")


async def test_another_table_is_refused(boto: Any, table_address: str) -> None:
    create_as_the_text_says(boto, urlsplit(table_address).netloc)
    await refused("scheduled", table_address, "its key is job_id, not PK and SK")
