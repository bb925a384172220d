"""A short walk of a remote worker over every route, on each engine."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from backstay import Backoff, Backstay
from tests.campaigns.lost_claims import lose
from tests.server.far import listening, reached
from tests.server.test_streams import heard


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backstay]:
    urls: dict[str, Callable[[], str]] = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/jobs.db",
        "postgres": lambda: request.getfixturevalue("postgres").url(schema=f"far_{secrets.token_hex(4)}"),
        "dynamodb": lambda: request.getfixturevalue("dynamodb").url(),
    }
    app = Backstay(urls[request.param]())

    @app.job("embedding", max_attempts=3, backoff=Backoff(60, 2, 300, 0))
    async def embedding(payload: dict[str, int]) -> None: ...

    async with app:
        yield app


@pytest.mark.timeout(120)
async def test_a_remote_worker_on_every_engine(app: Backstay) -> None:
    async with reached(app) as far:
        await far.register("embedding", "translation", schemas={"translation": {"type": "object"}})
        jobs = [await app.submit("embedding", {"number": number}) for number in range(4)]

        first = await far.claim(limit=4, request_id="r-1")
        assert await far.claim(limit=4, request_id="r-1") == first
        assert await far.claim(limit=0, request_id="r-1") == first
        held = {each["job"]["payload"]["number"]: (each["job"]["job_id"], each["token"]) for each in first}
        assert sorted(held) == [0, 1, 2, 3]

        said = await far.say("progress", *held[0], progress=0.5, stage="half", logs=[{"message": "half way"}])
        assert said.status_code == 200
        assert (await app.get(held[0][0])).progress == 0.5
        assert (await far.say("extend", *held[0], seconds=600)).status_code == 200
        await app.cancel(held[3][0])
        beat = await far.heartbeat(*held.values())
        assert (sorted(beat["held"]), beat["cancelled"]) == (sorted(held[n][0] for n in range(3)), [held[3][0]])

        for verb, number, fields, status in [
            ("complete", 0, {"result": {"ok": True}, "metrics": {"n": 1}}, "completed"),
            ("fail", 1, {"error": {"type": "Timeout"}}, "retrying"),
            ("outcome", 2, {"outcome": "snooze", "seconds": 60}, "scheduled"),
        ]:
            answers = [await far.say(verb, *held[number], **fields) for _ in range(3)]
            assert {answer.text for answer in answers} == {answers[0].text}, verb
            assert answers[0].json()["status"] == status
        assert (await far.say("complete", *held[3])).status_code == 409
        assert (await far.say("complete", held[1][0], held[0][1])).status_code == 409

        ended = [await app.get(job.job_id) for job in jobs]
        assert [job.status.value for job in ended] == ["completed", "retrying", "scheduled", "cancelled"]
        assert ended[0].result == {"ok": True}
        assert [event.event for event in ended[0].history] == ["submit", "claim", "complete"]
        assert round((ended[1].scheduled_for - ended[1].updated_at).total_seconds()) == 60
        await app.submit("translation", {})
        [taken] = await far.claim(wait_seconds=10)
        assert (await far.say("complete", taken["job"]["job_id"], taken["token"])).status_code == 200
        await far.heartbeat(state="stopped")
        assert (await far.http.get("/workers")).json()["items"] == []
    async with listening(app) as url, httpx.AsyncClient(base_url=url) as http:
        told = await heard(http, f"/jobs/{jobs[0].job_id}/stream")
        assert [each.name for each in told] == ["state", "log", "progress", "end"]
        assert [each.name for each in await heard(http, f"/jobs/{jobs[0].job_id}/tree/stream")][-1] == "end"


@pytest.mark.timeout(120)
async def test_a_remote_worker_gets_jobs_that_run_alone_one_by_one_and_nothing_next_to_them(app: Backstay) -> None:
    async with reached(app) as far:
        await far.register("embedding")
        jobs = [await app.submit("embedding", {"number": number}) for number in range(2)]
        for _ in range(2):
            await lose(app, "default", "embedding", 2)
        new = await app.submit("embedding", {"number": 2})

        taken: list[str] = []
        while len(taken) < 2:
            for each in await far.claim(limit=4, wait_seconds=5):
                job_id = each["job"]["job_id"]
                if job_id != new.job_id:
                    assert await far.claim(limit=4) == [], "nothing runs next to it"
                    taken.append(job_id)
                assert (await far.say("complete", job_id, each["token"])).status_code == 200
        assert sorted(taken) == sorted(job.job_id for job in jobs)
