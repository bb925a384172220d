"""Events over HTTP: sent to a job or to a correlation key, once; and what a job has recorded."""

from __future__ import annotations

from typing import Any

from backstay import Context
from tests.server.routes_fixtures import stage as stage
from tests.server.routes_stage import Stage
from tests.support.eventually import eventually


async def waiting(stage: Stage, key: str | None = None) -> str:
    """Return a job that waits for an approval, past one step."""

    async def order(payload: Any, ctx: Context) -> Any:
        await ctx.step("charge", lambda: {"paid": 7})
        return await ctx.wait_for_event("approved", key=key)

    stage.app.handlers.pop("order", None)
    stage.app.job("order")(order)
    job = await stage.app.submit("order", 1)
    await until(stage, job.job_id, "waiting")
    return job.job_id


async def until(stage: Stage, job_id: str, status: str) -> None:
    async def there() -> bool:
        return (await stage.app.get(job_id)).status == status

    async with stage.app.worker(poll_interval=0.05):
        await eventually(there)


async def test_an_event_is_sent_to_a_job_and_what_it_recorded_is_listed(stage: Stage) -> None:
    job_id = await waiting(stage)
    path = f"/jobs/{job_id}"
    items = (await stage.get(f"{path}/steps"))["items"]
    assert [(each["kind"], each["name"], each["value"]) for each in items] == [
        ("step", "charge", {"paid": 7}),
        ("wait", "approved", None),
    ]
    assert "event approved" in (await stage.get(f"{path}/explain"))["explanation"]

    sent = await stage.ask("POST", f"{path}/events/approved", json={"payload": {"by": "ada"}, "event_id": "click"})
    again = await stage.ask("POST", f"{path}/events/approved", json={"payload": {"by": "eve"}, "event_id": "click"})

    assert sent.json() == {
        "event_id": "click", "name": "approved", "delivery": "recorded", "job_id": job_id, "key": None
    }  # fmt: skip
    assert again.json()["delivery"] == "repeated"
    await until(stage, job_id, "completed")
    assert (await stage.get(path))["result"] == {"by": "ada"}
    ended = await stage.ask("POST", f"{path}/events/approved")
    assert (ended.status_code, ended.json()["type"]) == (409, "/problems/event-refused")


async def test_an_event_is_sent_to_a_key(stage: Stage) -> None:
    job_id = await waiting(stage, key="order:7")

    sent = await stage.ask("POST", "/events", json={"key": "order:7", "name": "approved", "payload": 1})
    kept = await stage.ask("POST", "/events", json={"key": "order:7", "name": "approved", "payload": 2})

    assert [sent.json()["delivery"], kept.json()["delivery"]] == ["recorded", "kept"]
    await until(stage, job_id, "completed")
    assert (await stage.get(f"/jobs/{job_id}"))["result"] == 1


async def test_what_is_too_large_or_has_no_name_is_refused(stage: Stage) -> None:
    job_id = (await stage.submit())["job_id"]
    large = await stage.ask("POST", f"/jobs/{job_id}/events/approved", json={"payload": "x" * 70_000})
    assert (large.status_code, large.json()["type"]) == (422, "/problems/invalid-event")
    long = await stage.ask("POST", f"/jobs/{job_id}/events/{'x' * 200}")
    assert long.status_code == 422
    assert (await stage.ask("POST", "/events", json={"name": "approved"})).status_code == 422


async def test_a_key_for_some_queues_sends_to_jobs_of_these_alone(stage: Stage) -> None:
    ours = (await stage.submit(queue="a-1"))["job_id"]
    theirs = (await stage.submit(queue="b"))["job_id"]
    key = await stage.key("submit", "read", queues=("a-*",))
    reads = await stage.key("read")

    asked = {"headers": key, "json": {"payload": 1}}
    assert (await stage.ask("POST", f"/jobs/{ours}/events/approved", **asked)).status_code == 200
    assert (await stage.ask("POST", f"/jobs/{theirs}/events/approved", **asked)).status_code == 404
    assert (await stage.ask("GET", f"/jobs/{theirs}/steps", headers=key)).status_code == 404
    refused = await stage.ask("POST", "/events", headers=key, json={"key": "k", "name": "approved"})
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/foreign-queue")
    assert (await stage.ask("POST", f"/jobs/{ours}/events/approved", headers=reads)).status_code == 403
