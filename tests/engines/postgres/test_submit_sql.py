"""Jobs are submitted from SQL, and by a trigger on a table of the user's own."""

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from backstay import Backstay, Context, InvalidOption, InvalidSubmission, JobFailed, PriorityBy, limits
from backstay.engines.postgres.triggers import trigger_sql
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres


class Rule(BaseModel):
    rule_id: int
    text: str = ""


@pytest.fixture
def schema() -> str:
    return f"from_sql_{secrets.token_hex(3)}"


@pytest.fixture
async def app(postgres: Postgres, schema: str) -> AsyncIterator[Backstay]:
    app = Backstay(postgres.url(schema=schema), poll_interval=60)  # a worker has to be woken

    @app.job("embed", priority=70, queue="embeddings", max_attempts=3, timeout=90)
    async def embed(payload: Rule) -> str:
        return payload.text.upper()

    @app.job("one_by_one", global_concurrency=1)
    async def one_by_one(payload: Any) -> None: ...

    async with app:
        yield app


@pytest.fixture
async def sql(postgres: Postgres, schema: str) -> AsyncIterator[Any]:
    """Someone who knows nothing of Python."""
    connection = await asyncpg.connect(postgres.url(), server_settings={"search_path": f"{schema}, public"})
    yield connection
    await connection.close()


async def submit(sql: Any, arguments: str) -> str:
    return str(await sql.fetchval(f"SELECT submit({arguments})"))


RULE = """'embed', '{"rule_id": 7, "text": "be kind"}'"""


# backstay.submit


DERIVED = {
    "subject": "rule:{rule_id}",
    "content_hash": "{md5(text)}",
    "reuse": True,
    "dedup_key": "rule {rule_id} {{once}} {sha256(text)}",
    "priority": PriorityBy("level", {"critical": "urgent", 2: "high"}, otherwise="low"),
}


class Leveled(Rule):
    level: str | int | None = None


async def announce(app: Backstay, **options: Any) -> Backstay:
    """An app with a type that derives, on the same queue."""
    other = Backstay(app.url)

    @other.job("derived", **options)
    async def derived(payload: Leveled) -> None: ...

    async with other:
        return other


async def facts(app: Backstay, job_id: str) -> tuple[Any, ...]:
    job = await app.get(job_id)
    return job.subject, job.content_hash, job.dedup_key, job.priority


@pytest.mark.parametrize(
    "payload",
    [
        {"rule_id": 7, "text": "grün, 漢 \U0001f600"},
        {"rule_id": -1, "level": "critical"},
        {"rule_id": 0, "text": "", "level": 2},
        {"rule_id": 10**15, "level": "other"},
        {"rule_id": 3, "level": None},
    ],
)
async def test_a_job_from_sql_derives_what_one_from_python_does(
    app: Backstay, sql: Any, payload: dict[str, Any]
) -> None:
    async with await announce(app, **DERIVED) as other:
        submitted = await sql.fetchval("SELECT submit('derived', $1::jsonb)", json.dumps(payload))
        ours = await facts(app, str(submitted))
        again = await other.submit("derived", payload)
        assert (again.job_id, again.deduplicated) == (str(submitted), True)
        elsewhere = await other.submit("derived", payload, dedup_key="elsewhere")
        assert (ours[0], ours[1], ours[3]) == (elsewhere.subject, elsewhere.content_hash, elsewhere.priority)
        assert elsewhere.status == "waiting", "it joins the identical one"


async def test_sql_derives_a_key_for_the_day_on_which_the_job_is_due(app: Backstay, sql: Any) -> None:
    async with await announce(app, dedup_key="r{rule_id}", dedup_per="day") as other:
        today, tomorrow = [
            str(await sql.fetchval(f"""SELECT submit('derived', '{{"rule_id": 7}}', delay => '{delay}')"""))
            for delay in ("0 s", "1 day")
        ]
        assert today != tomorrow
        for job_id, delay in ((today, 0), (tomorrow, 86_400)):
            assert (await other.submit("derived", {"rule_id": 7}, delay=delay)).job_id == job_id
        await app.cancel(today)
        assert (await other.submit("derived", {"rule_id": 7})).job_id == today, "the day stays taken"


async def test_what_sql_says_itself_goes_before_what_is_derived(app: Backstay, sql: Any) -> None:
    async with await announce(app, **DERIVED):
        said = "subject => 's', content_hash => 'h', dedup_key => 'k', priority => 9"
        job_id = await submit(sql, f"""'derived', '{{"rule_id": 7}}', {said}""")
        assert await facts(app, job_id) == ("s", "h", "k", 9)


async def test_a_type_that_reuses_by_fields_wants_its_hash_from_sql(postgres: Postgres, schema: str, sql: Any) -> None:
    app = Backstay(postgres.url(schema=schema))

    @app.job("embed", reuse_by=["text"], reuse=True)
    async def embed(payload: Rule) -> str:
        return payload.text.upper()

    async with app:
        with pytest.raises(asyncpg.PostgresError, match="embed reuses results by text"):
            await submit(sql, RULE)
        job = await app.get(await submit(sql, f"{RULE}, content_hash => 'of-ours'"))
        assert job.content_hash == "of-ours"
        plain = await app.get(await submit(sql, f"{RULE}, reuse => 'false'"))
        assert plain.content_hash is None


async def test_sql_is_told_what_it_cannot_derive(app: Backstay, sql: Any) -> None:
    async with await announce(app, subject=lambda rule: rule.text, priority=lambda rule: 7):
        with pytest.raises(asyncpg.PostgresError, match="derived computes its subject and priority in code, which SQL"):
            await submit(sql, """'derived', '{"rule_id": 7}', priority => 3""")
        job_id = await submit(sql, """'derived', '{"rule_id": 7}', priority => 3, subject => 's'""")
        assert (await facts(app, job_id))[::3] == ("s", 3)
    async with await announce(app, subject="{text}"):
        with pytest.raises(asyncpg.PostgresError, match="subject is derived from text, which has to be a string"):
            await submit(sql, """'derived', '{"text": [1]}'""")


async def test_thousands_of_jobs_in_one_transaction_do_not_fill_the_servers_table_of_locks(
    app: Backstay, sql: Any
) -> None:
    submits = (
        """SELECT count(submit('derived', jsonb_build_object('rule_id', n, 'text', 'text ' || n % 1200)))"""
        " FROM generate_series(1, 1300) AS n"
    )
    held = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
    async with await announce(app, content_hash="{md5(text)}", reuse=True):
        async with sql.transaction():
            assert await sql.fetchval(submits) == 1300
            assert await sql.fetchval(held) <= limits.CONTENT_LOCKS_MAX + 1
        counts = await app.counts()
        assert (counts["pending"], counts["waiting"]) == (1200, 100), "and the same text is still one job's"


async def test_a_trigger_submits_with_what_the_type_derives(app: Backstay, sql: Any) -> None:
    async with await announce(app, **DERIVED):
        await sql.execute("CREATE TABLE rules (id integer PRIMARY KEY, text text)")
        await sql.execute(
            trigger_sql(
                app.store.address.schema,
                "rules",
                "derived",
                payload="jsonb_build_object('rule_id', NEW.id, 'text', NEW.text)",
            )  # type: ignore[attr-defined]
        )
        await sql.execute("INSERT INTO rules VALUES (7, 'a'), (8, 'a')")
        first, second = sorted(await app.find(), key=lambda job: str(job.subject))
        assert (first.subject, second.subject) == ("rule:7", "rule:8")
        assert first.content_hash == second.content_hash
        assert {first.status, second.status} == {"pending", "waiting"}


async def test_a_job_whose_row_does_not_exist_is_refused_from_every_side(app: Backstay, sql: Any) -> None:
    schema = app.store.address.schema  # type: ignore[attr-defined]
    made = {"payload": "jsonb_build_object('rule_id', NEW.id)", "row": "id = (payload ->> 'rule_id')::integer"}
    await sql.execute("CREATE TABLE rules (id integer PRIMARY KEY, payload text)")
    subject = "'rule:' || NEW.id"
    await sql.execute(trigger_sql(schema, f"{schema}.rules", "embed", subject=subject, on_delete="delete", **made))  # type: ignore[arg-type]
    await sql.execute("INSERT INTO rules VALUES (7, 'a column of this name is no trouble')")
    assert (await app.submit("embed", {"rule_id": 7}, subject="rule:7")).status == "pending"
    says = f"embed: there is no row of {schema}.rules for this job: nothing was stored"
    with pytest.raises(InvalidSubmission, match=says):
        await app.submit("embed", {"rule_id": 8})
    with pytest.raises(asyncpg.PostgresError, match=says):
        await submit(sql, """'embed', '{"rule_id": 8}'""")
    await app.submit("one_by_one", {"rule_id": 8})  # another type
    await sql.execute("DELETE FROM rules")
    assert [job.job_type for job in await app.find()] == ["one_by_one"]
    await sql.execute(trigger_sql(schema, f"{schema}.rules", "embed", drop=True))
    assert (await app.submit("embed", {"rule_id": 8})).status == "pending"


async def test_the_view_of_jobs_has_the_types_of_postgresql(app: Backstay, sql: Any) -> None:
    job_id = await submit(sql, f"{RULE}, tags => '{{a,b}}', delay => '1 hour'")
    job = await app.get(job_id)
    row = await sql.fetchrow("SELECT * FROM jobs WHERE job_id = $1", job_id)
    assert (row["created_at"], row["scheduled_for"]) == (job.created_at, job.scheduled_for)
    assert (row["status"], row["tags"], json.loads(row["payload"])) == ("scheduled", ["a", "b"], job.payload)
    assert (row["started_at"], row["result"], row["processing_time_ms"]) == (None, None, None)
    await sql.execute("SELECT cancel_jobs('embed', NULL)")
    async with app.worker():
        done = await app.submit("embed", {"rule_id": 1, "text": "x"})
        await done.result(timeout=10)
    job = await app.get(done.job_id)
    row = await sql.fetchrow("SELECT * FROM jobs WHERE completed_at > now() - interval '24 hours'")
    assert (str(row["job_id"]), row["completed_at"], json.loads(row["result"])) == (job.job_id, job.completed_at, "X")
    assert (row["started_at"], row["processing_time_ms"]) == (job.started_at, job.processing_time_ms)
    assert row["attempt"] == 1 and row["timeout_seconds"] == 90


async def test_a_job_from_sql_has_the_defaults_of_its_handler_and_wakes_a_worker(app: Backstay, sql: Any) -> None:
    async with app.worker():
        job_id = await submit(sql, RULE)
        assert await app.result(job_id, timeout=5) == "BE KIND"

    job = await app.get(job_id)
    assert (job.priority, job.queue, job.row.max_attempts) == (70, "embeddings", 3)
    assert job.row.timeout_micros == 90_000_000


async def test_what_sql_asks_for_is_what_the_job_has(app: Backstay, sql: Any) -> None:
    before = await submit(sql, RULE)
    job_id = await submit(
        sql,
        f"{RULE}, priority => 99, queue => 'slow', delay => '1 hour', subject => 'rule:7', tags => '{{a,b}}',"
        f" depends_on => '{{{before}}}', max_attempts => 9, timeout => '5 min', created_by => 'a view',"
        " stage => 'second'",
    )

    job = await app.get(job_id)
    assert (job.priority, job.queue, job.subject, job.tags) == (99, "slow", "rule:7", ["a", "b"])
    assert (job.status, job.created_by, job.row.job_stage) == ("waiting", "a view", "second")
    assert (job.row.max_attempts, job.row.timeout_micros) == (9, 300_000_000)
    assert timedelta(minutes=59) < job.scheduled_for - job.created_at < timedelta(minutes=61)


async def test_sql_and_python_find_each_others_duplicates(app: Backstay, sql: Any) -> None:
    from_python = await app.submit("embed", Rule(rule_id=1), dedup_key="rule:1")
    assert await submit(sql, f"{RULE}, dedup_key => 'rule:1'") == from_python.job_id

    from_sql = await submit(sql, f"{RULE}, dedup_key => 'rule:2', dedup_for => '1 day'")
    assert (await app.submit("embed", Rule(rule_id=2), dedup_key="rule:2")).job_id == from_sql

    own = str(await sql.fetchval("SELECT gen_random_uuid()"))
    assert await submit(sql, f"{RULE}, job_id => '{own}'") == await submit(sql, f"{RULE}, job_id => '{own}'") == own


async def test_the_same_payload_is_the_same_whether_it_comes_from_sql_or_from_python(app: Backstay, sql: Any) -> None:
    from_python = await app.submit("embed", Rule(rule_id=1, text="be kind"), dedup_key="same")
    again = """'embed', '{"text": "be kind", "rule_id": 1}', dedup_key => 'same', dedup => 'error'"""
    assert await submit(sql, again) == from_python.job_id
    with pytest.raises(asyncpg.PostgresError, match="whose payload is different"):
        await submit(sql, again.replace("kind", "brief"))


async def test_payloads_that_jsonb_does_not_take_are_compared_as_they_are(app: Backstay, sql: Any) -> None:
    same = "SELECT same_json($1, $2)"
    assert await sql.fetchval(same, '"\\u0000"', '"\\u0000"') is True
    assert await sql.fetchval(same, '"\\u0000"', '"a"') is False


async def test_jobs_of_a_subject_are_cancelled_without_saying_by_whom(app: Backstay, sql: Any) -> None:
    job_id = await submit(sql, f"{RULE}, subject => 'rule:7'")
    assert await sql.fetchval("SELECT cancel_jobs('embed', 'rule:7')") == 1
    assert (await app.history(job_id))[-1].by == "sql"


async def test_a_result_that_is_there_is_reused(app: Backstay, sql: Any) -> None:
    async with app.worker():
        first = await submit(sql, f"{RULE}, content_hash => 'h'")
        await app.result(first, timeout=5)
        again = await submit(sql, f"{RULE}, content_hash => 'h', reuse => 'true'")

    assert (await app.get(again)).row.reused_from == first
    assert await app.result(again, timeout=5) == "BE KIND"


async def test_a_limit_over_all_workers_counts_jobs_from_sql(app: Backstay, sql: Any) -> None:
    job = await app.get(await submit(sql, "'one_by_one'"))

    assert (job.row.concurrency_key, job.row.concurrency_limit) == ("one_by_one", 1)


async def test_a_rollback_takes_the_job_along(app: Backstay, sql: Any) -> None:
    await sql.execute("BEGIN")
    await submit(sql, RULE)
    await sql.execute("ROLLBACK")

    assert sum((await app.counts()).values()) == 0


async def test_a_payload_that_does_not_fit_fails_without_running_the_handler(app: Backstay, sql: Any) -> None:
    async with app.worker():
        job_id = await submit(sql, """'embed', '{"rule_id": "seven"}', max_attempts => 1""")
        with pytest.raises(JobFailed, match="rule_id"):
            await app.result(job_id, timeout=5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("'unheard_of'", "start its worker once"),
        (f"{RULE}, run_at => now(), delay => '1 s'", "are mutually exclusive"),
        ("NULL", "job_type is NULL"),
        (f"{RULE}, reuse => 'true'", "content_hash"),
        (f"{RULE}, reuse => 'often', content_hash => 'h'", "true, false or an interval"),
        (f"{RULE}, dedup_for => 'forever'", "needs a dedup_key"),
        (f"{RULE}, dedup_for => 'often', dedup_key => 'k'", "active, forever or an interval"),
        (f"{RULE}, concurrency_key => 'k'", "global_concurrency"),
        ("'embed', to_jsonb(repeat('x', 300000))", "over the limit"),
        (f"{RULE}, priority => 101", "use 0 to 100"),
        (f"{RULE}, priority => -1", "use 0 to 100"),
        (f"{RULE}, max_attempts => 0", "use 1 to 1000"),
        (f"{RULE}, timeout => '0 s'", "up to 30 days"),
        (f"{RULE}, timeout => '31 days'", "up to 30 days"),
        (f"{RULE}, fairness_weight => 0", "use 1 to 1000"),
        (f"{RULE}, fairness_weight => NULL", "use 1 to 1000"),
        (f"{RULE}, on_dependency_failure => 'ignore'", "cancel or fail"),
        (f"{RULE}, dedup => 'raise'", "return, error or replace"),
        ("'embed', NULL", "payload is NULL"),
        (f"{RULE}, run_at => '200000-01-01'", "ten years"),
        (f"{RULE}, run_at => '-infinity'", "ten years"),
        (f"{RULE}, delay => '100000 years'", "ten years"),
        (f"{RULE}, delay => '-1 s'", "ten years"),
        (f"{RULE}, queue => ''", "cannot be a queue"),
        (f"{RULE}, queue => E'a\nb'", "cannot be a queue"),
        (f"{RULE}, subject => ''", "must not be empty"),
        (f"{RULE}, subject => repeat('x', 513)", "too long"),
        (f"{RULE}, tags => ARRAY[NULL]", "up to 32 strings"),
        (f"{RULE}, tags => ARRAY[ARRAY['a'], ARRAY['b']]", "up to 32 strings"),
        (f"{RULE}, depends_on => '{{00000000-0000-7000-8000-000000000000}}'", "00000000"),
    ],
)
async def test_what_cannot_be_meant_is_refused(app: Backstay, sql: Any, arguments: str, says: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match=says) as refused:
        await submit(sql, arguments)

    assert refused.value.sqlstate[:2] == "BS"

    assert sum((await app.counts()).values()) == 0


async def test_an_empty_fairness_key_is_none(app: Backstay, sql: Any) -> None:
    async with app.worker():
        job_id = await submit(sql, f"{RULE}, fairness_key => ''")
        await app.result(job_id, timeout=10)


# By trigger


@pytest.fixture
async def rules(sql: Any, schema: str) -> str:
    await sql.execute(f"CREATE TABLE {schema}.rule (id integer PRIMARY KEY, text text, urgent boolean, seen integer)")
    return f"{schema}.rule"


def a_trigger(schema: str, rules: str, **options: Any) -> str:
    return trigger_sql(
        schema,
        rules,
        "embed",
        payload="jsonb_build_object('rule_id', NEW.id, 'text', NEW.text)",
        columns=["text"],
        subject="'rule:' || new.id",
        priority="CASE WHEN NEW.urgent THEN 90 END",
        content_hash="md5(NEW.text)",
        **options,
    )


async def jobs(app: Backstay) -> list[dict[str, Any]]:
    return [job.payload for job in reversed(await app.find())]


async def test_a_row_that_comes_or_changes_submits_a_job_made_of_it(
    app: Backstay, sql: Any, schema: str, rules: str
) -> None:
    await sql.execute(a_trigger(schema, rules))
    async with app.worker():
        await sql.execute(f"INSERT INTO {rules} VALUES (1, 'be kind', true)")
        [job] = await app.find()
        assert await app.result(job.job_id, timeout=5) == "BE KIND"

    assert (job.subject, job.priority, job.created_by) == ("rule:1", 90, f"trigger:{rules}")
    assert job.content_hash == await sql.fetchval("SELECT md5('be kind')")
    await sql.execute(f"UPDATE {rules} SET seen = 1")  # a column that does not count
    await sql.execute(f"UPDATE {rules} SET text = 'be brief'")
    assert [each["text"] for each in await jobs(app)] == ["be kind", "be brief"]


async def test_only_rows_that_are_meant_submit_and_a_second_one_is_a_duplicate(
    app: Backstay, sql: Any, schema: str, rules: str
) -> None:
    await sql.execute(
        a_trigger(schema, rules, when="NEW.text IS DISTINCT FROM OLD.text", dedup_key="'rule:' || NEW.id")
    )
    await sql.execute(f"INSERT INTO {rules} VALUES (1, 'be kind', false), (2, NULL, false)")
    await sql.execute(f"UPDATE {rules} SET text = 'be kind' WHERE id = 1")
    await sql.execute(f"UPDATE {rules} SET text = 'be brief' WHERE id = 1")

    assert [each["text"] for each in await jobs(app)] == ["be kind"]


@pytest.mark.parametrize(("how", "left"), [("cancel", ["cancelled", "pending"]), ("delete", ["pending"])])
async def test_a_row_that_goes_takes_its_jobs_along(
    app: Backstay, sql: Any, schema: str, rules: str, how: str, left: list[str]
) -> None:
    await sql.execute(a_trigger(schema, rules, on_delete=how))
    await sql.execute(f"INSERT INTO {rules} VALUES (1, 'be kind', false), (2, 'be brief', false)")

    await sql.execute(f"DELETE FROM {rules} WHERE id = 1")

    assert sorted(job.status.value for job in await app.find()) == left


async def test_whoever_owns_the_table_applies_the_trigger_with_the_rights_that_submitting_needs(
    app: Backstay, sql: Any, schema: str, postgres: Postgres
) -> None:
    role = f"{schema}_shop"
    await sql.execute(f"CREATE ROLE {role} LOGIN; CREATE SCHEMA {role} AUTHORIZATION {role}")
    await sql.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    await sql.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    shop = await asyncpg.connect(postgres.url().replace("postgres@", f"{role}@"))
    await shop.execute(f"SET search_path = {role}")  # the table's name alone is enough
    await shop.execute("CREATE TABLE rule (id integer PRIMARY KEY, text text, urgent boolean, seen integer)")
    await shop.execute(a_trigger(schema, "rule", on_delete="cancel"))
    await shop.execute("INSERT INTO rule VALUES (1, 'be kind', true)")
    assert await jobs(app) == [{"rule_id": 1, "text": "be kind"}]
    await shop.execute("DELETE FROM rule")
    assert [job.status.value for job in await app.find()] == ["cancelled"]
    await shop.close()


async def test_a_trigger_that_is_applied_again_is_one_trigger_and_does_what_it_says_now(
    app: Backstay, sql: Any, schema: str, rules: str
) -> None:
    await sql.execute(a_trigger(schema, rules, on_delete="cancel"))
    await sql.execute(a_trigger(schema, "rule"))  # the same table by its short name, and no on_delete any more
    await sql.execute(f"INSERT INTO {rules} VALUES (1, 'be kind', false)")
    await sql.execute(f"DELETE FROM {rules}")
    assert [job.status.value for job in await app.find()] == ["pending"]


async def test_an_update_that_changes_nothing_submits_nothing(app: Backstay, sql: Any, schema: str, rules: str) -> None:
    for columns in (["text"], []):
        await sql.execute(f"TRUNCATE {rules}")
        await sql.execute(
            trigger_sql(schema, rules, "embed", payload="jsonb_build_object('rule_id', 1)", columns=columns)
        )
        before = len(await jobs(app))
        await sql.execute(f"INSERT INTO {rules} VALUES (1, NULL, false)")
        await sql.execute(f"UPDATE {rules} SET text = NULL")
        assert len(await jobs(app)) == before + 1
        await sql.execute(f"UPDATE {rules} SET text = 'new'")
        assert len(await jobs(app)) == before + 2


async def test_a_trigger_is_removed_with_all_that_it_made(app: Backstay, sql: Any, schema: str, rules: str) -> None:
    await sql.execute(a_trigger(schema, rules, on_delete="cancel"))
    script = trigger_sql(schema, rules, "embed", drop=True)
    await sql.execute(script)
    await sql.execute(script)
    await sql.execute(f"INSERT INTO {rules} VALUES (1, 'be kind', false)")
    assert await jobs(app) == []
    assert (
        await sql.fetch(
            "SELECT * FROM pg_proc WHERE proname LIKE 'backstay_embed%' AND pronamespace = $1::regnamespace", schema
        )
        == []
    )


async def test_long_names_and_tables_of_the_same_name_do_not_get_into_each_others_way(
    app: Backstay, sql: Any, schema: str
) -> None:
    long = "r" * 60
    for table in (f"{schema}.{long}", f"public.{long}"):
        await sql.execute(f"CREATE TABLE {table} (id integer)")
        script = trigger_sql(
            schema,
            table,
            "embed",
            payload=f"""'{json.dumps({"rule_id": 1, "text": table})}'""",
            subject="'row:' || NEW.id",
            on_delete="cancel",
        )
        await sql.execute(script)
        await sql.execute(script)  # again, after a change to it
    try:
        for table in (f"{schema}.{long}", f"public.{long}"):
            await sql.execute(f"INSERT INTO {table} VALUES (1)")
        assert [each["text"] for each in await jobs(app)] == [f"{schema}.{long}", f"public.{long}"]
        await sql.execute(f"DELETE FROM {schema}.{long}")
        assert {job.status.value for job in await app.find()} == {"cancelled"}  # both have the subject row:1
    finally:
        await sql.execute(f"DROP TABLE public.{long}")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"table": "rule; DROP TABLE rule"}, "cannot be a table"),
        ({"columns": ["text, seen"]}, "cannot be a column"),
        ({"job_type": "em bed'"}, "job type"),
        ({"on_delete": "ignore"}, "cancel or delete"),
        ({"on_delete": "cancel"}, "subject"),
        ({"payload": None}, "payload is missing"),
    ],
)
def test_a_trigger_that_cannot_be_meant_is_refused(wrong: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"schema": "backstay", "table": "rule", "job_type": "embed", "payload": "'null'"}
    with pytest.raises(InvalidOption, match=says):
        trigger_sql(**given | wrong)


async def test_twenty_connections_that_submit_the_same_key_get_the_same_job(
    app: Backstay, postgres: Postgres, schema: str
) -> None:
    async def one() -> Any:
        connection = await asyncpg.connect(postgres.url())
        try:
            return await connection.fetchval(f"SELECT {schema}.submit({RULE}, dedup_key => 'same')")
        finally:
            await connection.close()

    assert len(set(await asyncio.gather(*(one() for _ in range(20))))) == 1


def test_a_trigger_is_written_where_no_driver_is_installed() -> None:
    code = (
        "import sys; sys.modules['asyncpg'] = None; from backstay.engines.postgres import trigger_sql;"
        "print(trigger_sql('backstay', 'rules', 'embed', payload='to_jsonb(NEW)'))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "CREATE" in ended.stdout, ended.stderr


# backstay.send_event


async def test_an_event_that_sql_sends_reaches_the_job_once_its_transaction_has_committed(
    app: Backstay, sql: Any, schema: str
) -> None:
    @app.job("order")
    async def order(payload: str | None, ctx: Context) -> Any:
        return await ctx.wait_for_event("approved", key=payload)

    one, other = await app.submit("order", None), await app.submit("order", "order:7")
    async with app.worker():
        await eventually(lambda: _both(app, one.job_id, other.job_id, "waiting"))
        async with sql.transaction():
            args = (one.job_id, '{"by": "ada"}')
            await sql.fetchval(f"SELECT {schema}.send_event($1::text::uuid, 'approved', $2::text::jsonb)", *args)
            await sql.fetchval(f"SELECT {schema}.send_event(key => 'order:7', name => 'approved', payload => '7')")
            assert (await app.get(one.job_id)).status == "waiting"

        assert await one.result(timeout=30) == {"by": "ada"}
        assert await other.result(timeout=30) == 7
    for arguments, says in (
        (f"'{one.job_id}', 'approved'", "has ended"),
        ("gen_random_uuid(), 'approved'", "no job"),
        ("name => 'approved'", "either a job or a key"),
        ("key => 'k', name => ''", "1 to 128"),
    ):
        with pytest.raises(asyncpg.PostgresError, match=says):
            await sql.fetchval(f"SELECT {schema}.send_event({arguments})")


async def _both(app: Backstay, one: str, other: str, status: str) -> bool:
    return all([(await app.get(job_id)).status == status for job_id in (one, other)])
