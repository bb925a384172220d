"""Rules, the batches: fifty texts in a call, one that breaks it, retries, and a model that is away."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from rules import database
from rules.jobs import app as the_app

from backstay import Backstay, Job
from backstay.testing import ManualClock, drain
from tests.examples.ollama import Ollama
from tests.examples.rules_fixtures import MODEL, embedded, insert
from tests.examples.rules_fixtures import app as app
from tests.examples.rules_fixtures import database_url as database_url
from tests.examples.rules_fixtures import ollama as ollama
from tests.examples.rules_fixtures import sql as sql
from tests.support.eventually import eventually

LOCK_WAITS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
ROLLBACKS = "SELECT FROM pg_stat_database WHERE datname = current_database() AND xact_rollback > 0"


async def many(sql: Any, count: int) -> None:
    async with sql.transaction():
        for number in range(count):
            await insert(sql, f"R{number:03}")


async def test_fifty_texts_go_into_one_call_and_no_more(app: Backstay, sql: Any, ollama: Ollama) -> None:
    await many(sql, 60)
    jobs = await drain(app, batches=True)
    assert [len(call) for call in ollama.calls] == [50, 10]
    assert (len(jobs), await embedded(sql)) == (60, 60)
    assert {job.metrics["texts_in_call"] for job in jobs} == {50, 10}


async def test_a_poison_text_fails_alone(app: Backstay, sql: Any, ollama: Ollama) -> None:
    await many(sql, 9)
    await insert(sql, "bad", guidance="POISON")
    jobs = await drain(app, batches=True)
    assert await embedded(sql) == 9
    (bad,) = [job for job in jobs if job.status != "completed"]
    assert (bad.status, bad.failures) == ("retrying", 1)
    assert "failed to encode" in str(bad.last_error)
    assert {job.failures for job in jobs if job is not bad} == {0}


@pytest.fixture
def clock(database_url: str, ollama: Ollama, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Ahead of the server's, by which SQL submits."""
    clock = ManualClock(datetime.now(UTC) + timedelta(minutes=1))
    monkeypatch.setattr(the_app, "url", f"{database_url}?clock=caller")
    monkeypatch.setattr(the_app, "clock", clock)
    return clock


async def test_a_failure_is_retried_after_60_and_120_seconds_and_then_a_dead_letter(
    sql: Any, clock: ManualClock
) -> None:
    await insert(sql, "bad", guidance="POISON")
    async with the_app:
        assert [await _failed_once(clock) for _ in range(2)] == [60, 120]
        (dead,) = await drain(the_app)
        assert (dead.status, dead.failures, dead.max_attempts) == ("failed", 3, 3)
        assert len(dead.errors) == 3 and dead.completed_at is not None and dead.result is None
        (group,) = await the_app.dead()
        assert (group.count, group.job_type) == (1, "embedding")

        await sql.execute("UPDATE rules SET guidance = 'Fine now.'")
        clock.advance(1)
        assert [job.status for job in await drain(the_app)] == ["completed"]
        assert len(await the_app.find(status="failed")) == 1, "a dead letter stays, for whoever asks why"


async def _failed_once(clock: ManualClock) -> float:
    (job,) = await drain(the_app)
    assert job.status == "retrying"
    wait = (job.scheduled_for - clock.moment).total_seconds()
    clock.advance(wait - 1)
    assert await drain(the_app) == [], "not before its time"
    clock.advance(1)
    return wait


async def test_no_wait_is_longer_than_five_minutes(clock: ManualClock) -> None:
    async with the_app:
        await the_app.submit(
            "embedding", {"rule_id": str(uuid4()), "input_text": "POISON", "embedding_model": MODEL}, max_attempts=6
        )
        assert [await _failed_once(clock) for _ in range(5)] == [60, 120, 240, 300, 300]


async def test_a_job_for_a_rule_that_does_not_exist_fails_and_says_so(app: Backstay) -> None:
    nowhere = str(uuid4())
    await app.submit("embedding", {"rule_id": nowhere, "input_text": "text", "embedding_model": MODEL})
    (job,) = await drain(app)
    assert job.status == "retrying" and f"there is no rule {nowhere}" in str(job.last_error)


async def test_a_vector_of_another_text_or_another_model_is_kept_on_the_job_and_not_on_the_rule(
    app: Backstay, sql: Any
) -> None:
    rule = await insert(sql, "A")
    await drain(app)
    before = await sql.fetchval("SELECT embedding::text FROM rules")
    text = await sql.fetchval("SELECT rule_text(title, guidance, rationale) FROM rules")
    await app.submit("embedding", {"rule_id": rule, "input_text": "another", "embedding_model": MODEL})
    await app.submit("embedding", {"rule_id": rule, "input_text": text, "embedding_model": "all-MiniLM-L6-v2"})
    jobs = await drain(app)
    assert [(job.status.value, job.result["embedding_dimensions"]) for job in jobs] == [
        ("completed", 768),
        ("completed", 384),
    ]
    assert await sql.fetchval("SELECT embedding::text FROM rules") == before


async def test_a_model_that_is_away_fails_no_text_twice_in_one_attempt(app: Backstay, sql: Any, ollama: Ollama) -> None:
    ollama.models.clear()
    await many(sql, 8)
    jobs = await drain(app, batches=True)
    assert {(job.status.value, job.failures) for job in jobs} == {("retrying", 1)}
    assert "ollama pull nomic-embed-text" in str(jobs[0].last_error)
    assert len(ollama.calls) == 1


async def test_a_text_that_changes_while_it_is_embedded_gets_the_vector_of_the_new_text(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    await insert(sql, "A")
    ollama.go_on.clear()
    async with app.worker():
        await asyncio.to_thread(ollama.arrived.wait, 10)
        await sql.execute("UPDATE rules SET guidance = 'Something new.'")
        ollama.go_on.set()
        newest = (await app.find())[0]
        await app.result(newest.job_id, timeout=20)
    assert ollama.calls == [["Rule A Do as A says. "], ["Rule A Something new. "]]
    (old,) = [job for job in await app.find() if job.job_id != newest.job_id]
    assert old.status == "cancelled"
    kept = await sql.fetchval("SELECT embedding::real[] FROM rules")
    assert kept == pytest.approx(newest_vector(await app.get(newest.job_id)), rel=1e-5)


def newest_vector(job: Job) -> list[float]:
    return list(job.result["embedding_vector"])


async def test_a_rule_that_is_deleted_while_its_job_completes_makes_no_deadlock(
    app: Backstay, sql: Any, database_url: str, ollama: Ollama
) -> None:
    rule = await insert(sql, "A")
    ollama.go_on.clear()
    other = await asyncpg.connect(database_url)
    try:
        async with app.worker():
            await asyncio.to_thread(ollama.arrived.wait, 10)
            async with sql.transaction():
                await sql.execute("SELECT FROM rules FOR UPDATE")
                ollama.go_on.set()

                async def waiting() -> bool:
                    return bool(await other.fetchval(f"SELECT EXISTS ({LOCK_WAITS})"))

                async def met() -> bool:
                    await other.execute("SELECT pg_stat_clear_snapshot()")
                    return await waiting() or bool(await other.fetchval(f"SELECT EXISTS ({ROLLBACKS})"))

                # The completion has met the lock on the rule, and let go of the job: whoever wants the job gets it.
                await eventually(met)
                assert not await waiting()
                await sql.execute("DELETE FROM rules WHERE id = $1", rule)
    finally:
        await other.close()
    assert await app.find() == []


async def test_another_model_embeds_every_rule_again_behind_all_other_work(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    await many(sql, 3)
    await drain(app, batches=True)
    await insert(sql, "waiting")

    assert (await database.set_up(sql, "all-MiniLM-L6-v2")).again == 4
    assert await embedded(sql) == 0
    pending = await app.find(status="pending")
    assert {(job.priority, job.payload["embedding_model"]) for job in pending} == {(25, "all-MiniLM-L6-v2")}
    await drain(app, batches=True)
    assert await embedded(sql) == 4
    assert await sql.fetchval("SELECT DISTINCT vector_dims(embedding) FROM rules") == 384
    assert len(ollama.calls) == 1

    again = await database.set_up(sql)
    assert (again.model, again.again) == ("all-MiniLM-L6-v2", 0), "set up again, the choice stays"
