"""A key with queue patterns: other queues look as if they were not there, wherever an id or a name of theirs stands."""

from typing import Any

import httpx
import pytest

from backstay.core.records import WorkerRow
from tests.server.routes_fixtures import stage as stage
from tests.server.routes_stage import Stage

NOBODY = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"


class As:
    """Someone with a key."""

    def __init__(self, stage: Stage, headers: dict[str, str]) -> None:
        self._stage = stage
        self._headers = headers

    async def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = self._headers | options.pop("headers", {})
        return await self._stage.ask(method, path, headers=headers, **options)

    async def ids(self, path: str = "/jobs", **query: Any) -> list[str]:
        found: list[str] = []
        while True:
            page = (await self("GET", path, params=query)).json()
            found += [job["job_id"] for job in page["items"]]
            if page["next"] is None:
                return found
            query["after"] = page["next"]


async def someone(stage: Stage, *queues: str, scopes: tuple[str, ...] = ("admin",)) -> As:
    return As(stage, await stage.key(*scopes, queues=queues))


async def ours_and_theirs(stage: Stage) -> tuple[str, str]:
    made = await stage.app.submit_many([("anything", 1, {"queue": "a-1"}), ("anything", 2, {"queue": "b"})])
    return made[0].job_id, made[1].job_id


async def test_why_a_job_waits_is_told_without_jobs_and_queues_of_others(stage: Stage) -> None:
    ours, theirs = await ours_and_theirs(stage)
    [waits] = await stage.app.submit_many([("anything", 3, {"queue": "a-1", "depends_on": [ours, theirs]})])
    key = await stage.key("read", queues=["a-*"])
    who, all_queues = As(stage, key), await someone(stage, scopes=("read",))

    whole = (await all_queues("GET", f"/jobs/{waits.job_id}/explain")).json()
    assert set(whole["job_ids"]) == {ours, theirs} and theirs in whole["explanation"]
    found = await who("GET", f"/jobs/{waits.job_id}/explain")
    assert theirs not in found.text and found.json()["job_ids"] == [ours]
    assert ours in found.json()["explanation"] and "a job in another queue" in found.json()["explanation"]
    page = await stage.http.get(f"/dashboard/jobs/{waits.job_id}", headers=key)
    assert page.status_code == 200 and "a job in another queue" in page.text


async def test_why_nobody_takes_a_job_is_told_without_what_others_do(stage: Stage) -> None:
    ours, _ = await ours_and_theirs(stage)
    row = WorkerRow(
        worker_id="w-1",
        host="anna",
        pid=7,
        process_key="",
        version="1",
        queues=("b",),
        job_types=("anything",),
        started_at=stage.app.clock.now(),
        heartbeat_at=stage.app.clock.now(),
        versions={"anything": 1},
        concurrency=1,
    )
    await stage.app.store.beat(row)
    who = await someone(stage, "a-*", scopes=("read",))
    found = (await who("GET", f"/jobs/{ours}/explain")).json()
    assert found["reason"] == "no_worker_for_queue"
    assert found["explanation"] == "no live worker that handles anything serves the queue a-1"


@pytest.mark.parametrize("patterns", [("a-1",), ("a-*",), ("a-1", "x"), ("a-1", "a-2*")])
async def test_only_jobs_of_its_queues_are_found_and_none_is_left_out(stage: Stage, patterns: tuple[str, ...]) -> None:
    mine = []
    for n in range(60):  # ours stand far apart among theirs
        queue = "a-1" if n % 20 == 0 else "b"
        handle = await stage.app.submit("anything", n, queue=queue)
        mine += [handle.job_id] if queue == "a-1" else []
    who = await someone(stage, *patterns, scopes=("read",))

    for limit in (1, 7, 100):
        assert await who.ids(limit=limit) == mine[::-1]
    assert await who.ids("/jobs/anything", limit=7) == mine[::-1]
    assert await who.ids(queue="b") == []
    assert await who.ids(queue="a-1") == mine[::-1]
    assert (await who("GET", "/jobs", params={"queue": "b", "after": "nonsense"})).status_code == 422


async def test_a_job_of_another_queue_looks_like_none(stage: Stage) -> None:
    _, theirs = await ours_and_theirs(stage)
    who = await someone(stage, "a-*")
    for method, path, body in [
        ("GET", "", None), ("DELETE", "", None), ("PATCH", "", {"priority": 1}), ("POST", "/retry", None),
        ("POST", "/rerun", None), ("GET", "/history", None), ("GET", "/logs", None), ("GET", "/tree", None),
        ("GET", "/explain", None), ("GET", "/results", None), ("GET", "/results/comments", None),
        ("GET", "/results/comments/1", None), ("GET", "/artifacts", None), ("GET", "/artifacts/report.html", None),
        ("GET", "/steps", None), ("POST", "/events/approved", None),
    ]:  # fmt: skip
        options = {} if body is None else {"json": body}
        found = await who(method, f"/jobs/{theirs}{path}", **options)
        none = await who(method, f"/jobs/{NOBODY}{path}", **options)
        assert found.status_code == none.status_code == 404, (method, path)
        assert found.text.replace(theirs, "ID") == none.text.replace(NOBODY, "ID")
    assert (await who("DELETE", f"/jobs/anything/{theirs}")).status_code == 404
    assert (await stage.app.get(theirs)).version == 1


async def test_a_submit_to_another_queue_is_refused(stage: Stage) -> None:
    who = await someone(stage, "a-*", scopes=("submit",))
    for path, body in [
        ("/jobs/anything", {"payload": 1, "queue": "b"}),
        ("/jobs/anything", {"payload": 1}),  # whose own queue is another
        ("/jobs/anything", {"payload": 1, "queue": "a-1", "reuse": True, "content_hash": "h"}),
    ]:
        answer = await who("POST", path, json=body)
        assert (answer.status_code, answer.json()["type"]) == (403, "/problems/foreign-queue")
    assert (await who("POST", "/jobs/anything", json={"payload": 1, "queue": "a-1"})).status_code == 201
    assert len(await stage.app.find()) == 1


async def test_ids_inside_a_body_are_looked_at_as_if_they_were_asked_for(stage: Stage) -> None:
    ours, theirs = await ours_and_theirs(stage)
    who = await someone(stage, "a-*", scopes=("submit",))
    for inner in ({"depends_on": [ours, theirs]}, {"parent": theirs}, {"depends_on": [NOBODY]}, {"parent": NOBODY}):
        answer = await who("POST", "/jobs/anything", json={"payload": 1, "queue": "a-1", **inner})
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown-dependency"), inner
    assert (await stage.app.get(theirs)).dependent_count == 0
    good = await who("POST", "/jobs/anything", json={"payload": 1, "queue": "a-1", "depends_on": [ours]})
    assert good.status_code == 201


async def test_a_job_of_another_queue_does_not_answer_for_ours(stage: Stage) -> None:
    theirs = await stage.app.submit("anything", "secret", queue="b", dedup_key="k")
    who = await someone(stage, "a-*", scopes=("submit",))

    async def submitted(queue: str = "a-1", **same: str) -> httpx.Response:
        return await who("POST", "/jobs/anything", json={"payload": "ours", "queue": queue, **same})

    taken = await submitted(job_id=theirs.job_id)  # an id is one of the whole store
    assert taken.status_code == 409
    assert "secret" not in taken.text
    assert len(await stage.app.find()) == 1

    # A dedup key is one of its queue.
    first, again, other = (
        await submitted(dedup_key="k"),
        await submitted(dedup_key="k"),
        await submitted("a-2", dedup_key="k"),
    )
    assert [each.status_code for each in (first, again, other)] == [201, 200, 201]
    assert [each.json()["deduplicated"] for each in (first, again, other)] == [False, True, False]
    assert again.json()["job_id"] == first.json()["job_id"]
    assert len({theirs.job_id, first.json()["job_id"], other.json()["job_id"]}) == 3
    assert not [each for each in (first, again, other) if "secret" in each.text or theirs.job_id in each.text]
    assert len(await stage.app.find()) == 3


async def test_a_batch_is_looked_at_job_by_job(stage: Stage) -> None:
    ours, theirs = await ours_and_theirs(stage)
    who = await someone(stage, "a-*", scopes=("submit",))
    jobs = [
        {"queue": "a-1"},
        {"queue": "b"},
        {"queue": "a-1", "depends_on": [theirs]},
        {"queue": "a-1", "parent": theirs},
        {"queue": "a-1", "job_id": theirs},
        {"queue": "a-2", "depends_on": [ours], "job_id": NOBODY},
        {"queue": "a-2", "depends_on": [NOBODY]},
    ]
    answer = await who("POST", "/jobs/batch", json={"jobs": [{"job_type": "anything", **job} for job in jobs]})
    assert [item["status"] for item in answer.json()["items"]] == [201, 403, 404, 404, 409, 201, 201]
    assert len(await stage.app.find()) == 5
    assert (await stage.app.get(theirs)).version == 1


async def test_a_tree_that_reaches_into_other_queues_is_not_changed_as_a_whole(stage: Stage) -> None:
    top = await stage.app.submit("anything", 1, queue="a-1")
    child = await stage.app.submit("anything", 2, queue="b", parent=top)
    who = await someone(stage, "a-*")
    path = f"/jobs/{top.job_id}"

    assert (await who("DELETE", path, params={"subtree": "true"})).status_code == 403
    assert (await who("POST", f"{path}/retry", params={"subtree": "true"})).status_code == 403
    assert (await who("POST", f"{path}/rerun")).status_code == 403
    assert (await stage.app.get(child.job_id)).status == "pending"
    tree = (await who("GET", f"{path}/tree")).json()
    assert ([job["job_id"] for job in tree["items"]], tree["complete"]) == ([top.job_id], False)
    assert (await who("DELETE", path)).status_code == 200


async def test_queues_schedules_dead_letters_and_figures_are_those_of_its_queues(stage: Stage) -> None:
    for queue in ("a-1", "b"):
        await stage.app.submit("broken", 1, queue=queue)
        await stage.app.schedule(f"of-{queue}", "@daily", "anything", 1, queue=queue)
    async with stage.app.worker(queues=["a-1", "b"], poll_interval=0.05):
        for job in await stage.app.find():
            with pytest.raises(Exception, match="failed after"):
                await stage.app.result(job.job_id, timeout=30)
    await ours_and_theirs(stage)
    who = await someone(stage, "a-*")

    async def items(path: str) -> list[Any]:
        found: list[Any] = (await who("GET", path)).json()["items"]
        return found

    assert [queue["name"] for queue in await items("/queues")] == ["a-1"]
    assert [each["name"] for each in await items("/schedules")] == ["of-a-1"]
    assert [(group["job_type"], group["count"]) for group in await items("/dead")] == [("broken", 1)]
    stats = (await who("GET", "/stats")).json()
    assert (stats["counts"], stats["total"]["failed"], stats["total"]["submitted"]) == ({"pending": 1}, 1, 2)
    assert (await who("GET", "/audit")).status_code == 403
    assert (await who("POST", "/dead/retry")).json() == {"retried": 1}
    assert [job.queue for job in await stage.app.find(status="failed")] == ["b"]


async def test_other_queues_and_their_schedules_are_not_changed(stage: Stage) -> None:
    await stage.app.schedule("theirs", "@daily", "anything", 1, queue="b")
    who = await someone(stage, "a-*")
    body = {"cron": "@daily", "job_type": "anything", "payload": 1}
    for method, path, options, status in [
        ("POST", "/queues/b/pause", {}, 403),
        ("POST", "/queues/b/resume", {}, 403),
        ("POST", "/queues/b/limit", {"json": {"max_pending": 1}}, 403),
        ("GET", "/schedules/theirs", {}, 404),
        ("DELETE", "/schedules/theirs", {}, 404),
        ("POST", "/schedules/theirs/run", {}, 404),
        ("PUT", "/schedules/theirs", {"json": body | {"queue": "a-1"}}, 403),
        ("PUT", "/schedules/mine", {"json": body | {"queue": "b"}}, 403),
        ("PUT", "/schedules/mine", {"json": body}, 403),
        ("PUT", "/schedules/mine", {"json": body | {"queue": "a-1"}}, 201),
        ("POST", "/queues/a-1/pause", {}, 200),
    ]:
        answer = await who(method, path, **options)
        assert answer.status_code == status, (method, path, answer.text)
    assert [row.name for row in await stage.app.store.queues()] == ["a-1"]


@pytest.mark.parametrize(
    ("scope", "refused"),
    [
        (
            "read",
            [("POST", "/jobs/anything"), ("DELETE", "/jobs/ID"), ("POST", "/jobs/ID/retry"), ("PATCH", "/jobs/ID")],
        ),
        ("submit", [("GET", "/jobs"), ("GET", "/jobs/ID"), ("PATCH", "/jobs/ID"), ("POST", "/queues/q/pause")]),
        ("work", [("GET", "/jobs"), ("POST", "/jobs/anything"), ("DELETE", "/jobs/ID"), ("GET", "/audit")]),
    ],
)
async def test_a_scope_that_is_missing_comes_before_what_is_wrong_with_the_question(
    stage: Stage, scope: str, refused: list[tuple[str, str]]
) -> None:
    ours, _ = await ours_and_theirs(stage)
    who = await someone(stage, scopes=(scope,))
    for method, path in refused:
        answer = await who(method, path.replace("ID", ours), json={"nonsense": 1}, params={"nonsense": 1})
        assert (answer.status_code, answer.json()["type"]) == (403, "/problems/out-of-scope"), (method, path)


async def test_whoever_may_not_read_learns_nothing_of_what_is_in_a_job(stage: Stage) -> None:
    job = await stage.app.submit("broken", "their-secret", dedup_key="k", dedup_for="forever")
    await stage.run()
    who = await someone(stage, scopes=("submit",))
    path = f"/jobs/{job.job_id}"
    for answer in (
        await who("POST", "/jobs/broken", json={"payload": 1, "dedup_key": "k"}),
        await who("POST", "/jobs/broken", json={"payload": 1, "job_id": job.job_id}),
        await who("POST", "/jobs/batch", json={"jobs": [{"job_type": "broken", "payload": 1, "dedup_key": "k"}]}),
        await who("POST", f"{path}/retry"),
        await who("DELETE", path),
    ):
        assert answer.status_code == 200
        assert job.job_id in answer.text
        assert "their-secret" not in answer.text
    reader = await someone(stage, scopes=("read", "submit"))
    assert "their-secret" in (await reader("POST", f"{path}/retry")).text


async def test_a_submitter_can_take_back_and_repeat_its_jobs(stage: Stage) -> None:
    ours, _ = await ours_and_theirs(stage)
    who = await someone(stage, scopes=("submit",))
    assert (await who("DELETE", f"/jobs/{ours}")).status_code == 200
    assert (await who("POST", f"/jobs/{ours}/retry")).status_code == 200
