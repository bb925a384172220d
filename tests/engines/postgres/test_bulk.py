"""Jobs that come by the hundred go another way to the server, and arrive as single ones do."""

import secrets
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest

from backstay.core.records import NEW_DEFAULTS, Counter, JobRecord, NewJob, QueueChange
from backstay.engines.postgres import connection
from backstay.engines.postgres.connection import INSERTED
from backstay.engines.postgres.insert import COPY_JOBS_MIN
from backstay.engines.postgres.store import PostgresStore
from backstay.errors import InvalidSubmission, QueueFull, StoreError
from backstay.testing.conformance.factories import NOW, SECOND, new_job, request
from tests.support.servers.postgres import Postgres
from tests.support.servers.proxy import Proxy

MANY = COPY_JOBS_MIN


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres.url(schema=f"bulk_{secrets.token_hex(4)}", clock="caller"))
    await opened.open()
    yield opened
    await opened.close()


def assorted() -> list[NewJob]:
    kinds = [
        {},
        {"scheduled_for": NOW + SECOND, "payload": '{"name":"Ödön \\"x\\" \\\\ \\t"}'},
        {"subject": "song:1\n\\N", "tags": '["a","b"]', "created_by": 'me "and" you', "job_stage": "first"},
        {"content_hash": "abc", "payload_version": 3, "fairness_key": "tenant", "fairness_weight": 7},
        {"queue": "other", "job_type": "else", "priority": 90, "max_attempts": 9},
    ]
    return [new_job(**kinds[number % len(kinds)]) for number in range(MANY)]


def without_id(record: JobRecord | None) -> JobRecord:
    assert record is not None
    return msgspec.structs.replace(record, job_id="")


async def test_they_are_stored_as_if_each_had_come_alone(store: PostgresStore) -> None:
    together, alone = assorted(), assorted()
    answers = await store.insert(together, NOW)
    single = [(await store.insert([job], NOW))[0] for job in alone]

    assert [each.status for each in answers] == [each.status for each in single]
    records = [await store.get([job.job_id for job in jobs]) for jobs in (together, alone)]
    assert list(map(without_id, records[0])) == list(map(without_id, records[1]))


@pytest.mark.parametrize("field", sorted(NEW_DEFAULTS.keys() & set(INSERTED)))
async def test_a_single_job_keeps_each_field_that_most_jobs_do_not_have(store: PostgresStore, field: str) -> None:
    """Most are stored by a statement that does not name it."""
    value = {"payload_version": 3, "fairness_weight": 7, "root_job_id": new_job().job_id}.get(field, '["told"]')
    job = new_job(**{field: value})
    await store.insert([job], NOW)

    other = await asyncpg.connect(store.address.dsn)
    stored = await other.fetchval(f'SELECT {field} FROM "{store.address.schema}".job WHERE job_id = $1', job.job_id)
    await other.close()
    assert str(stored) == str(value)


async def test_they_are_counted_as_if_each_had_come_alone(store: PostgresStore, postgres: Postgres) -> None:
    async def counted() -> list[Counter]:
        return await store.counters(0, NOW + SECOND)

    await store.insert(assorted(), NOW)
    together = await counted()
    for job in assorted():
        await store.insert([job], NOW)
    assert [(each.job_type, each.outcome, 2 * each.count) for each in together] == [
        (each.job_type, each.outcome, each.count) for each in await counted()
    ]


async def test_all_or_none_of_them_are_stored(store: PostgresStore) -> None:
    jobs = assorted()
    jobs.append(jobs[0])  # its id is there already
    with pytest.raises(StoreError):
        await store.insert(jobs, NOW)
    assert sum((await store.counts()).values()) == 0


async def test_a_full_queue_refuses_them_and_counts_only_those_that_are_due(store: PostgresStore) -> None:
    await store.change_queue("default", QueueChange(max_pending=MANY), NOW)
    await store.insert([new_job(scheduled_for=NOW + SECOND) for _ in range(MANY + 1)], NOW)
    await store.insert([new_job() for _ in range(MANY)], NOW)
    with pytest.raises(QueueFull):
        await store.insert([new_job() for _ in range(MANY)], NOW)
    assert (await store.counts())["pending"] == MANY


async def test_when_the_answer_is_lost_they_are_there_once(postgres: Postgres) -> None:
    with Proxy(postgres.port) as line:
        url = postgres.url(schema=f"bulk_{secrets.token_hex(4)}", clock="caller", wake="false")
        store = PostgresStore(url.replace(f":{postgres.port}/", f":{line.port}/"))
        await store.open()
        jobs = assorted()
        line.swallow()
        answers = await store.insert(jobs, NOW)
        counts = await store.counts()
        await store.close()
    assert line.swallowed == 1
    assert [each.job_id for each in answers] == [job.job_id for job in jobs]
    assert sum(counts.values()) == MANY


async def test_their_due_times_are_on_the_servers_clock(postgres: Postgres) -> None:
    """A caller whose clock is an hour fast submits for now: workers get the jobs now."""
    store = PostgresStore(postgres.url(schema=f"bulk_{secrets.token_hex(4)}"))
    await store.open()
    connection = await asyncpg.connect(postgres.url())
    now = int(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp()) * 1000000"))
    await connection.close()
    fast = now + 3600 * SECOND
    await store.insert([new_job(scheduled_for=fast) for _ in range(MANY)], fast)
    [first, *_] = claimed = await store.claim(request(limit=MANY, slots={"work": MANY}), now)
    await store.close()
    assert len(claimed) == MANY
    assert abs(first.scheduled_for - now) < 60 * SECOND


async def test_more_keys_than_the_server_can_lock_are_refused_before_they_take_the_locks_of_everyone(
    store: PostgresStore,
) -> None:
    room = 64 * 200  # max_locks_per_transaction and max_connections
    jobs = [new_job(dedup_key=f"k{number}") for number in range(room + 1)]
    with pytest.raises(InvalidSubmission, match="submit fewer at a time"):
        await store.insert(jobs, NOW)
    assert sum((await store.counts()).values()) == 0


async def test_a_repeat_after_a_lost_answer_locks_no_more_than_the_first_try(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [True]
    value = connection.Tx.value

    async def loses_one(tx: connection.Tx, name: str, *values: object) -> object:
        answer = await value(tx, name, *values)
        if name == "insert_jobs" and lost:
            lost.clear()
            raise ConnectionResetError
        if name == "insert_jobs":
            locks = await tx.connection.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            assert locks == 0
        return answer

    monkeypatch.setattr(connection.Tx, "value", loses_one)
    [first] = await store.insert([new_job()], NOW)
    answers = await store.insert([new_job(depends_on=(first.job_id,)) for _ in range(500)], NOW)
    assert len({answer.job_id for answer in answers}) == 500
