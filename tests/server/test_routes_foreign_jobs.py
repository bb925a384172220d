"""To a key for some queues, a job of another queue is the same as one that does not exist: byte for byte."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

import httpx
import pytest

from backstay import JobFailed
from backstay.core.records import WorkerRow
from backstay.dashboard import page
from backstay.server.routes import streams
from tests.server.routes_fixtures import stage as stage
from tests.server.routes_stage import Stage

QUEUES = ("mail*",)
UNKNOWN = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"
TOKEN = "1.abcdefghijklmnopqrstuvwx.abcdefghijklmnopqrstuvwx"
# Of routes that name a job in their path: a body where one is needed. A new route of this kind is covered at once, or
# fails here until its body is known.
BODIES: dict[str, Any] = {
    "PATCH /jobs/{job_id:uuid}": {"priority": 5},
    "POST /jobs/{job_id:uuid}/complete": {"token": TOKEN, "result": 1},
    "POST /jobs/{job_id:uuid}/fail": {"token": TOKEN, "error": {"type": "E", "message": "m"}},
    "POST /jobs/{job_id:uuid}/outcome": {"token": TOKEN, "outcome": "give_back"},
    "POST /jobs/{job_id:uuid}/extend": {"token": TOKEN},
    "POST /jobs/{job_id:uuid}/progress": {"token": TOKEN, "progress": 0.5},
    "POST /jobs/{job_id:uuid}/output": {"token": TOKEN, "first": 1, "entries": ["Once "]},
    "POST /jobs/{job_id:uuid}/step": {"token": TOKEN, "name": "charge"},
    "POST /jobs/{job_id:uuid}/wait": {"token": TOKEN, "name": "cooldown", "seconds": 60},
}
PARTS = {"job_type": "anything", "name": "report.html", "table": "comments", "key": "1"}


def filled(path: str, job_id: str) -> str:
    named = re.sub(r"\{(?:job_)?id(?::\w+)?\}", job_id, path)
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: PARTS[found[1]], named)


def plain(answer: httpx.Response, *names: str) -> tuple[Any, ...]:
    """All of an answer, without the names that were asked for."""
    text = answer.text
    for name in names:
        text = text.replace(name, "…").replace(name.replace("-", ""), "…").replace(name[:8], "…")
    kept = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "content-length")}
    for name in names:
        kept = {header: value.replace(name, "…") for header, value in kept.items()}
    return answer.status_code, text, kept


async def foreign_jobs(stage: Stage) -> dict[str, str]:
    """Jobs in a queue that the key does not see, in every kind of state."""
    app = stage.app
    found = {
        "done": await app.submit("report", 1, queue="secret", subject="s-1", tags=["t-1"], content_hash="h-1"),
        "dead": await app.submit("broken", 1, queue="secret"),
        "parent": await app.submit("parent", 2, queue="secret"),
    }
    async with app.worker(queues=["secret", "default"], poll_interval=0.05):
        for job in found.values():
            with suppress(JobFailed):
                await app.result(job.job_id, timeout=30)
    found["pending"] = await app.submit("anything", 1, queue="secret", dedup_key="taken", created_by="someone")
    found["later"] = await app.submit("anything", 1, queue="secret", delay=600)
    found["cancelled"] = await app.submit("anything", 1, queue="secret")
    await app.cancel(found["cancelled"].job_id)
    return {name: job.job_id for name, job in found.items()}


async def test_every_route_answers_for_a_foreign_job_as_for_one_that_does_not_exist(stage: Stage) -> None:
    jobs = await foreign_jobs(stage)
    key = await stage.key("admin", queues=QUEUES)
    asked = [(method, path) for method, path in stage.routes if re.search(r"\{(job_)?id\b", path)]
    assert len(asked) > 25
    await stage.http.get("/dashboard/jobs", headers=key)  # a first visit sets a cookie, which forms are checked against
    form = {page.FIELD: page._token(stage.http.cookies[page.FORM_COOKIE]), "version": "1", "priority": "5"}
    differ = []
    for method, path in asked:
        body = BODIES.get(f"{method} {path}")
        options: dict[str, Any] = {"headers": key} if body is None else {"headers": key, "json": body}
        if method == "POST" and path.startswith("/dashboard"):
            options = {"headers": {**key, "Sec-Fetch-Site": "same-origin"}, "data": form}
        unknown = plain(await stage.http.request(method, filled(path, UNKNOWN), **options), UNKNOWN)
        if unknown[0] != 404:
            differ.append(f"{method} {path} answers {unknown[:2]}")
        for state, job_id in jobs.items():
            answer = plain(await stage.http.request(method, filled(path, job_id), **options), job_id)
            if answer != unknown:
                differ.append(f"{method} {path}: {state}: {answer[:2]} but {unknown[:2]}")
    assert differ == []


@pytest.mark.parametrize("many", [False, True], ids=["alone", "in a batch"])
async def test_an_id_inside_a_body_is_answered_alike(stage: Stage, many: bool) -> None:
    jobs = await foreign_jobs(stage)
    key = await stage.key("admin", queues=QUEUES)

    async def submitted(**body: Any) -> httpx.Response:
        job = {"payload": {"to": "ada"}, **body}
        if not many:
            return await stage.ask("POST", "/jobs/letter", json=job, headers=key)
        return await stage.ask("POST", "/jobs/batch", json={"jobs": [{"job_type": "letter", **job}]}, headers=key)

    for job_id in jobs.values():
        for body in ({"depends_on": [UNKNOWN]}, {"parent": UNKNOWN}):
            theirs = {name: job_id if isinstance(value, str) else [job_id] for name, value in body.items()}
            unknown, foreign = await submitted(**body), await submitted(**theirs)
            assert plain(foreign, job_id) == plain(unknown, UNKNOWN)
    for path in ("/jobs/cancel", "/jobs/retry"):
        for dry_run in (True, False):
            unknown = await stage.ask("POST", path, json={"job_ids": [UNKNOWN], "dry_run": dry_run}, headers=key)
            for job_id in jobs.values():
                body = {"job_ids": [job_id], "dry_run": dry_run}
                assert plain(await stage.ask("POST", path, json=body, headers=key), job_id) == plain(unknown, UNKNOWN)


async def test_a_search_finds_nothing_of_other_queues(stage: Stage) -> None:
    jobs = await foreign_jobs(stage)
    key = await stage.key("admin", queues=QUEUES)
    worker = (await stage.app.get(jobs["done"])).worker_id
    assert worker is not None
    for asked in (
        {"root": jobs["parent"]}, {"content_hash": "h-1"}, {"subject": "s-1"}, {"tag": "t-1"}, {"worker": worker},
        {"created_by": "someone"}, {"queue": "secret"}, {"job_type": "report"}, {"status": "failed"},
    ):  # fmt: skip
        for queues in (QUEUES, ("mail",)):
            limited = await stage.key("admin", queues=queues)
            answer = await stage.ask("GET", "/jobs", params=asked, headers=limited)
            assert (answer.status_code, answer.json()) == (200, {"items": [], "next": None})
    for path in (
        "/dead",
        "/stats",
        "/workers",
        "/queues",
        "/schedules",
        "/types",
        "/dashboard/subjects",
        "/dashboard/",
    ):
        text = (await stage.http.get(path, headers=key, follow_redirects=True)).text
        assert not [name for name in ("secret", "s-1", worker, *jobs.values()) if name in text], path


async def test_a_dedup_key_of_another_queue_is_neither_seen_nor_taken(stage: Stage) -> None:
    app = stage.app
    theirs = await app.submit("anything", 1, queue="secret", dedup_key="taken")
    key = await stage.key("admin", queues=QUEUES)
    letter = {"payload": {"to": "ada"}}

    async def submitted(dedup_key: str, **more: Any) -> httpx.Response:
        return await stage.ask("POST", "/jobs/letter", json={**letter, "dedup_key": dedup_key, **more}, headers=key)

    taken, free = await submitted("taken"), await submitted("free")
    assert (taken.status_code, free.status_code) == (201, 201)
    assert (taken.json()["dedup_key"], free.json()["dedup_key"]) == ("taken", "free")
    again = await submitted("taken")
    assert (again.status_code, again.json()["job_id"]) == (200, taken.json()["job_id"])
    refused = await submitted("taken", payload={"to": "bob"}, dedup="error")
    assert (refused.status_code, refused.json()["detail"].count("taken")) == (409, 1)
    assert "\\u001f" not in refused.text and "mail" not in refused.json()["detail"]

    # Nor can the key take one away from others.
    ours = await submitted("of the night")
    job = await app.submit("anything", 1, queue="secret", dedup_key="of the night")
    assert not job.deduplicated and job.job_id != ours.json()["job_id"]
    assert (await app.get(theirs.job_id)).dedup_key == "taken"
    assert (await app.get(ours.json()["job_id"])).dedup_key == "of the night"


async def test_an_id_that_is_taken_in_another_queue_is_refused_without_a_word_about_its_job(stage: Stage) -> None:
    jobs = await foreign_jobs(stage)
    key = await stage.key("submit", queues=QUEUES)
    answers = [
        await stage.ask("POST", "/jobs/letter", json={"payload": {"to": "ada"}, "job_id": job_id}, headers=key)
        for job_id in jobs.values()
    ]
    assert {answer.status_code for answer in answers} == {409}
    assert len({str(plain(answer, *jobs.values())) for answer in answers}) == 1
    assert "secret" not in answers[0].text and "queue" not in answers[0].json()["detail"]


async def test_a_job_of_ours_names_no_relatives_in_other_queues(stage: Stage) -> None:
    app = stage.app
    parent = await app.submit("anything", 1, queue="secret")
    needed = await app.submit("anything", 1, queue="secret")
    ours = await app.submit("letter", {"to": "ada"}, parent=parent.job_id, depends_on=[needed.job_id])
    other = await app.submit("letter", {"to": "eve"})
    mine = await app.submit("letter", {"to": "bob"}, parent=ours.job_id, depends_on=[other.job_id, needed.job_id])
    await app.submit("anything", 2, queue="secret", depends_on=[mine.job_id])
    key = await stage.key("admin", queues=QUEUES)

    async def shown(path: str) -> str:
        answer = await stage.http.get(path, headers=key)
        assert answer.status_code == 200, answer.text
        return answer.text

    read = f"/jobs/{mine.job_id}"
    record = (await stage.ask("GET", read, headers=key)).json()
    assert (record["parent_job_id"], record["root_job_id"]) == (ours.job_id, None)
    assert (record["dependencies"], record["dependent_jobs"]) == ([other.job_id], [])
    hidden = (parent.job_id, needed.job_id, "secret")
    ends = ("", "/tree", "/explain", "/history", "/logs")
    for path in ("/jobs", "/jobs/letter", *(read + end for end in ends), f"/dashboard/jobs/{mine.job_id}"):
        text = await shown(path)
        assert not [name for name in hidden if name in text], path

    await app.cancel(needed.job_id)  # which takes those that depend on it with it
    await app.store.release(app.clock.now(), 100)
    assert (await app.get(ours.job_id)).status == "cancelled"
    for job in (ours, mine):
        for end in (*ends, "/stream", "/tree/stream"):
            text = await shown(f"/jobs/{job.job_id}{end}")
            assert not [name for name in hidden if name in text], end
        assert needed.job_id not in await shown(f"/dashboard/jobs/{job.job_id}")
    explained = (await stage.ask("GET", f"/jobs/{ours.job_id}/explain", headers=key)).json()
    assert not [job for job in explained["params"].get("jobs", []) if job.get("status") or job.get("job_id")]


async def test_a_dead_letter_of_ours_does_not_name_the_foreign_job_that_it_died_of(stage: Stage) -> None:
    theirs = (await stage.app.submit("anything", 1, queue="secret", delay=600)).job_id
    ours = await stage.app.submit(
        "anything", 2, queue="mail-1", depends_on=[theirs], on_dependency_failure="fail", subject="s-2"
    )
    await stage.app.cancel(theirs)
    assert (await stage.app.get(ours.job_id)).status == "failed"
    key = await stage.key("read", queues=QUEUES)

    group = {"type": "anything", "error": "DependencyFailed"}
    for path, asked in [
        ("/dead", {}),
        ("/dashboard/dead", {}),
        ("/dashboard/dead/group", group),
        ("/dashboard/subjects", {"subject": "s-2"}),
    ]:
        answer = await stage.http.get(path, params=asked, headers=key)
        assert answer.status_code == 200, path
        assert "another job" in answer.text, path
        assert theirs not in answer.text, path


async def test_a_worker_of_other_queues_cannot_be_told_from_one_that_does_not_exist(stage: Stage) -> None:
    now = stage.app.clock.now()
    row = WorkerRow(
        worker_id="theirs", host="h", pid=1, process_key="remote", version="1", queues=("secret",),
        job_types=("anything",), concurrency=1, started_at=now, heartbeat_at=now,
    )  # fmt: skip
    await stage.app.store.beat(row)
    key = await stage.key("work", queues=QUEUES)
    for end in ("heartbeat", "claim"):
        foreign = await stage.ask("POST", f"/workers/theirs/{end}", json={}, headers=key)
        unknown = await stage.ask("POST", f"/workers/nobody/{end}", json={}, headers=key)
        assert plain(foreign, "theirs") == plain(unknown, "nobody")


@pytest.mark.parametrize("what", ["stream", "tree/stream"])
async def test_a_stream_hides_a_foreign_id_that_comes_up_while_it_runs(
    stage: Stage, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = stage.app
    foreign = await app.submit("anything", 1, queue="secret")
    seen = await app.submit("broken", foreign.job_id, queue="mail")  # fails with an error that quotes it
    key = await stage.key("read", queues=QUEUES)
    begun = asyncio.Event()
    name = "of_job" if what == "stream" else "of_tree"
    told = getattr(streams, name)
    monkeypatch.setattr(streams, name, lambda *given: begun.set() or told(*given))

    streamed = asyncio.create_task(stage.http.get(f"/jobs/{seen.job_id}/{what}", headers=key))
    await begun.wait()
    async with app.worker(queues=["mail"], poll_interval=0.05):
        text = (await streamed).text

    assert "ValueError: no another job" in text
    assert foreign.job_id not in text
