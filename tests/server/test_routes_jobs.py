"""Finding, reading and changing jobs over HTTP."""

from typing import Any

import httpx
import pytest

from backstay import codec
from tests.server.routes_fixtures import stage as stage
from tests.server.routes_stage import Stage

NOBODY = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"


async def all_pages(stage: Stage, path: str, **query: Any) -> list[str]:
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = await stage.get(path, **query, **after)
        found += [job["job_id"] for job in page["items"]]
        if page["next"] is None:
            return found
        after = {"after": page["next"]}


# Finding


async def test_each_filter_finds_what_it_names(stage: Stage) -> None:
    root = await stage.submit("anything", payload=0, subject="s", tags=["t"], content_hash="h", created_by="ada")
    child = await stage.submit("anything", payload=1, parent=root["job_id"])
    letter = await stage.submit("letter", payload={"to": "x"}, delay=60)
    everything = [letter["job_id"], child["job_id"], root["job_id"]]

    for query, wanted in [
        ({}, everything),
        ({"status": "scheduled"}, [letter["job_id"]]),
        ({"job_type": "letter"}, [letter["job_id"]]),
        ({"queue": "mail"}, [letter["job_id"]]),
        ({"subject": "s"}, [root["job_id"]]),
        ({"tag": "t"}, [root["job_id"]]),
        ({"created_by": "ada"}, [root["job_id"]]),
        ({"content_hash": "h"}, [root["job_id"]]),
        ({"root": root["job_id"]}, [child["job_id"]]),
        ({"worker": "nobody"}, []),
        ({"status": "pending", "job_type": "letter"}, []),
    ]:
        assert await all_pages(stage, "/jobs", **query) == wanted, query
    assert await all_pages(stage, "/jobs/letter", status="scheduled") == [letter["job_id"]]
    assert await all_pages(stage, "/jobs/anything") == everything[1:]
    assert await all_pages(stage, "/jobs/never-heard-of") == []


@pytest.mark.parametrize("order", ["created", "priority"])
@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_paging_neither_skips_nor_repeats_while_others_submit(stage: Stage, order: str, limit: int) -> None:
    jobs = await stage.app.submit_many([("anything", n, {"priority": n * 7 % 101}) for n in range(50)])
    wanted = {job.job_id for job in jobs}
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = await stage.get("/jobs", limit=limit, order=order, status="pending", **after)
        found += [job["job_id"] for job in page["items"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
        await stage.submit("anything", payload="new", priority=100)  # it comes before all that were seen

    assert len(found) == len(set(found))
    assert set(found) & wanted == wanted
    if order == "created":
        assert found[: len(wanted)] == [job.job_id for job in reversed(jobs)]


async def test_a_page_is_not_longer_than_was_asked_for(stage: Stage) -> None:
    await stage.app.submit_many([("anything", n) for n in range(5)])
    page = await stage.get("/jobs", limit=3)
    assert (len(page["items"]), page["next"] is None) == (3, False)


async def test_a_page_of_large_jobs_is_shorter_and_goes_on(stage: Stage) -> None:
    await stage.app.submit_many([("anything", "x" * 100_000) for _ in range(250)])
    page = await stage.get("/jobs", limit=1000)
    assert (len(page["items"]), page["next"] is None) == (100, False)
    assert len(await all_pages(stage, "/jobs", limit=1000)) == 250


async def test_a_long_page_of_small_jobs_is_whole(stage: Stage) -> None:
    await stage.app.submit_many([("anything", n) for n in range(450)])
    page = await stage.get("/jobs", limit=430)
    assert [job["payload"] for job in page["items"]] == list(range(449, 19, -1))
    assert page["next"] is not None


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"status": "done"}, "status"),
        ({"order": "random"}, "order"),
        ({"after": "nonsense"}, "cursor"),
        ({"colour": "red"}, "unknown query parameter 'colour'"),
        ({"job_type": "a b"}, "job_type"),
        ({"root": "seven"}, "ids are UUIDs"),
        ({"subject": "a\0b"}, "NUL"),
    ],
    ids=str,
)
async def test_a_search_that_cannot_be_meant_is_refused_by_name(stage: Stage, query: Any, says: str) -> None:
    answer = await stage.ask("GET", "/jobs", params=query)
    assert answer.status_code == 422
    assert says in answer.json()["detail"]


async def test_a_parameter_that_does_not_exist_is_refused_everywhere(stage: Stage) -> None:
    job = await stage.submit(payload=1)
    for path in ("/queues", "/schedules", "/dead", "/stats", "/audit", f"/jobs/{job['job_id']}/history"):
        answer = await stage.ask("GET", path, params={"colour": "red"})
        assert (answer.status_code, "colour" in answer.json()["detail"]) == (422, True), path


async def test_a_parameter_that_stands_there_twice_is_refused_by_name(stage: Stage) -> None:
    for path, name in (("/jobs", "status"), ("/jobs/anything", "limit"), ("/stats", "minutes"), ("/audit", "limit")):
        answer = await stage.ask("GET", path, params=[(name, "1"), (name, "2")])
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request"), path
        assert f"the query parameter {name} appears more than once" in answer.json()["detail"]


# Reading


async def test_a_job_is_read_by_its_id_in_any_spelling_and_by_its_type(stage: Stage) -> None:
    job = await stage.submit("letter", payload={"to": "x"})
    job_id = job["job_id"]
    assert await stage.get(f"/jobs/{job_id}") == job
    assert (await stage.http.get(f"/jobs/{job_id.upper()}")).json() == job
    assert await stage.get(f"/jobs/letter/{job_id}") == job
    assert (await stage.ask("GET", f"/jobs/anything/{job_id}")).status_code == 404


async def test_a_job_that_is_not_there_is_not_found(stage: Stage) -> None:
    for method, path in [
        ("GET", ""), ("DELETE", ""), ("PATCH", ""), ("POST", "/retry"), ("POST", "/rerun"), ("GET", "/history"),
        ("GET", "/logs"), ("GET", "/tree"), ("GET", "/explain"), ("GET", "/results"), ("GET", "/results/comments"),
        ("GET", "/results/comments/1"), ("GET", "/artifacts"), ("GET", "/artifacts/report.html"), ("GET", "/steps"),
        ("POST", "/events/approved"),
    ]:  # fmt: skip
        body = {"json": {"priority": 1}} if method == "PATCH" else {}
        answer = await stage.ask(method, f"/jobs/{NOBODY}{path}", **body)
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/job-not-found"), (method, path)


async def test_a_large_result_is_in_the_record_and_left_out_of_lists(stage: Stage) -> None:
    job = await stage.submit("report", payload=1)
    await stage.run()
    assert (await stage.get(f"/jobs/{job['job_id']}"))["result"] == "x" * 100_000
    [listed] = (await stage.get("/jobs"))["items"]
    assert (listed["status"], listed["result"]) == ("completed", None)


async def test_what_is_read_is_what_the_command_line_prints(stage: Stage) -> None:
    job = await stage.submit("letter", payload={"to": "schön ☃"}, tags=["ü"])
    await stage.submit("broken", payload="x")
    await stage.run()
    for each in await stage.app.find():
        assert await stage.get(f"/jobs/{each.job_id}") == codec.decode(codec.encode(each.to_dict()))
    assert (await stage.get(f"/jobs/{job['job_id']}"))["payload"] == {"to": "schön ☃", "copies": 1}


# Changing


async def test_a_job_is_cancelled_once(stage: Stage) -> None:
    job = await stage.submit(payload=1)
    first = await stage.ask("DELETE", f"/jobs/{job['job_id']}", params={"reason": "not needed"})
    second = await stage.ask("DELETE", f"/jobs/anything/{job['job_id']}")

    assert (first.status_code, first.json()["status"]) == (200, "cancelled")
    assert (second.status_code, second.json()["type"]) == (409, "/problems/illegal-transition")
    last = (await stage.get(f"/jobs/{job['job_id']}/history"))["items"][-1]
    assert (last["by"], last["reason"]) == ("local", "not needed")


async def test_a_change_is_made_only_at_the_version_that_was_read(stage: Stage) -> None:
    job = await stage.submit(payload=1)
    path = f"/jobs/{job['job_id']}"
    read = (await stage.ask("GET", path)).headers["etag"]

    moved = await stage.ask("PATCH", path, json={"priority": 1}, headers={"If-Match": read})
    late = await stage.ask("PATCH", path, json={"priority": 2}, headers={"If-Match": read})
    late_cancel = await stage.ask("DELETE", path, headers={"If-Match": read})
    cancelled = await stage.ask("DELETE", path, headers={"If-Match": moved.headers["etag"]})
    late_retry = await stage.ask("POST", f"{path}/retry", headers={"If-Match": read})
    bad = await stage.ask("DELETE", path, headers={"If-Match": "yesterday"})

    assert (moved.status_code, moved.json()["priority"], moved.headers["etag"]) == (200, 1, '"2"')
    assert [each.status_code for each in (late, late_cancel, cancelled, late_retry, bad)] == [412, 412, 200, 412, 422]
    assert late.json()["type"] == "/problems/version-conflict"


async def test_a_job_is_moved_in_line_and_in_time(stage: Stage) -> None:
    job = await stage.submit(payload=1)
    path = f"/jobs/{job['job_id']}"
    body = {"priority": "urgent", "run_at": "2031-01-01T00:00:00Z", "reason": "later"}
    moved = (await stage.ask("PATCH", path, json=body, headers={"If-Match": '"1"'})).json()
    assert (moved["status"], moved["priority"], moved["scheduled_for"]) == ("scheduled", 100, "2031-01-01T00:00:00Z")
    assert (await stage.ask("PATCH", path, json={"delay": 0})).json()["status"] == "pending"


async def test_a_time_that_is_refused_leaves_the_priority_as_it_was(stage: Stage) -> None:
    first = await stage.submit(payload=1)
    job = await stage.submit(payload=2, depends_on=[first["job_id"]])
    answer = await stage.ask("PATCH", f"/jobs/{job['job_id']}", json={"priority": 99, "delay": 5})
    assert answer.status_code == 409
    assert (await stage.get(f"/jobs/{job['job_id']}"))["priority"] == 50


@pytest.mark.parametrize(
    "body", [{}, {"reason": "x"}, {"priority": 101}, {"delay": 1, "run_at": "2031-01-01T00:00:00Z"}]
)
async def test_a_change_that_says_nothing_or_too_much_is_refused(stage: Stage, body: Any) -> None:
    job = await stage.submit(payload=1)
    assert (await stage.ask("PATCH", f"/jobs/{job['job_id']}", json=body)).status_code == 422


async def test_a_failed_job_runs_again(stage: Stage) -> None:
    job = await stage.submit("broken", payload="luck")
    await stage.run()
    path = f"/jobs/{job['job_id']}"
    assert (await stage.get(path))["last_error"] == "ValueError: no luck"
    again = await stage.ask("POST", f"{path}/retry", json={"reason": "fixed"})
    assert (again.status_code, again.json()["status"]) == (200, "pending")
    assert (await stage.ask("POST", f"{path}/retry")).status_code == 409


async def statuses(stage: Stage, path: str) -> list[str]:
    return [job["status"] for job in (await stage.get(f"{path}/tree"))["items"]]


async def test_a_tree_is_cancelled_and_run_again_as_a_whole(stage: Stage) -> None:
    parent = await stage.submit("parent", payload=3)
    await stage.run()
    path = f"/jobs/{parent['job_id']}"
    await stage.run()  # what the parent has brought
    assert await statuses(stage, path) == ["completed"] * 4

    assert (await stage.ask("POST", f"{path}/rerun", json={"reason": "new model"})).status_code == 200
    assert await statuses(stage, path) == ["pending"] + ["completed"] * 3
    assert (await stage.ask("DELETE", path, params={"subtree": "true"})).status_code == 200
    assert await statuses(stage, path) == ["cancelled"] + ["completed"] * 3
    assert (await stage.ask("POST", f"{path}/retry", params={"subtree": "true"})).status_code == 200
    assert await statuses(stage, path) == ["pending"] + ["completed"] * 3


async def test_every_change_is_in_the_audit_trail_with_before_and_after(stage: Stage) -> None:
    job = await stage.submit(payload="secret-payload")
    path = f"/jobs/{job['job_id']}"
    await stage.ask("PATCH", path, json={"priority": 1})
    await stage.ask("DELETE", path)
    await stage.ask("DELETE", path)
    await stage.ask("POST", f"{path}/retry")

    trail = (await stage.get("/audit"))["items"]
    assert [(each["action"], each["outcome"]) for each in trail] == [
        ("job.retry", "ok"),
        ("job.cancel", "IllegalTransition"),
        ("job.cancel", "ok"),
        ("job.patch", "ok"),
    ]
    patch = trail[-1]
    assert (patch["by"], patch["via"], patch["target"], patch["remote"]) == (
        "local",
        "http",
        job["job_id"],
        "127.0.0.1",
    )
    assert (patch["before"]["priority"], patch["after"]["priority"]) == (50, 1)
    assert "secret-payload" not in str(trail)


async def test_an_unknown_method_or_path_is_a_problem(stage: Stage) -> None:
    job = await stage.submit(payload=1)
    for method, path, status in [
        ("POST", f"/jobs/{job['job_id']}", 404),
        ("GET", "/jobs/batch", 405),
        ("PUT", "/jobs", 405),
        ("GET", "/jobs/", 404),
        ("GET", "/jobs/a b", 404),
        ("GET", f"/jobs/{job['job_id']}/nothing", 404),
    ]:
        answer = await stage.http.request(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path


# Many at once


async def test_many_jobs_are_cancelled_and_retried_in_one_request(stage: Stage) -> None:
    ids = [(await stage.submit("letter", payload={"to": str(n)}))["job_id"] for n in range(3)]
    other = await stage.submit(payload=1)
    asked = {"filter": {"job_type": "letter", "status": "pending"}}

    planned = (await stage.ask("POST", "/jobs/cancel", json=asked | {"dry_run": True})).json()
    done = (await stage.ask("POST", "/jobs/cancel", json=asked | {"reason": "not today"})).json()
    again = (await stage.ask("POST", "/jobs/retry", json={"job_ids": [*ids, other["job_id"]]})).json()

    assert sorted(planned["changed"]) == sorted(done["changed"]) == sorted(again["changed"]) == sorted(ids)
    assert (planned["by_status"], planned["dry_run"], done["more"]) == ({"pending": 3}, True, False)
    assert again["refused"] == [{"job_id": other["job_id"], "job_type": "anything", "why": "it is still pending"}]
    trail = (await stage.get("/audit"))["items"]
    assert [(each["action"], each["via"], each["by"]) for each in trail] == [
        ("jobs.bulk_retry", "http", "local"),
        ("jobs.bulk_cancel", "http", "local"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"job_ids": []},
        {"filter": {}},
        {"filter": {"status": None}},
        {"filter": {"status": "faild"}},
        {"filter": {"order": "priority"}},
        {"filter": {"created_until": "yesterday"}},
        {"job_ids": ["x"]},
        {"job_ids": ["019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"], "filter": {"job_type": "letter"}},
        {"filter": {"job_type": "letter"}, "dry_run": "yes"},
    ],
    ids=str,
)
async def test_a_bulk_change_that_cannot_be_meant_is_refused(stage: Stage, body: Any) -> None:
    await stage.submit("letter", payload={"to": "x"})
    assert (await stage.ask("POST", "/jobs/cancel", json=body)).status_code == 422
    assert [job["status"] for job in (await stage.get("/jobs"))["items"]] == ["pending"]


async def test_a_bulk_change_touches_only_queues_of_the_key_and_a_search_takes_the_scope_read(stage: Stage) -> None:
    letter = await stage.submit("letter", payload={"to": "x"})
    other = await stage.submit(payload=1)
    submitter = await stage.key("submit", queues=("mail*",))
    reader = await stage.key("read", "submit", queues=("mail*",))

    async def cancel(key: dict[str, str], body: Any) -> httpx.Response:
        return await stage.ask("POST", "/jobs/cancel", json=body, headers=key)

    assert (await cancel(submitter, {"filter": {"status": "pending"}})).status_code == 403
    named = (await cancel(submitter, {"job_ids": [other["job_id"]]})).json()
    assert [(each["job_type"], each["why"]) for each in named["refused"]] == [(None, "no such job")]
    assert (await cancel(reader, {"filter": {"status": "pending"}})).json()["changed"] == [letter["job_id"]]
    assert (await stage.app.get(other["job_id"])).status == "pending"


async def test_the_words_of_bulk_changes_are_not_job_types(stage: Stage) -> None:
    for word in ("cancel", "retry"):
        assert (await stage.http.get(f"/jobs/{word}")).status_code == 405


async def test_jobs_run_again_without_their_recorded_steps_if_asked(stage: Stage) -> None:
    job_id = (await stage.submit())["job_id"]
    await stage.run()
    for path, body in (
        (f"/jobs/{job_id}/retry", {"forget_steps": True}),
        (f"/jobs/{job_id}/rerun", {"forget_steps": True, "reason": "new data"}),
        ("/jobs/retry", {"job_ids": [job_id], "forget_steps": True}),
    ):
        asked = await stage.ask("POST", path, json=body)
        assert asked.status_code == 200, asked.text
        assert (await stage.get(f"/jobs/{job_id}/history"))["items"][-1]["forget_steps"] is True
        await stage.run()
    assert (await stage.ask("POST", f"/jobs/{job_id}/retry", json={"forget_steps": "yes"})).status_code == 422
    refused = await stage.ask("POST", "/jobs/cancel", json={"job_ids": [job_id], "forget_steps": True})
    assert refused.status_code == 422
    assert (await stage.ask("POST", "/dead/retry", json={"forget_steps": True})).json() == {"retried": 0}
