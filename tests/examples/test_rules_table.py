"""Rules, the table: its trigger, its constraints, and what goes with a rule that goes."""

import json
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from rules.jobs import RuleText

from backstay import Backstay
from backstay.testing import drain
from tests.examples.ollama import Ollama
from tests.examples.rules_fixtures import MODEL, embedded, insert
from tests.examples.rules_fixtures import app as app
from tests.examples.rules_fixtures import database_url as database_url
from tests.examples.rules_fixtures import ollama as ollama
from tests.examples.rules_fixtures import sql as sql


async def test_a_rule_that_is_stored_has_a_job_with_its_text(app: Backstay, sql: Any) -> None:
    rule = await insert(sql, "A", rationale="It is so.")

    (job,) = await app.find()
    payload = RuleText.model_validate(job.payload)
    assert payload.input_text == "Rule A Do as A says. It is so."
    assert (payload.rule_id, payload.embedding_model, payload.project_id) == (rule, MODEL, None)
    assert payload.text_hash == await sql.fetchval("SELECT text_hash FROM rules")
    assert (job.job_type, job.subject) == ("embedding", f"rule:{rule}")
    assert (job.status, job.failures, job.max_attempts) == ("pending", 0, 3)
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
    ollama.dimensions = 5
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
    assert job.started_at <= rule["embedded_at"] <= job.completed_at
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
