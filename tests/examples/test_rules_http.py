"""Rules, from outside: the endpoints of the queue, its health, and search."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from rich.console import Console
from rules import commands, database
from rules.health import health
from rules.jobs import QUEUE
from rules.worker import Paused, work

from backstay import Backstay
from backstay.server import asgi
from backstay.testing import drain
from tests.examples.ollama import Ollama
from tests.examples.rules_fixtures import MODEL, insert
from tests.examples.rules_fixtures import app as app
from tests.examples.rules_fixtures import database_url as database_url
from tests.examples.rules_fixtures import ollama as ollama
from tests.examples.rules_fixtures import sql as sql
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres


def client(app: Backstay) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(asgi(app)), base_url="http://127.0.0.1")


async def test_an_embedding_job_is_made_listed_read_and_cancelled_over_http(app: Backstay, sql: Any) -> None:
    rule = await insert(sql, "A")
    async with client(app) as http:
        payload = {"rule_id": str(rule), "input_text": "Another text.", "embedding_model": MODEL}
        made = await http.post("/jobs/embedding", json={"payload": payload, "priority": "low"})
        assert (made.status_code, made.json()["priority"]) == (201, 25)
        job_id = made.json()["job_id"]
        assert (await http.get(f"/jobs/embedding/{job_id}")).json()["status"] == "pending"
        listed = (await http.get("/jobs/embedding", params={"status": "pending"})).json()["items"]
        assert [job["created_by"] for job in listed].count("trigger:rules") == 1 and len(listed) == 2
        assert (await http.delete(f"/jobs/embedding/{job_id}")).status_code == 200
        assert (await http.get(f"/jobs/embedding/{job_id}")).json()["status"] == "cancelled"


WRONG = [
    ({"rule_id": "seven", "input_text": "x"}, "rule_id"),
    ({"rule_id": "0" * 32, "input_text": " "}, "input_text"),
    ({"rule_id": "0" * 32, "input_text": "x", "text_hash": "0" * 32}, "not the md5"),
    ({"rule_id": "0" * 32, "input_text": "x", "embedding_model": MODEL}, "there is no rule 00000000-"),
]


async def test_a_text_that_is_known_is_not_embedded_again_for_a_job_from_http(
    app: Backstay, sql: Any, ollama: Ollama
) -> None:
    rules = [str(await insert(sql, rule_id, title="Same", guidance="text")) for rule_id in "AB"]
    await drain(app, batches=True)
    async with client(app) as http:
        for rule in rules:
            payload = {"rule_id": rule, "input_text": "Same text ", "embedding_model": MODEL}
            made = (await http.post("/jobs/embedding", json={"payload": payload})).json()
            assert (made["status"], made["subject"]) == ("completed", f"rule:{rule}")
            assert made["reused_from"] is not None
        await sql.execute("DELETE FROM rules")
        assert (await http.get("/jobs/embedding")).json()["items"] == [], "and every job goes with its rule"
    assert ollama.calls == [["Same text "]]


async def test_a_job_that_cannot_be_meant_is_refused_over_http(app: Backstay) -> None:
    async with client(app) as http:
        for payload, says in WRONG:
            refused = await http.post("/jobs/embedding", json={"payload": payload})
            assert refused.status_code == 422 and says in refused.text


async def test_a_worker_of_another_kind_registers_is_heard_of_and_listed_over_http(app: Backstay) -> None:
    async with client(app) as http:
        worker = {"worker_id": "gpu-1", "job_types": ["embedding"], "queues": ["embeddings"], "version": "7"}
        assert (await http.post("/workers/register", json=worker)).status_code in (200, 201)
        assert (await http.post("/workers/gpu-1/heartbeat", json={})).status_code == 200
        (listed,) = (await http.get("/workers")).json()["items"]
    assert (listed["worker_id"], listed["version"]) == ("gpu-1", "7")


async def test_health_tells_jobs_by_priority_and_state_with_their_times(app: Backstay, sql: Any) -> None:
    await insert(sql, "A", priority="critical")
    await insert(sql, "B")
    await insert(sql, "C")
    await insert(sql, "bad", guidance="POISON")
    await drain(app)
    await insert(sql, "D", priority="critical")

    groups = {(group.priority_name, group.status): group for group in (await health()).queue_health}
    assert {place: group.count for place, group in groups.items()} == {
        ("urgent", "completed"): 1,
        ("urgent", "pending"): 1,
        ("normal", "completed"): 2,
        ("normal", "retrying"): 1,
    }
    done, waiting = groups["normal", "completed"], groups["urgent", "pending"]
    assert done.average_time_ms is not None and done.average_time_ms >= 0
    assert done.oldest_at <= done.newest_at
    assert waiting.oldest_at == waiting.newest_at == (await app.find(status="pending"))[0].created_at


async def test_performance_tells_for_each_worker_what_it_completed_and_failed(app: Backstay, sql: Any) -> None:
    await insert(sql, "A")
    bad = {"rule_id": str(await insert(sql, "B")), "input_text": "POISON", "embedding_model": MODEL}
    await app.submit("embedding", bad, max_attempts=1)

    async def told() -> bool:
        return [(each["completed"], each["failures"]) for each in (await http.get("/stats")).json()["workers"]] == [
            (2, 1)
        ]

    async with client(app) as http, app.worker(lease=0.5):  # it is heard of three times in a lease
        await eventually(told)
        (worker,) = (await health()).workers
    assert {job.worker_id for job in await app.find()} == {worker.worker_id}
    assert worker.average_time_ms is not None and worker.average_time_ms > 0


async def test_search_finds_the_nearest_rules_by_the_index(app: Backstay, sql: Any, ollama: Ollama) -> None:
    for rule_id in ("A", "B", "C"):
        await insert(sql, rule_id)
    await drain(app, batches=True)
    found = await database.search(sql, "Rule B Do as B says. ", 2)
    assert (found[0].rule_id, len(found)) == ("B", 2)
    assert found[0].similarity == pytest.approx(1, abs=1e-5)
    await sql.execute("SET enable_seqscan = off")  # three rows are read quicker without it
    plan = await sql.fetch(f"EXPLAIN {database.search_sql(768)}", [1.0] * 768, 2)
    assert "Index Scan using rules_embedding" in "".join(row[0] for row in plan)


async def test_a_known_text_is_looked_up_by_the_index_of_its_hash(sql: Any) -> None:
    await sql.execute("SET enable_seqscan = off")
    plan = await sql.fetch("EXPLAIN SELECT FROM rules WHERE text_hash = 'x'")
    assert "rules_text_hash" in "".join(row[0] for row in plan)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "not a list"),
        ("[7]", "rule 0 is not an object"),
        ('[{"rule_id": "A"}]', "has no author, guidance"),
        ("x", "Expecting value"),
        ("[" * 100_000, "not a list"),
        ('[{"rule_id": 5, "project": "p", "author": "a", "title": "t", "guidance": "g"}]', "rule_id 5: it is a text"),
        ('[{"rule_id": "A", "project": ["p"], "author": "a", "title": "t", "guidance": "g"}]', "it is a text"),
        (
            '[{"rule_id": "A", "project": "p", "author": "a", "title": null, "guidance": "g"}]',
            "title None: it is a text",
        ),
    ],
)
def test_a_file_that_holds_no_rules_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rules.json").write_text(text)
    with pytest.raises(ValueError, match=says):
        database.read_rules(tmp_path / "rules.json")


async def test_a_search_before_anything_was_set_up_says_what_to_do(postgres: Postgres) -> None:
    connection = await asyncpg.connect(postgres.url())
    with pytest.raises(database.NotSetUp, match="python -m rules setup"):
        await database.search(connection, "anything")
    await connection.close()


async def test_a_search_that_cannot_be_meant_is_refused(app: Backstay, sql: Any) -> None:
    for question, limit, says in [(" ", 5, "empty"), ("x", 0, "1 to 100"), ("x", 101, "1 to 100")]:
        with pytest.raises(ValueError, match=says):
            await database.search(sql, question, limit)


async def test_a_search_whose_model_is_away_or_answers_rubbish_is_told_in_one_line(
    database_url: str, ollama: Ollama, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setattr(commands.app, "url", database_url)
    ollama.models = set()
    assert await asyncio.to_thread(commands.main, ["search", "anything"]) == 1
    assert "ollama pull nomic-embed-text" in capsys.readouterr().err
    monkeypatch.setattr(ollama, "answer", lambda asked: (200, []))
    assert await asyncio.to_thread(commands.main, ["search", "anything"]) == 1
    assert "instead of 1 vectors of numbers" in capsys.readouterr().err


async def test_work_on_a_queue_that_is_paused_ends_and_says_so(app: Backstay, sql: Any) -> None:
    await insert(sql, "A")
    await app.pause_queue(QUEUE)
    async with asyncio.timeout(20):
        with pytest.raises(Paused, match="queues resume embeddings"):
            await work(Console(quiet=True))
        await app.resume_queue(QUEUE)
        assert (await work(Console(quiet=True))).done == 1
