"""Submitting over HTTP: one job, a batch, and what makes a repeat safe."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay
from backstay.engines.sqlite import insert
from backstay.errors import InvalidOption
from backstay.job import document as job_document
from tests.server.routes_fixtures import stage as stage
from tests.server.routes_stage import Stage, staged, staged_app


async def test_a_job_is_stored_and_answered_with_its_record(stage: Stage) -> None:
    body = {"payload": {"to": "Ada"}, "priority": "high", "subject": "user:7", "tags": ["a"], "timeout": 30}
    answer = await stage.ask("POST", "/jobs/letter", json=body)

    job = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/jobs/{job['job_id']}"
    assert answer.headers["etag"] == '"1"'
    assert (job["job_type"], job["queue"], job["status"], job["priority"]) == ("letter", "mail", "pending", 75)
    assert (job["payload"], job["subject"], job["tags"]) == ({"to": "Ada", "copies": 1}, "user:7", ["a"])
    assert (job["timeout_seconds"], job["deduplicated"], job["created_by"]) == (30, False, "local")
    assert "claim_token" not in job
    assert (await stage.app.get(job["job_id"])).payload == {"to": "Ada", "copies": 1}


async def test_the_answer_is_what_reading_it_gives(stage: Stage) -> None:
    job = await stage.submit("letter", payload={"to": "Ada"}, run_at="2031-01-01T00:00:00+01:00")
    assert job["scheduled_for"] == "2030-12-31T23:00:00Z"
    assert await stage.get(f"/jobs/{job['job_id']}") == job


async def test_it_runs_and_its_result_is_in_the_record(stage: Stage) -> None:
    job = await stage.submit("letter", payload={"to": "Ada"})
    await stage.run()
    done = await stage.get(f"/jobs/letter/{job['job_id']}")
    assert (done["status"], done["result"], done["progress"]) == ("completed", {"sent": "Ada"}, 1.0)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"payload": {}}, 422, "to: Field required"),
        ({"payload": {"to": 7}}, 422, "to"),
        ({"payload": {"to": "x"}, "colour": 1}, 422, "body.colour"),
        ({"payload": {"to": "x"}, "priority": 101}, 422, "priority"),
        ({"payload": {"to": "x"}, "priority": "soon"}, 422, "priority"),
        ({"payload": {"to": "x"}, "delay": "5"}, 422, "delay"),
        ({"payload": {"to": "x"}, "run_at": 1700000000}, 422, "2026-11-15T09:30:00Z"),
        ({"payload": {"to": "x"}, "run_at": "2031-01-01T00:00:00"}, 422, "run_at"),
        ({"payload": {"to": "x"}, "run_at": "2031-01-01T00:00:00Z", "delay": 5}, 422, "are mutually exclusive"),
        ({"payload": {"to": "x"}, "job_id": "seven"}, 422, "ids are UUIDs"),
        ({"payload": {"to": "x"}, "depends_on": ["019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"]}, 404, "to depend on"),
        ({"payload": {"to": "x" * 300_000}}, 413, "PAYLOAD_BYTES_MAX"),
        ({"payload": {"to": "x"}, "dedup_key": "k", "dedup_for": 1e300}, 422, "dedup_for"),
        ({"payload": {"to": "x"}, "content_hash": "h", "reuse": 1e300}, 422, "reuse"),
        ({"payload": {"to": "x"}, "connection": 1}, 422, "connection"),
        ([], 422, "body"),
    ],
    ids=str,
)  # fmt: skip
async def test_a_mistake_is_told_in_a_sentence_and_nothing_is_stored(
    stage: Stage, body: Any, status: int, says: str
) -> None:
    answer = await stage.ask("POST", "/jobs/letter", json=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in answer.json()["detail"]
    assert await stage.app.find() == []


async def test_an_unknown_type_is_not_found(stage: Stage) -> None:
    answer = await stage.ask("POST", "/jobs/nobody", json={})
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown-job-type")


async def test_a_payload_that_does_not_fit_is_told_place_by_place(stage: Stage) -> None:
    wrong = {"to": 7, "copies": "many"}
    submitted = await stage.ask("POST", "/jobs/letter", json={"payload": wrong})
    planned = await stage.ask("PUT", "/schedules/s", json={"cron": "@daily", "job_type": "letter", "payload": wrong})
    [item] = await batch(stage, {"job_type": "letter", "payload": wrong})
    for problem, within in ((submitted.json(), "body."), (planned.json(), "body."), (item["problem"], "")):
        assert problem["type"] == "/problems/invalid-payload"
        assert [each["loc"] for each in problem["errors"]] == [f"{within}payload.to", f"{within}payload.copies"]
        assert all(each["msg"] for each in problem["errors"])


async def test_a_type_that_only_a_worker_knows_is_taken_and_checked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with staged_app(url):
        pass
    async with staged(Backstay(url)) as stage:
        assert (await stage.submit("letter", payload={"to": "Ada"}))["queue"] == "mail"
        refused = await stage.ask("POST", "/jobs/letter", json={"payload": {"to": 7}})
        assert refused.status_code == 422
        assert [each["loc"] for each in refused.json()["errors"]] == ["body.payload.to"]


async def test_a_duplicate_answers_200_and_says_so(stage: Stage) -> None:
    first = await stage.ask("POST", "/jobs/anything", json={"payload": 1, "dedup_key": "k"})
    second = await stage.ask("POST", "/jobs/anything", json={"payload": 1, "dedup_key": "k"})
    third = await stage.ask("POST", "/jobs/anything", json={"payload": 2, "dedup_key": "k", "dedup": "error"})

    assert (first.status_code, second.status_code, third.status_code) == (201, 200, 409)
    assert second.json() == first.json() | {"deduplicated": True}


async def test_a_given_id_makes_a_repeat_safe(stage: Stage) -> None:
    given = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"
    for status in (201, 200):
        answer = await stage.ask("POST", "/jobs/anything", json={"payload": 1, "job_id": given})
        assert (answer.status_code, answer.json()["job_id"]) == (status, given)


async def test_a_full_queue_answers_429_with_a_time_to_come_back(stage: Stage) -> None:
    await stage.app.limit_queue("mail", 1)
    await stage.submit("letter", payload={"to": "a"})
    answer = await stage.ask("POST", "/jobs/letter", json={"payload": {"to": "b"}})
    assert (answer.status_code, answer.json()["type"]) == (429, "/problems/queue-full")
    assert int(answer.headers["retry-after"]) >= 1


# Idempotency-Key


async def test_a_repeat_with_the_same_key_and_body_gives_the_same_job_even_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    body, header = {"payload": {"to": "Ada"}, "subject": "s", "delay": 60}, {"Idempotency-Key": "order 7"}
    async with staged(staged_app(url)) as stage:
        first = await stage.ask("POST", "/jobs/letter", json=body, headers=header)
    async with staged(staged_app(url)) as stage:
        second = await stage.ask("POST", "/jobs/letter", json=body, headers=header)
        assert (first.status_code, second.status_code) == (201, 200)
        assert second.json()["job_id"] == first.json()["job_id"]
        assert len(await stage.app.find()) == 1


async def test_a_repeat_is_known_when_the_job_has_run_or_was_moved_in_line(stage: Stage) -> None:
    body, header = {"payload": {"to": "Ada"}}, {"Idempotency-Key": "k"}
    first = await stage.ask("POST", "/jobs/letter", json=body, headers=header)
    await stage.app.reprioritise(first.json()["job_id"], 99)
    await stage.run()
    second = await stage.ask("POST", "/jobs/letter", json=body, headers=header)
    assert (second.status_code, second.json()["status"]) == (200, "completed")


@pytest.mark.parametrize(
    "other",
    [
        {"payload": {"to": "Bob"}, "subject": "s"},
        {"payload": {"to": "Ada"}, "subject": "t"},
        {"payload": {"to": "Ada"}, "subject": "s", "max_attempts": 2},
        {"payload": {"to": "Ada"}, "subject": "s", "queue": "other"},
    ],
    ids=str,
)
async def test_the_same_key_with_another_body_is_refused(stage: Stage, other: dict[str, Any]) -> None:
    header = {"Idempotency-Key": "k"}
    first = await stage.ask("POST", "/jobs/letter", json={"payload": {"to": "Ada"}, "subject": "s"}, headers=header)
    answer = await stage.ask("POST", "/jobs/letter", json=other, headers=header)
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/idempotency-key-reused")
    assert answer.json()["job_id"] == first.json()["job_id"]
    assert len(await stage.app.find()) == 1


async def test_the_same_text_of_another_type_or_another_client_is_another_key(stage: Stage) -> None:
    ada, bob = await stage.key("submit", name="ada"), await stage.key("submit", name="bob")
    made = [
        (await stage.ask("POST", path, json={"payload": {"to": "x"}}, headers=who | {"Idempotency-Key": "k"})).json()
        for path, who in (("/jobs/letter", ada), ("/jobs/letter", bob), ("/jobs/anything", ada))
    ]
    assert len({job["job_id"] for job in made}) == 3
    assert [job["created_by"] for job in made] == ["ada", "bob", "ada"]


async def test_a_key_and_an_id_exclude_each_other(stage: Stage) -> None:
    body = {"payload": 1, "job_id": "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"}
    answer = await stage.ask("POST", "/jobs/anything", json=body, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 422


# Batches


async def batch(stage: Stage, *jobs: Any, **options: Any) -> list[dict[str, Any]]:
    answer = await stage.ask("POST", "/jobs/batch", json={"jobs": list(jobs)}, **options)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def test_a_batch_has_an_answer_for_each_job_in_order(stage: Stage) -> None:
    items = await batch(
        stage,
        {"job_type": "letter", "payload": {"to": "Ada"}, "priority": 90},
        {"job_type": "nobody"},
        {"job_type": "letter", "payload": {"to": 7}},
        {"job_type": "anything", "payload": 1, "colour": "red"},
        {"payload": 1},
        {"job_type": "anything", "payload": 2, "subject": "s"},
    )
    assert [item["status"] for item in items] == [201, 404, 422, 422, 422, 201]
    assert (items[0]["job"]["priority"], items[5]["job"]["subject"]) == (90, "s")
    assert items[1]["problem"]["type"] == "/problems/unknown-job-type"
    assert "colour" in items[3]["problem"]["detail"]
    assert len(await stage.app.find()) == 2


async def test_a_batch_without_a_mistake_is_one_commit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = []
    insert = stage.app.store.insert

    async def counted(jobs: Any, now: int) -> Any:
        commits.append(len(jobs))
        return await insert(jobs, now)

    monkeypatch.setattr(stage.app.store, "insert", counted)
    items = await batch(stage, *({"job_type": "anything", "payload": n} for n in range(100)))
    assert [item["job"]["payload"] for item in items] == list(range(100))
    assert commits == [100]


async def test_a_job_of_a_batch_can_depend_on_an_earlier_one(stage: Stage) -> None:
    given = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"
    jobs = [
        {"job_type": "anything", "payload": 1, "job_id": given},
        {"job_type": "anything", "payload": 2, "depends_on": [given]},
    ]
    assert [item["job"]["status"] for item in await batch(stage, *jobs)] == ["pending", "waiting"]
    assert [item["status"] for item in await batch(stage, *jobs[1:], {"job_type": "nobody"})] == [201, 404]


async def test_a_repeated_batch_gives_the_same_jobs(stage: Stage) -> None:
    jobs = [{"job_type": "anything", "payload": n} for n in range(3)]
    header = {"Idempotency-Key": "k"}
    first = await batch(stage, *jobs, headers=header)
    second = await batch(stage, *jobs[:2], {"job_type": "anything", "payload": "other"}, headers=header)
    assert [item["status"] for item in first] == [201] * 3
    assert [item["status"] for item in second] == [200, 200, 409]
    assert [item["job"]["job_id"] for item in second[:2]] == [item["job"]["job_id"] for item in first[:2]]


@pytest.mark.parametrize("body", [{"jobs": []}, {"jobs": [{}] * 101}, {"jobs": 1}, {}, {"jobs": [1]}], ids=len)
async def test_a_batch_that_is_none_is_refused_whole(stage: Stage, body: Any) -> None:
    assert (await stage.ask("POST", "/jobs/batch", json=body)).status_code == 422


async def test_a_time_in_the_record_is_utc(stage: Stage) -> None:
    job = await stage.submit(payload=1)
    created = datetime.fromisoformat(job["created_at"])
    assert created.tzinfo == UTC


@pytest.mark.parametrize("name", ["batch", "history", "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c", "0" * 32, ".."])
def test_a_job_type_cannot_be_a_word_of_the_routes_or_read_as_an_id(name: str, tmp_path: Path) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")
    with pytest.raises(InvalidOption, match="job type"):
        app.job(name)(lambda payload: None)


@pytest.mark.parametrize(
    "option", [{"dedup_key": "k", "dedup_for": 1e11}, {"content_hash": "h", "reuse": 1e11}], ids=str
)
async def test_a_span_of_more_than_a_hundred_years_is_refused_whatever_the_engine(stage: Stage, option: Any) -> None:
    with pytest.raises(InvalidOption, match="100 years"):
        await stage.app.submit("anything", 1, **option)


async def test_a_job_of_a_batch_that_breaks_the_server_takes_no_answer_of_another_with_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = await stage.key("submit", "read", queues=("mail", "default"))
    submit = stage.app.submit

    async def breaking(job_type: str, payload: Any, **options: Any) -> Any:
        if payload == "break":
            raise ZeroDivisionError
        return await submit(job_type, payload, **options)

    monkeypatch.setattr(stage.app, "submit", breaking)
    jobs = [{"job_type": "anything", "payload": each} for each in (1, "break", 2)]
    answer = await stage.ask("POST", "/jobs/batch", json={"jobs": jobs}, headers=key)
    assert [each["status"] for each in answer.json()["items"]] == [201, 500, 201]
    assert len(await stage.app.find()) == 2
    assert "ZeroDivisionError" in caplog.text


async def test_a_batch_that_breaks_on_its_way_into_the_store_leaves_nothing_there(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    plainly = insert.insert_plain

    def breaking(tx: Any, jobs: Any, now: int) -> Any:
        plainly(tx, jobs[:2], now)
        raise ZeroDivisionError

    monkeypatch.setattr(insert, "insert_plain", breaking)
    batch = {"jobs": [{"job_type": "anything", "payload": each} for each in range(3)]}
    assert (await stage.http.post("/jobs/batch", json=batch)).status_code == 500
    assert await stage.app.find() == []
    monkeypatch.undo()
    answer = await stage.ask("POST", "/jobs/batch", json=batch)
    assert [each["status"] for each in answer.json()["items"]] == [201, 201, 201]


async def test_a_stored_job_of_a_batch_that_cannot_be_shown_takes_no_answer_of_another_with_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(job: Any) -> Any:
        return job_document(job) if job.payload != 1 else 1 / 0

    monkeypatch.setattr("backstay.server.routes.jobs.job_document", breaking)
    batch = {"jobs": [{"job_type": "anything", "payload": each} for each in range(3)]}
    answer = await stage.ask("POST", "/jobs/batch", json=batch)
    assert [each["status"] for each in answer.json()["items"]] == [201, 500, 201]
    assert len(await stage.app.find()) == 3
