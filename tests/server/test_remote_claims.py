"""Claims over HTTP: a token is good for one attempt of one job, and a repeat is answered as the first call was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backstay import Backoff, Backstay
from tests.server.far import Far, reached


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("embedding", max_attempts=3, backoff=Backoff(60, 2, 300, 0))
    async def embedding(payload: dict[str, str]) -> None: ...

    async with app:
        yield app


@pytest.fixture
async def far(app: Backstay) -> AsyncIterator[Far]:
    async with reached(app) as far:
        await far.register("embedding")
        yield far


async def test_a_job_is_claimed_and_completed_over_http(app: Backstay, far: Far) -> None:
    job = await app.submit("embedding", {"text": "tide"})

    [taken] = await far.claim(limit=5)
    assert taken["job"]["job_id"] == job.job_id
    assert taken["job"]["payload"] == {"text": "tide"}
    assert taken["job"]["worker_id"] == "far-1"
    answer = await far.say("complete", job.job_id, taken["token"], result={"vector": [0.5]}, metrics={"tokens": 3})

    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    found = await app.get(job.job_id)
    assert (found.status, found.result, found.metrics) == ("completed", {"vector": [0.5]}, {"tokens": 3})
    assert await far.claim() == []


async def test_a_completion_that_is_sent_three_times_has_one_effect(app: Backstay, far: Far) -> None:
    await app.submit("embedding", {})
    job_id, token = await far.one()

    answers = [await far.say("complete", job_id, token, result={"n": 1}) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.text for answer in answers}) == 1
    found = await app.get(job_id)
    assert found.result == {"n": 1}
    assert [event.event for event in found.history] == ["submit", "claim", "complete"]
    assert (await app.stats()).total.completed == 1


@pytest.mark.parametrize(("first", "second"), [(1, 2), ("x" * 100_000, "y" * 100_000), (1, "y" * 100_000), (1, None)])
async def test_a_second_completion_with_another_result_is_refused_and_the_first_stands(
    app: Backstay, far: Far, first: object, second: object
) -> None:
    await app.submit("embedding", {})
    job_id, token = await far.one()
    assert (await far.say("complete", job_id, token, result=first)).status_code == 200

    other = await far.say("complete", job_id, token, result=second)

    assert (other.status_code, other.json()["type"]) == (409, "/problems/already-completed")
    assert "has completed with another result, which is final" in other.json()["detail"]
    assert (await far.say("complete", job_id, token, result=first)).status_code == 200
    assert (await app.get(job_id)).result == first


async def test_a_failure_that_is_sent_three_times_costs_one_attempt(app: Backstay, far: Far) -> None:
    await app.submit("embedding", {})
    job_id, token = await far.one()
    error = {"type": "Timeout", "message": "no answer", "traceback": "line 1\nline 2"}

    answers = [await far.say("fail", job_id, token, error=error) for _ in range(3)]

    assert len({answer.text for answer in answers}) == 1
    found = await app.get(job_id)
    assert (found.status, found.failures, found.last_error) == ("retrying", 1, "Timeout: no answer")
    assert found.errors[0]["traceback"] == "line 1\nline 2"
    waits = (found.scheduled_for - found.updated_at).total_seconds()
    assert waits == pytest.approx(60), "as the handler's own backoff says"


async def test_a_repeat_that_comes_late_is_answered_as_the_first_call_was(app: Backstay, far: Far) -> None:
    """One more failure would be the last, and the job is in other hands by now: neither changes what was answered."""
    await app.submit("embedding", {}, max_attempts=2)
    job_id, token = await far.one()
    first = await far.say("fail", job_id, token, retry_after=0)
    again = await far.say("fail", job_id, token, retry_after=0)
    async with app.maintenance("test"):
        await far.claim(wait_seconds=10)
    late = await far.say("fail", job_id, token, retry_after=0)

    assert [answer.status_code for answer in (first, again, late)] == [200] * 3
    assert first.text == again.text == late.text
    found = await app.get(job_id)
    assert (found.status, found.attempt, found.failures) == ("processing", 2, 1)


async def test_a_stale_token_is_refused_and_changes_nothing(app: Backstay, far: Far) -> None:
    await app.submit("embedding", {})
    job_id, stale = await far.one()
    assert (await far.say("outcome", job_id, stale, outcome="give_back")).status_code == 200
    again, fresh = await far.one()
    assert again == job_id
    before = (await app.get(job_id)).row

    for verb, fields in [
        ("complete", {"result": 1}),
        ("fail", {}),
        ("extend", {}),
        ("progress", {"progress": 0.5}),
        ("outcome", {"outcome": "cancel"}),
    ]:
        answer = await far.say(verb, job_id, stale, **fields)
        assert answer.status_code == 409, verb
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "/problems/claim-lost"
    assert (await app.get(job_id)).row == before
    assert (await far.say("complete", job_id, fresh)).status_code == 200


async def test_a_token_is_good_for_no_other_job_and_no_other_attempt(app: Backstay, far: Far) -> None:
    for _ in range(2):
        await app.submit("embedding", {})
    [one, other] = await far.claim(limit=2)
    job_id, attempt = one["job"]["job_id"], one["job"]["attempt"]
    claim, seal = one["token"].split(".")[1:]

    for token in [
        other["token"],
        f"{attempt + 1}.{claim}.{seal}",
        f"{attempt}.{'0' * 32}.{seal}",
        f"{attempt}.{claim}.{'0' * 32}",
        "x",
        "١.٢.٣",
    ]:
        assert (await far.say("complete", job_id, token)).status_code == 409, token
    assert (await app.get(job_id)).status == "processing"


async def test_the_store_keeps_no_token(app: Backstay, far: Far, tmp_path: Path) -> None:
    await app.submit("embedding", {})
    _, token = await far.one()
    assert not any(
        token.split(".")[1].encode() in each.read_bytes() for each in tmp_path.glob("jobs.db*") if each.is_file()
    )


async def test_a_repeated_request_gets_the_same_leases(app: Backstay, far: Far) -> None:
    for _ in range(3):
        await app.submit("embedding", {})

    first = await far.claim(limit=2, request_id="r-1")
    again = await far.claim(limit=2, request_id="r-1")
    async with reached(app) as restarted:  # a server that knows nothing of the first
        elsewhere = await restarted.claim(limit=2, request_id="r-1")
    other = await far.claim(limit=2, request_id="r-2")

    assert first == again == elsewhere
    assert len(first) == 2
    assert len(other) == 1


async def test_a_failure_without_a_retry_is_a_dead_letter(app: Backstay, far: Far) -> None:
    await app.submit("embedding", {})
    job_id, token = await far.one()
    answer = await far.say("fail", job_id, token, retry=False, error={"type": "BadText"})
    assert answer.json()["status"] == "failed"
    assert [group.error_type for group in await app.dead()] == ["BadText"]


async def test_a_worker_says_when_to_try_again(app: Backstay, far: Far) -> None:
    await app.submit("embedding", {})
    job_id, token = await far.one()
    await far.say("fail", job_id, token, retry_after=7)
    found = await app.get(job_id)
    assert (found.scheduled_for - found.updated_at).total_seconds() == pytest.approx(7)


@pytest.mark.parametrize(
    ("outcome", "status"), [("snooze", "scheduled"), ("give_back", "pending"), ("cancel", "cancelled")]
)
async def test_an_attempt_can_end_otherwise(app: Backstay, far: Far, outcome: str, status: str) -> None:
    await app.submit("embedding", {})
    job_id, token = await far.one()
    answers = [
        await far.say("outcome", job_id, token, outcome=outcome, seconds=60, reason="the model is busy")
        for _ in range(2)
    ]
    assert [answer.json()["status"] for answer in answers] == [status] * 2
    found = await app.get(job_id)
    assert (found.status, found.failures) == (status, 0)


async def test_progress_stage_and_logs_are_seen_while_the_job_runs(app: Backstay, far: Far) -> None:
    await app.submit("embedding", {})
    job_id, token = await far.one()
    answer = await far.say(
        "progress", job_id, token, progress=0.25, stage="reading", logs=[{"message": "a quarter"}], metrics={"lines": 9}
    )
    assert answer.status_code == 200
    found = await app.get(job_id)
    assert (found.progress, found.stage, found.metrics) == (0.25, "reading", {"lines": 9})
    assert [entry["message"] for entry in found.logs["entries"]] == ["a quarter"]
    assert b"a quarter" in (await app.log_bytes(job_id) or b"")
    await far.say("complete", job_id, token, logs=[{"level": "WARNING", "message": "done at last"}])
    entries = (await app.get(job_id)).logs["entries"]
    assert [entry["message"] for entry in entries] == ["a quarter", "done at last"]


async def test_a_large_result_goes_to_a_file(app: Backstay, far: Far) -> None:
    await app.submit("embedding", {})
    job_id, token = await far.one()
    large = list(range(30_000))
    await far.say("complete", job_id, token, result=large)
    found = await app.get(job_id)
    assert found.row.result is None
    assert found.result == large


async def test_an_extension_prolongs_the_lease(app: Backstay, far: Far) -> None:
    await app.submit("embedding", {})
    job_id, token = await far.one()
    before = (await app.get(job_id)).lease_expires_at
    answer = await far.say("extend", job_id, token, seconds=600)
    after = (await app.get(job_id)).lease_expires_at
    assert before is not None and after is not None
    assert (after - before).total_seconds() > 500
    assert answer.json()["lease_expires_at"].startswith(f"{after:%Y-%m-%dT%H:%M:%S}")


async def test_a_worker_that_holds_as_many_of_a_type_as_it_may_gets_no_more(app: Backstay, far: Far) -> None:
    await far.register("embedding", limits={"embedding": 2})
    for _ in range(4):
        await app.submit("embedding", {})
    [first, _] = await far.claim(limit=10)
    assert await far.claim(limit=10) == []
    await far.say("complete", first["job"]["job_id"], first["token"])
    assert len(await far.claim(limit=10)) == 1


async def test_a_worker_gets_only_its_types_and_queues(app: Backstay, far: Far) -> None:
    await far.register("other", queues=["mail"])
    await app.submit("embedding", {})
    assert await far.claim() == []
    await app.submit("other", {}, queue="elsewhere")
    assert await far.claim() == []
    await app.submit("other", {}, queue="mail")
    assert len(await far.claim()) == 1


async def test_a_paused_queue_gives_nothing(app: Backstay, far: Far) -> None:
    await app.submit("embedding", {})
    await app.pause_queue("default")
    assert await far.claim() == []
