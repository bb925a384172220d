"""Rules, the batches: fifty texts in a call, one that breaks it, retries, and a model that is away."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from rules import database
from rules.jobs import app as the_app
from rules.models import model_named

from backstay import Backstay, InvalidSubmission, Job
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
        assert "failed to encode" in str(dead.last_error)
        (group,) = await the_app.dead()
        assert (group.count, group.job_type) == (1, "embedding")

        await sql.execute("UPDATE rules SET guidance = 'Fine now.'")
        clock.advance(1)
        assert [job.status for job in await drain(the_app)] == ["completed"]
        assert len(await the_app.find(status="failed")) == 1, "a dead letter stays, for whoever asks why"


async def _failed_once(clock: ManualClock) -> float:
    (job,) = await drain(the_app)
    assert job.status == "retrying" and "failed to encode" in str(job.last_error)
    wait = (job.scheduled_for - clock.moment).total_seconds()
    clock.advance(wait - 1)
    assert await drain(the_app) == [], "not before its time"
    clock.advance(1)
    return wait


async def test_no_wait_is_longer_than_five_minutes(sql: Any, clock: ManualClock) -> None:
    async with the_app:
        rule = str(await insert(sql, "A"))
        await the_app.cancel_many(status="pending")
        await the_app.submit(
            "embedding", {"rule_id": rule, "input_text": "POISON", "embedding_model": MODEL}, max_attempts=6
        )
        assert [await _failed_once(clock) for _ in range(5)] == [60, 120, 240, 300, 300]


async def test_a_job_for_a_rule_that_does_not_exist_is_refused_from_every_side(app: Backstay, sql: Any) -> None:
    nowhere = str(uuid4())
    payload = {"rule_id": nowhere, "input_text": "text", "embedding_model": MODEL}
    with pytest.raises(InvalidSubmission, match=f"there is no rule {nowhere}: nothing was stored"):
        await app.submit("embedding", payload)
    with pytest.raises(asyncpg.PostgresError, match=f"there is no rule {nowhere}"):
        await sql.fetchval("SELECT backstay.submit('embedding', $1::jsonb)", json.dumps(payload))
    with pytest.raises(asyncpg.PostgresError, match="there is no rule seven"):
        await sql.fetchval("""SELECT backstay.submit('embedding', '{"rule_id": "seven"}')""")
    assert await app.find() == []


async def test_a_job_for_a_rule_that_is_being_deleted_is_refused_and_makes_no_deadlock(
    app: Backstay, sql: Any, database_url: str
) -> None:
    rule = await insert(sql, "A")
    payload = {"rule_id": str(rule), "input_text": "another text", "embedding_model": MODEL}
    other = await asyncpg.connect(database_url)
    try:
        async with sql.transaction():
            await sql.execute("DELETE FROM rules")
            submitting = asyncio.ensure_future(app.submit("embedding", payload))

            async def met() -> bool:
                await other.execute("SELECT pg_stat_clear_snapshot()")
                return bool(await other.fetchval(f"SELECT EXISTS ({ROLLBACKS})"))

            await eventually(met)
            assert not await other.fetchval(f"SELECT EXISTS ({LOCK_WAITS})"), "it does not wait, but comes again"
        with pytest.raises(InvalidSubmission, match="there is no rule"):
            await submitting
    finally:
        await other.close()
    assert await app.find() == []


async def test_a_job_for_another_model_than_that_of_the_rules_is_refused(app: Backstay, sql: Any) -> None:
    rule = str(await insert(sql, "A"))
    with pytest.raises(InvalidSubmission, match=f"rules are embedded with {MODEL}, and this job asks for all-MiniLM"):
        await app.submit("embedding", {"rule_id": rule, "input_text": "x", "embedding_model": "all-MiniLM-L6-v2"})


async def test_a_vector_of_another_text_is_kept_on_the_job_and_not_on_the_rule(app: Backstay, sql: Any) -> None:
    rule = await insert(sql, "A")
    await drain(app)
    before = await sql.fetchval("SELECT embedding::text FROM rules")
    await app.submit("embedding", {"rule_id": rule, "input_text": "another", "embedding_model": MODEL})
    [job] = await drain(app)
    assert (job.status, job.result["embedding_dimensions"]) == ("completed", 768)
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


async def test_any_model_of_an_ollama_server_is_asked_for_its_dimensions_and_the_column_follows(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    await many(sql, 3)
    for name, dimensions, tells, index in [
        ("mxbai-embed-large", 1024, True, "vector_cosine_ops"),
        ("a-model-of-an-older-server:7b", 3584, False, "halfvec_cosine_ops"),
        ("huge", 5000, True, None),
    ]:
        ollama.models.add(name)
        ollama.dimensions, ollama.tells = dimensions, tells
        model_named.cache_clear()
        made = await database.set_up(sql, name)
        assert (made.model, made.dimensions, made.again) == (name, dimensions, 3)
        await drain(app, batches=True)
        assert await sql.fetchval("SELECT min(vector_dims(embedding)) FROM rules") == dimensions
        [found, *_] = await database.search(sql, "Rule R001 Do as R001 says. ", 2)
        assert found.rule_id == "R001"
        written = await sql.fetchval("SELECT indexdef FROM pg_indexes WHERE indexname = 'rules_embedding'")
        assert (index is None and written is None) or index in written
    before = len(ollama.calls)
    ollama.dimensions, ollama.tells = 1024, True
    model_named.cache_clear()
    assert (await database.set_up(sql, "mxbai-embed-large")).again == 3
    assert (await embedded(sql), len(ollama.calls)) == (3, before), "texts that it has embedded before are known"


async def test_a_model_whose_dimensions_are_not_those_of_the_column_embeds_nothing_and_says_so(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    await many(sql, 2)
    ollama.dimensions = 1024  # another model of the same name
    model_named.cache_clear()
    jobs = await drain(app, batches=True)
    says = f"{MODEL} has 1024 dimensions, and the column of the rules has 768: run"
    assert ollama.calls == [] and all(says in str(job.last_error) for job in jobs)
    with pytest.raises(database.NotSetUp, match=says):
        await database.chosen_model(sql)
    with pytest.raises(database.NotSetUp, match=says):
        await database.search(sql, "anything")


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
