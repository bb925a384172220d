"""A key for some queues, and workers that serve others as well: what is shown is what belongs to the key's queues."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.core.records import BlockedLoop, WorkerRow
from backstay.server import visibility
from tests.server.routes_fixtures import stage as stage
from tests.server.routes_stage import Stage

LIMITED = ("mail*",)


async def beat(stage: Stage, worker_id: str, *queues: str, **fields: Any) -> None:
    now = stage.app.clock.now()
    row = WorkerRow(
        worker_id=worker_id,
        host="anna",
        pid=7,
        process_key="x",
        version="1",
        queues=queues,
        job_types=("letter", "anything"),
        concurrency=4,
        started_at=now,
        heartbeat_at=now,
        ended=20,
        failed=3,
        busy_micros=40,
        versions={"letter": 1, "anything": 2},
        limits={"anything": 2},
        **fields,
    )
    await stage.app.store.beat(row)


async def crowd(stage: Stage) -> tuple[str, str]:
    """One worker for our queue, one for another, and one for both that runs a job of each."""
    await stage.app.store.announce([handler.describe(0) for handler in stage.app.handlers.values()])
    ours = (await stage.app.submit("letter", {"to": "ada"})).job_id
    theirs = (await stage.app.submit("anything", 1, queue="secret-queue")).job_id
    await beat(stage, "of-ours", "mail")
    await beat(stage, "of-theirs", "secret-queue")
    running = {"running": (ours, theirs), "busy": {"letter": 1, "anything": 1}, "stuck": (theirs,)}
    running["blocked"] = BlockedLoop(1, "anything", theirs, "secret-queue.py:1 in anything")
    await beat(stage, "of-both", "mail", "secret-queue", **running)
    return ours, theirs


async def test_a_worker_is_shown_with_what_it_does_in_the_queues_of_the_key(stage: Stage) -> None:
    ours, theirs = await crowd(stage)
    answer = await stage.ask("GET", "/workers", headers=await stage.key("read", queues=LIMITED))

    for theirs_too in ("secret-queue", "anything", "of-theirs", theirs):
        assert theirs_too not in answer.text
    both, mine = sorted(answer.json()["items"], key=lambda each: each["worker_id"])
    assert (both["queues"], both["job_types"], both["running"]) == (["mail"], ["letter"], [ours])
    assert (both["busy"], both["versions"], both["limits"], both["stuck"]) == ({"letter": 1}, {"letter": 1}, {}, [])
    assert (both["ended"], both["failed"], both["average_time_ms"]) == (None, None, None)
    assert {name: both["blocked"][name] for name in ("job_id", "job_type", "where")} == dict.fromkeys(
        ("job_id", "job_type", "where")
    )
    assert (mine["queues"], mine["ended"], mine["failed"]) == (["mail"], 20, 3)


async def test_the_page_of_workers_and_figures_of_workers_are_cut_in_the_same_way(stage: Stage) -> None:
    _, theirs = await crowd(stage)
    key = await stage.key("read", queues=LIMITED)
    page = (await stage.http.get("/dashboard/workers", headers=key)).text
    assert "of-both" in page
    for theirs_too in ("secret-queue", "of-theirs", theirs):
        assert theirs_too not in page
    stats = (await stage.ask("GET", "/stats", headers=key)).json()
    assert [each["worker_id"] for each in stats["workers"]] == ["of-ours"]


async def test_a_key_for_all_queues_sees_whole_workers_without_internals(stage: Stage) -> None:
    await crowd(stage)
    workers = await stage.get("/workers")
    assert len(workers["items"]) == 3
    for worker in workers["items"]:
        assert not {"marks", "busy_micros", "lease_micros", "unread", "process_key"} & worker.keys()
        assert (worker["ended"], worker["average_time_ms"]) == (20, 0.002)


async def test_a_type_that_does_not_exist_is_answered_with_those_of_the_keys_queues(stage: Stage) -> None:
    await crowd(stage)
    key = await stage.key("admin", queues=LIMITED)
    for method, path, body in [
        ("POST", "/jobs/nope", {"payload": 1}),
        ("PUT", "/schedules/s", {"cron": "@daily", "job_type": "nope"}),
    ]:
        answer = await stage.ask(method, path, json=body, headers=key)
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown-job-type")
        assert "letter" in answer.json()["detail"]
        assert "anything" not in answer.text
    batch = await stage.ask("POST", "/jobs/batch", json={"jobs": [{"job_type": "nope"}]}, headers=key)
    assert "letter" in batch.text
    assert "anything" not in batch.text


@pytest.mark.parametrize("limit", [1, 50])
async def test_a_page_is_filled_from_far_behind_and_ends_at_a_fixed_number_of_rows(
    stage: Stage, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "SIFTED_ROWS_MAX", 300)
    mine = await stage.app.submit_many([("anything", n, {"queue": "mail-1"}) for n in range(3)])
    await stage.app.submit_many([("anything", n, {"queue": "other"}) for n in range(250)])
    key = await stage.key("read", queues=LIMITED)

    async def page(**query: Any) -> tuple[list[str], str | None]:
        found = (await stage.ask("GET", "/jobs", params={"limit": limit, **query}, headers=key)).json()
        return [job["job_id"] for job in found["items"]], found["next"]

    wanted = [job.job_id for job in mine][::-1]
    found, after = await page()
    assert found == wanted[:limit]
    while after is not None:
        more, after = await page(after=after)
        found += more
    assert found == wanted

    await stage.app.submit_many([("anything", n, {"queue": "other"}) for n in range(100)])
    empty, after = await page()
    assert empty == [] and after is not None
    assert (await page(after=after))[0] == wanted[:limit]


@pytest.mark.parametrize("order", ["created", "priority"])
async def test_a_cursor_behind_foreign_rows_names_none_of_them_and_leads_on(
    stage: Stage, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "SIFTED_ROWS_MAX", 100)
    theirs = await stage.app.submit_many(
        [("anything", n, {"queue": "secret-queue", "priority": 60}) for n in range(250)]
    )
    mine = await stage.app.submit("anything", 1, queue="mail-1")
    await stage.app.submit_many([("anything", n, {"queue": "secret-queue", "priority": 60}) for n in range(250)])
    key = await stage.key("read", queues=LIMITED)

    found, seen, after = [], "", None
    while True:
        asked = {"order": order} if after is None else {"order": order, "after": after}
        page = (await stage.ask("GET", "/jobs", params=asked, headers=key)).json()
        found += [job["job_id"] for job in page["items"]]
        if (after := page["next"]) is None:
            break
        seen += after
        assert not after.isdecimal()  # a number of jobs
    assert found == [mine.job_id]
    assert seen
    assert not any(job.job_id in seen for job in theirs)


async def test_a_cursor_behind_foreign_workers_and_schedules_names_none_of_them_and_leads_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "SIFTED_ROWS_MAX", 2)
    for n in range(3):
        await beat(stage, f"a-secret-{n}", "secret-queue")
        await stage.app.schedule(f"a-secret-{n}", "@daily", "anything", queue="secret-queue")
    await beat(stage, "b-ours", "mail")
    await stage.app.schedule("b-ours", "@daily", "letter", {"to": "ada"})
    key = await stage.key("read", queues=LIMITED)

    for path, name in [("/workers", "worker_id"), ("/schedules", "name")]:
        found, seen, after = [], "", None
        while True:
            asked = {"limit": 2} if after is None else {"limit": 2, "after": after}
            answer = await stage.ask("GET", path, params=asked, headers=key)
            found += [each[name] for each in answer.json()["items"]]
            seen += answer.text
            if (after := answer.json()["next"]) is None:
                break
        assert found == ["b-ours"]
        assert "secret" not in seen
