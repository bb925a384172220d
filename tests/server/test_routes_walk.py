"""Every route, once, on each engine: whatever the store, the same answers."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.routes_stage import FILM, Stage, staged, staged_app


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    match request.param:
        case "sqlite":
            url = f"sqlite:///{tmp_path}/jobs.db"
        case "postgres":
            url = request.getfixturevalue("postgres").url(schema=f"routes_{secrets.token_hex(3)}")
        case _:
            url = request.getfixturevalue("dynamodb").url()
    async with staged(staged_app(url)) as found:
        yield found


async def ok(stage: Stage, method: str, path: str, status: int = 200, **options: Any) -> Any:
    answer = await stage.ask(method, path, **options)
    assert answer.status_code == status, (method, path, answer.text)
    return answer.json() if answer.headers.get("content-type") == "application/json" else answer


async def test_every_route_answers_alike(stage: Stage) -> None:
    await _submitting(stage)
    report, broken, parent = await _running(stage)
    await _around(stage, report)
    await _changing(stage, broken, parent)
    await _operating(stage)


async def _submitting(stage: Stage) -> None:
    header = {"Idempotency-Key": "k"}
    first = await ok(stage, "POST", "/jobs/letter", 201, json={"payload": {"to": "x"}, "delay": 600}, headers=header)
    again = await ok(stage, "POST", "/jobs/letter", json={"payload": {"to": "x"}, "delay": 600}, headers=header)
    await ok(stage, "POST", "/jobs/letter", 409, json={"payload": {"to": "y"}, "delay": 600}, headers=header)
    assert (again["job_id"], again["deduplicated"]) == (first["job_id"], True)
    body = {"payload": 7, "run_at": "2031-01-01T00:00:00Z"}
    at_once = [stage.ask("POST", "/jobs/anything", json=body, headers={"Idempotency-Key": "race"}) for _ in range(5)]
    raced = await asyncio.gather(*at_once)
    assert sorted(each.status_code for each in raced) == [200, 200, 200, 200, 201]
    assert len({each.json()["job_id"] for each in raced}) == 1
    await ok(stage, "DELETE", f"/jobs/{raced[0].json()['job_id']}")
    tied = {"job_type": "letter", "payload": {"to": "z"}, "depends_on": [first["job_id"]], "tags": ["t"]}
    batch = await ok(
        stage, "POST", "/jobs/batch", json={"jobs": [tied, {"job_type": "nobody"}, tied | {"subject": "s"}]}
    )
    assert [item["status"] for item in batch["items"]] == [201, 404, 201]

    pages: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while not pages or pages[-1]["next"]:
        pages.append(await ok(stage, "GET", "/jobs", params={"limit": 1, **after}))
        after = {"after": pages[-1]["next"]}
    assert len([job for page in pages for job in page["items"]]) == 4
    [found] = (await ok(stage, "GET", "/jobs", params={"subject": "s", "status": "waiting"}))["items"]
    assert (found["tags"], found["dependencies"]) == (["t"], [first["job_id"]])
    assert len((await ok(stage, "GET", "/jobs/letter", params={"status": "scheduled"}))["items"]) == 1
    await ok(stage, "DELETE", f"/jobs/letter/{first['job_id']}")
    assert (await ok(stage, "GET", f"/jobs/{found['job_id']}"))["status"] == "cancelled"


async def _running(stage: Stage) -> tuple[str, str, str]:
    made = [
        await stage.submit(job_type, payload=payload, queue="default")
        for job_type, payload in (("report", 1), ("broken", "luck"), ("parent", 2))
    ]
    async with asyncio.timeout(60):
        await stage.run()
    report, broken, parent = (f"/jobs/{job['job_id']}" for job in made)
    return report, broken, parent


async def _around(stage: Stage, path: str) -> None:
    done = await ok(stage, "GET", path)
    assert (done["status"], len(done["result"]), done["result_tables"]) == ("completed", 100_000, ["comments"])
    assert [event["event"] for event in (await ok(stage, "GET", f"{path}/history"))["items"]][-1] == "complete"
    assert (await ok(stage, "GET", f"{path}/logs"))["entries"][0]["message"] == "begun"
    assert "begun" in (await ok(stage, "GET", f"{path}/logs", params={"full": "true"})).text
    assert (await ok(stage, "GET", f"{path}/explain"))["reason"] == "completed"
    assert (await ok(stage, "GET", f"{path}/results"))["items"] == ["comments"]
    page = await ok(stage, "GET", f"{path}/results/comments", params={"limit": 2, "subject": "a"})
    rest = await ok(stage, "GET", f"{path}/results/comments", params={"subject": "a", "after": page["next"]})
    assert [row["comment_id"] for row in page["items"] + rest["items"]] == [0, 2, 4]
    assert (await ok(stage, "GET", f"{path}/results/comments/3"))["text"] == "<b>3</b>"
    await ok(stage, "GET", f"{path}/results/comments/9", 404)
    assert len((await ok(stage, "GET", f"{path}/artifacts"))["items"]) == 3
    assert (await ok(stage, "GET", f"{path}/artifacts/film.bin")).content == FILM
    part = await ok(stage, "GET", f"{path}/artifacts/film.bin", 206, headers={"Range": "bytes=300-9999"})
    assert part.content == FILM[300:10_000]
    await ok(stage, "GET", f"{path}/artifacts/film.bin", 416, headers={"Range": "bytes=99999-"})


async def _changing(stage: Stage, broken: str, parent: str) -> None:
    assert (await ok(stage, "GET", "/dead"))["items"][0]["error_type"] == "ValueError"
    assert await ok(stage, "POST", "/dead/retry", json={"error_type": "ValueError"}) == {"retried": 1}
    read = await stage.ask("GET", broken)
    tag = {"If-Match": read.headers["etag"]}
    body = {"priority": 80, "run_at": "2031-01-01T00:00:00Z"}
    moved = await ok(stage, "PATCH", broken, json=body, headers=tag)
    assert (moved["status"], moved["priority"], moved["scheduled_for"]) == ("scheduled", 80, "2031-01-01T00:00:00Z")
    await ok(stage, "PATCH", broken, 412, json=body, headers=tag)
    assert (await ok(stage, "DELETE", broken))["status"] == "cancelled"
    await ok(stage, "DELETE", broken, 409)
    assert (await ok(stage, "POST", f"{broken}/retry"))["status"] == "pending"

    assert len((await ok(stage, "GET", f"{parent}/tree"))["items"]) == 3
    assert (await ok(stage, "POST", f"{parent}/rerun"))["status"] == "pending"
    assert (await ok(stage, "DELETE", parent, params={"subtree": "true"}))["status"] == "cancelled"
    assert (await ok(stage, "POST", f"{parent}/retry", params={"subtree": "true"}))["status"] == "pending"


async def _operating(stage: Stage) -> None:
    body = {"cron": "@hourly", "job_type": "letter", "payload": {"to": "x"}}
    await ok(stage, "PUT", "/schedules/s", 201, json=body)
    await ok(stage, "PUT", "/schedules/s", 200, json=body)
    assert [each["name"] for each in (await ok(stage, "GET", "/schedules"))["items"]] == ["s"]
    assert (await ok(stage, "POST", "/schedules/s/pause"))["paused"]
    assert not (await ok(stage, "POST", "/schedules/s/resume"))["paused"]
    assert (await ok(stage, "POST", "/schedules/s/run", 201))["schedule"] == "s"
    await ok(stage, "DELETE", "/schedules/s", 204)
    await ok(stage, "GET", "/schedules/s", 404)

    types = {each["job_type"]: each for each in (await ok(stage, "GET", "/types"))["items"]}
    assert types["letter"]["sensitive"] == []
    await ok(stage, "POST", "/types/letter/unmark", 422, json={"field": "/to"})
    assert (await ok(stage, "POST", "/queues/mail/pause", json={"reason": "x"}))["paused"]
    assert (await ok(stage, "POST", "/queues/mail/limit", json={"max_pending": 9}))["max_pending"] == 9
    assert not (await ok(stage, "POST", "/queues/mail/resume"))["paused"]
    queues = {each["name"]: each for each in (await ok(stage, "GET", "/queues"))["items"]}
    assert queues["mail"]["pending"] == 1
    stats = await ok(stage, "GET", "/stats")
    assert ("pending", 50) in {(row["status"], row["priority"]) for row in stats["queue_health"]}
    assert stats["total"]["completed"] >= 2
    actions = {entry["action"] for entry in (await ok(stage, "GET", "/audit", params={"limit": 100}))["items"]}
    assert actions == {
        "job.cancel", "job.patch", "job.retry", "job.rerun", "dead.retry", "queue.pause", "queue.resume",
        "queue.limit", "type.unmark", "schedule.put", "schedule.delete", "schedule.pause", "schedule.resume",
        "schedule.run",
    }  # fmt: skip
