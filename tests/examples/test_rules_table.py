"""Rules, the table: its trigger, its constraints, and what goes with a rule that goes."""

import hashlib
import json
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from rules import database
from rules.jobs import RuleText
from rules.models import model_named

from backstay import Backstay
from backstay.testing import drain
from tests.examples.ollama import Ollama
from tests.examples.rules_fixtures import MODEL, embedded, insert
from tests.examples.rules_fixtures import app as app
from tests.examples.rules_fixtures import database_url as database_url
from tests.examples.rules_fixtures import ollama as ollama
from tests.examples.rules_fixtures import sql as sql
from tests.support.eventually import eventually


async def test_a_rule_that_is_stored_has_a_job_with_its_text(app: Backstay, sql: Any) -> None:
    rule = await insert(sql, "A", rationale="It is so.")

    (job,) = await app.find()
    payload = RuleText.model_validate(job.payload)
    assert payload.input_text == "Rule A Do as A says. It is so."
    assert (payload.rule_id, payload.embedding_model, payload.project_id) == (rule, MODEL, None)
    assert payload.text_hash == await sql.fetchval("SELECT text_hash FROM rules")
    assert payload.text_hash == hashlib.md5(payload.input_text.encode(), usedforsecurity=False).hexdigest()
    assert (job.job_type, job.subject) == ("embedding", f"rule:{rule}")
    assert (job.status, job.failures, job.max_attempts, job.priority) == ("pending", 0, 3, 50)
    assert job.content_hash == f"{MODEL}:{payload.text_hash}"


async def test_a_rule_and_its_job_are_stored_together_or_not_at_all(app: Backstay, sql: Any) -> None:
    transaction = sql.transaction()
    await transaction.start()
    await insert(sql, "A")
    await transaction.rollback()
    assert await app.find() == []


async def test_the_priority_of_a_job_is_that_of_its_rule_and_urgent_ones_come_first(app: Backstay, sql: Any) -> None:
    for rule_id, priority in [("A", "low"), ("B", "normal"), ("C", "critical"), ("D", "high")]:
        await insert(sql, rule_id, priority=priority)
    order = [(job.payload["input_text"][5], job.priority) for job in await drain(app)]
    assert order == [("C", 100), ("D", 75), ("A", 50), ("B", 50)]


async def test_a_changed_text_is_embedded_again_and_the_old_job_does_no_more_work(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    await insert(sql, "A")
    await sql.execute("UPDATE rules SET title = 'Another title'")
    assert [job.status for job in await app.find()] == ["pending", "cancelled"]
    await drain(app)
    assert ollama.calls == [["Another title Do as A says. "]]

    await sql.execute("UPDATE rules SET guidance = 'Do something else.'")
    assert await embedded(sql) == 0, "a vector of another text is worse than none"
    await drain(app)
    assert await embedded(sql) == 1
    assert ollama.calls[1:] == [["Another title Do something else. "]]


async def test_a_change_that_leaves_the_text_as_it_is_embeds_nothing(app: Backstay, sql: Any, ollama: Ollama) -> None:
    await insert(sql, "A")
    await drain(app)
    await sql.execute("UPDATE rules SET priority = 'critical', title = title")
    assert (len(await app.find()), await embedded(sql)) == (1, 1)


async def test_a_text_that_is_known_lends_its_vector_and_no_model_is_asked(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    await insert(sql, "A", title="Same", guidance="text")
    (first,) = await drain(app)
    await insert(sql, "B", title="Same", guidance="text")

    again = (await app.find())[0]
    assert (again.status, again.reused_from) == ("completed", first.job_id)
    assert again.result == first.result
    assert await sql.fetchval("SELECT count(DISTINCT embedding::text) FROM rules WHERE embedding IS NOT NULL") == 1
    assert (await embedded(sql), len(ollama.calls)) == (2, 1)
    assert (await app.stats()).total.reused == 1


async def test_the_same_text_twice_at_once_is_embedded_once(app: Backstay, sql: Any, ollama: Ollama) -> None:
    await insert(sql, "A", title="Same", guidance="text")
    await insert(sql, "B", title="Same", guidance="text")
    await drain(app, batches=True)
    assert ollama.calls == [["Same text "]]
    assert await embedded(sql) == 2


async def test_a_text_that_is_being_embedded_for_another_rule_comes_to_both(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    first = await insert(sql, "A", title="Same", guidance="text")
    await insert(sql, "B", title="Same", guidance="text")
    jobs = {job.subject: job for job in await app.find()}
    assert sorted(job.status.value for job in jobs.values()) == ["pending", "waiting"]
    await drain(app)
    assert (await embedded(sql), len(ollama.calls)) == (2, 1)
    await sql.execute("DELETE FROM rules WHERE id = $1", first)
    assert [job.subject for job in await app.find()] == [each for each in jobs if each != f"rule:{first}"]


async def test_if_the_rule_that_is_embedded_first_is_deleted_the_other_is_embedded(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    first = await insert(sql, "A", title="Same", guidance="text")
    await insert(sql, "B", title="Same", guidance="text")
    await sql.execute("DELETE FROM rules WHERE id = $1", first)
    async with app.worker():

        async def done() -> bool:
            return await embedded(sql) == 1 and await app.find(subject=f"rule:{first}") == []

        await eventually(done)  # and its job is gone, though the other had joined it
    assert ollama.calls == [["Same text "]]


RULES, TWICE = 6_000, 112


@pytest.mark.slow
async def test_of_thousands_of_rules_each_text_is_embedded_once_by_several_workers(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    ollama.models.add("small")
    ollama.dimensions = 8
    await database.set_up(sql, "small")
    texts = [f"text {number}" for number in range(RULES - TWICE)]
    texts += texts[: TWICE // 2] + texts[-TWICE // 2 :]  # some far from their first, and some right after it
    rows = [(f"R{number:05}", f"Rule about {text}") for number, text in enumerate(texts)]
    others = [Backstay(app.url), Backstay(app.url)]
    for other in others:
        other.handlers = app.handlers
    async with others[0], others[1], others[0].worker(), others[1].worker():
        for start in range(0, RULES, 1_500):  # workers embed while more come
            part = rows[start : start + 1_500]
            await sql.executemany("INSERT INTO rules (rule_id, title, guidance) VALUES ($1, $2, 'as it says')", part)

        async def done() -> bool:
            return await embedded(sql) == RULES

        await eventually(done, seconds=120)

        async def ended() -> bool:
            return (await app.counts())["completed"] == RULES

        await eventually(ended, seconds=60)
    asked = [text for call in ollama.calls for text in call]
    assert len(asked) == len(set(asked)) == RULES - TWICE
    reused = await sql.fetchval("SELECT count(*) FROM embedding_jobs WHERE attempts = 0 AND status = 'completed'")
    assert reused == TWICE
    wrong = await sql.fetchval(
        "SELECT count(*) FROM rules AS r JOIN rules AS s USING (text_hash) WHERE r.embedding <> s.embedding"
    )
    assert wrong == 0


HEALTH = """
SELECT
    status,
    priority,
    COUNT(*) as count,
    AVG(processing_time_ms) as avg_time_ms,
    MAX(created_at) as newest,
    MIN(created_at) as oldest
FROM embedding_jobs
GROUP BY status, priority
ORDER BY priority DESC, status;
"""
PERFORMANCE = """
SELECT
    worker_id,
    COUNT(*) as jobs_completed,
    AVG(processing_time_ms) as avg_time,
    SUM(CASE WHEN status = 'failed' THEN 1 ELSE 0 END) as failures
FROM embedding_jobs
WHERE completed_at > NOW() - INTERVAL '24 hours'
GROUP BY worker_id;
"""
COLUMNS = {
    "id": "uuid", "rule_id": "uuid", "status": "job_status", "priority": "job_priority", "embedding_model": "text",
    "input_text": "text", "text_hash": "text", "attempts": "integer", "max_attempts": "integer",
    "created_at": "timestamp with time zone", "started_at": "timestamp with time zone",
    "completed_at": "timestamp with time zone", "embedding_vector": "vector", "embedding_dimensions": "integer",
    "error_message": "text", "processing_time_ms": "integer", "worker_id": "text", "worker_version": "text",
    "project_id": "uuid", "created_by": "uuid",
}  # fmt: skip


async def test_the_monitoring_queries_of_the_embedding_queue_run_as_they_were_written(app: Backstay, sql: Any) -> None:
    await insert(sql, "A", priority="critical")
    await insert(sql, "B")
    await insert(sql, "C", guidance="POISON")
    await drain(app)
    await insert(sql, "D", priority="critical")
    bad = {"rule_id": str(await insert(sql, "E")), "input_text": "POISON too", "embedding_model": MODEL}
    await app.submit("embedding", bad, max_attempts=1, priority="low")

    health = [(row["priority"], row["status"], row["count"]) for row in await sql.fetch(HEALTH)]
    assert health == [
        ("urgent", "pending", 1),
        ("urgent", "completed", 1),
        ("normal", "pending", 1),
        ("normal", "completed", 1),
        ("normal", "retrying", 1),
        ("low", "pending", 1),
    ]
    await drain(app)
    rows = await sql.fetch(PERFORMANCE)  # each drain is a worker of its own
    assert (sum(row["jobs_completed"] for row in rows), sum(row["failures"] for row in rows)) == (5, 1)
    assert min(row["avg_time"] for row in rows) >= 0
    assert {row["worker_id"] for row in rows} <= {job.worker_id for job in await app.find()}


async def test_a_table_of_the_embedding_queue_is_not_replaced_by_the_view(app: Backstay, sql: Any) -> None:
    await sql.execute("DROP VIEW embedding_jobs; CREATE TABLE embedding_jobs (id uuid)")
    with pytest.raises(asyncpg.PostgresError, match="import its jobs, rename it, and run setup again"):
        await database.set_up(sql)
    await sql.execute("ALTER TABLE embedding_jobs RENAME TO old_jobs")
    await database.set_up(sql)
    assert await sql.fetchval("SELECT count(*) FROM embedding_jobs") == 0


async def test_the_view_of_embedding_jobs_has_the_columns_and_types_of_the_embedding_queue(
    app: Backstay, sql: Any
) -> None:
    found = await sql.fetch(
        "SELECT attname, format_type(atttypid, NULL) AS type FROM pg_attribute"
        " WHERE attrelid = 'embedding_jobs'::regclass AND attnum > 0"
    )
    assert {row["attname"]: row["type"] for row in found} == COLUMNS

    rule = await insert(sql, "A")
    waiting = await sql.fetchrow("SELECT * FROM embedding_jobs")
    assert (waiting["status"], waiting["attempts"], waiting["started_at"]) == ("pending", 0, None)
    [job] = await drain(app)
    done = await sql.fetchrow("SELECT *, vector_dims(embedding_vector) AS size FROM embedding_jobs")
    assert (str(done["id"]), done["rule_id"], done["status"], done["attempts"]) == (job.job_id, rule, "completed", 1)
    assert (done["size"], done["embedding_dimensions"], done["completed_at"]) == (768, 768, job.completed_at)
    assert done["text_hash"] == await sql.fetchval("SELECT text_hash FROM rules")
    same = await sql.fetchval(
        "SELECT embedding_vector = embedding FROM embedding_jobs AS j JOIN rules AS r ON r.id = j.rule_id"
    )
    assert same, "the vector of the job is that of the rule, to the last bit"
    await sql.execute("CREATE TABLE embedding_job_failures AS SELECT * FROM embedding_jobs WHERE status = 'failed'")


WRONG = [
    ("title = ' '", "rules_title_check"),
    ("guidance = NULL", "guidance"),
    ("priority = 'whenever'", "rules_priority_check"),
    ("embedding = NULL", "embedded_as_a_whole"),
    ("embedding_dimensions = 3", "dimensions_are_those_of_the_vector"),
    ("embedding_ms = -1", "time_is_not_negative"),
    ("embedding = '[1, 2, 3]'", "expected 768 dimensions"),
    ("text_hash = 'x'", "generated column"),
    ("project_id = gen_random_uuid()", "rules_project_id_fkey"),
    ("created_by = gen_random_uuid()", "rules_created_by_fkey"),
]


async def test_a_rule_that_cannot_be_is_refused(app: Backstay, sql: Any) -> None:
    await insert(sql, "A")
    await drain(app)
    for wrong, constraint in WRONG:
        with pytest.raises(asyncpg.PostgresError, match=constraint):
            await sql.execute(f"UPDATE rules SET {wrong}")
    with pytest.raises(asyncpg.UniqueViolationError):
        await insert(sql, "A")


async def test_a_job_completes_only_with_a_vector_of_the_models_dimensions(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    assert model_named(MODEL).dimensions == 768
    ollama.dimensions = 5  # from now on, another model under this name
    await insert(sql, "A")
    (job,) = await drain(app)
    assert job.status == "retrying"
    assert "(1, 5) instead of (1, 768)" in str(job.last_error)
    assert await embedded(sql) == 0


async def test_the_vector_its_dimensions_and_its_time_are_on_the_job_and_on_the_rule(app: Backstay, sql: Any) -> None:
    await insert(sql, "A")
    (job,) = await drain(app)
    rule = await sql.fetchrow("SELECT *, embedding::real[] AS numbers FROM rules")
    assert job.result["embedding_vector"] == pytest.approx(rule["numbers"], rel=1e-5)
    assert len(rule["numbers"]) == job.result["embedding_dimensions"] == rule["embedding_dimensions"] == 768
    assert job.result["embedding_model"] == rule["embedding_model"] == MODEL
    assert job.result["embedding_ms"] == rule["embedding_ms"] > 0
    assert job.created_at <= job.started_at <= rule["embedded_at"] <= job.completed_at
    assert job.processing_time_ms >= job.result["embedding_ms"]
    assert job.worker_id and job.worker_version


async def _rule_in_project(sql: Any) -> tuple[UUID, UUID, UUID]:
    project = await sql.fetchval("INSERT INTO projects (name) VALUES ('shop') RETURNING id")
    user = await sql.fetchval("INSERT INTO users (email) VALUES ('ada@example.org') RETURNING id")
    return project, user, await insert(sql, "A", project_id=project, created_by=user)


async def test_a_rule_that_is_deleted_takes_its_jobs_along_whatever_became_of_them(app: Backstay, sql: Any) -> None:
    await insert(sql, "A")
    kept = await insert(sql, "B")
    await drain(app)
    await sql.execute("UPDATE rules SET title = 'New' WHERE rule_id = 'A'")  # one job completed, one pending
    assert len(await app.find()) == 3
    await sql.execute("DELETE FROM rules WHERE rule_id = 'A'")
    assert [job.subject for job in await app.find()] == [f"rule:{kept}"]


async def test_a_project_that_is_deleted_takes_its_rules_and_their_jobs_along(app: Backstay, sql: Any) -> None:
    project, _, _ = await _rule_in_project(sql)
    other = await insert(sql, "B")
    assert len(await app.find(tag=f"project:{project}")) == 1
    await sql.execute("DELETE FROM projects")
    assert [job.subject for job in await app.find()] == [f"rule:{other}"]
    assert await sql.fetchval("SELECT count(*) FROM rules") == 1


async def test_a_user_who_is_deleted_leaves_rule_and_job_behind_without_a_name(app: Backstay, sql: Any) -> None:
    _, user, rule = await _rule_in_project(sql)
    await sql.execute("DELETE FROM users")
    assert await sql.fetchval("SELECT created_by FROM rules WHERE id = $1", rule) is None
    (job,) = await app.find()
    assert str(user) not in json.dumps(job.to_dict(), default=str), "the name is nowhere in the job either"
    assert [job.status for job in await drain(app)] == ["completed"]
