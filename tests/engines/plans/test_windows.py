"""A search that no index narrows looks at a part of the jobs, and says where to go on."""

import random
import secrets
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay
from backstay.engines.postgres import read
from backstay.engines.sqlite import read as sqlite_read
from backstay.job import Job
from backstay.testing import drain


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backstay:
    reading = sqlite_read if request.param == "sqlite" else read
    monkeypatch.setattr(reading, "WINDOW", 7)
    monkeypatch.setattr(reading, "WINDOWS_MAX", 3)
    monkeypatch.setattr(reading, "PENDING_SORTED_MAX", 5)
    url = f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").url(schema=f"windows_{secrets.token_hex(3)}")
    app = Backstay(url)
    for name in ("common", "rare"):
        app.job(name)(_nothing)
    return app


async def _nothing(payload: Any) -> None: ...


async def pages(app: Backstay, **query: Any) -> list[list[Job]]:
    found: list[list[Job]] = []
    after: str | None = None
    while not found or after is not None:
        page = await app.find(after=after, **query)
        found.append(list(page))
        after = page.next
    return found


async def test_pages_have_every_job_once_whatever_is_asked_for(app: Backstay) -> None:
    draw = random.Random(7)
    async with app:
        made = await app.submit_many(
            [
                (draw.choice(["common"] * 9 + ["rare"]), n, {"queue": draw.choice("aab"), "tags": [draw.choice("xyz")]})
                for n in range(200)
            ]
        )
        for job in draw.sample(made, 80):
            await app.cancel(job.job_id)
        everything = [await app.get(job.job_id) for job in reversed(made)]
        for query in (
            {},
            {"job_type": "rare"},
            {"queue": "b"},
            {"tag": "z", "queue": "b"},
            {"status": "cancelled"},
            {"status": "cancelled", "job_type": "rare"},
            {"status": "pending"},
            {"status": "pending", "tag": "x"},
            {"status": "completed"},
            {"created_by": "nobody"},
        ):
            wanted = [job.job_id for job in everything if _fits(job, query)]
            for limit in (1, 10, 500):
                found = await pages(app, limit=limit, **query)
                assert [job.job_id for page in found for job in page] == wanted, (query, limit)
                assert max(map(len, found)) <= limit


async def test_what_has_completed_is_found_behind_a_backlog_that_is_newer(app: Backstay) -> None:
    async with app:
        done = [(await app.submit("common", number)).job_id for number in range(9)]
        await drain(app)
        await app.submit_many([("common", number) for number in range(60)])

        found = await pages(app, status="completed", limit=4)

        assert [[job.job_id for job in page] for page in found] == [done[:4:-1], done[4:0:-1], done[:1]]


def _fits(job: Job, query: dict[str, str]) -> bool:
    tag = query.get("tag")
    rest = {name: value for name, value in query.items() if name != "tag"}
    return (tag is None or tag in job.tags) and all(getattr(job, name) == value for name, value in rest.items())


async def test_one_page_looks_at_a_bounded_part_and_goes_on(app: Backstay) -> None:
    async with app:
        oldest = await app.submit("rare", 1)
        await app.submit_many([("common", n) for n in range(100)])
        first = await app.find(job_type="rare")
        assert (list(first), first.next is None) == ([], False)
        found = await pages(app, job_type="rare")
        assert [job.job_id for page in found for job in page] == [oldest.job_id]
        assert 4 <= len(found) <= 6  # of 101 jobs, 21 at a time


async def test_a_gap_costs_nothing(app: Backstay) -> None:
    async with app:
        oldest = await app.submit("rare", 1)
        gone = await app.submit_many([("common", n) for n in range(300)])
        for job in gone:
            await app.cancel(job.job_id)
        await app.purge(older_than=0)
        assert [job.job_id for job in await app.find(job_type="rare")] == [oldest.job_id]
