"""Two who change the same jobs at the same moment, in an order that a third session dictates by its locks."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from backstay.core import lifecycle
from backstay.core.records import Staged, Verdict
from backstay.core.states import Status
from backstay.engines.postgres import release
from backstay.engines.postgres.connection import parse
from backstay.engines.postgres.store import PostgresStore
from backstay.limits import SWEEP_BATCH_MAX
from backstay.testing.conformance.factories import (
    NOW,
    claim_again,
    new_job,
    record,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
)
from tests.support.servers.postgres import Postgres


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres.url(schema=f"races_{secrets.token_hex(3)}", clock="caller", pool="8"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def someone(store: PostgresStore) -> AsyncIterator[asyncpg.Connection]:
    """A session that finds the tables by their names alone, and is in a transaction."""
    connection = await asyncpg.connect(
        parse(f"{store.address.dsn}?schema={store.address.schema}").dsn,
        server_settings={"search_path": store.address.schema},
    )
    await connection.execute("BEGIN")
    yield connection
    await connection.close()


async def _blocked(store: PostgresStore, count: int, *tasks: "asyncio.Task[Any]") -> None:
    """Wait until so many sessions wait for locks, or one of the tasks is over."""
    watch = await asyncpg.connect(store.address.dsn)
    async with asyncio.timeout(30):
        while not any(task.done() for task in tasks):
            if await watch.fetchval("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted") >= count:
                break
    await watch.close()


async def test_a_dependent_that_is_edited_at_the_moment_its_dependency_ends_is_released(
    store: PostgresStore, someone: asyncpg.Connection
) -> None:
    dependency = await running(store)
    dependent = await record(store, await submit(store, depends_on=(dependency.job_id,)))
    await someone.execute("SELECT FROM waiting FOR UPDATE")

    edit = lifecycle.reprioritise(dependent, priority=77, by="someone", reason=None)
    edited = asyncio.create_task(store.apply([edit], NOW))
    await _blocked(store, 1)
    ended = asyncio.create_task(store.apply([dependency.completes()], NOW))
    await _blocked(store, 2)
    await someone.execute("ROLLBACK")

    assert await edited == await ended == [Verdict.APPLIED]
    found = await record(store, dependent.job_id)
    assert (found.status, found.priority) == (Status.PENDING, 77)


async def test_a_reused_result_is_there_although_its_job_is_run_again_at_the_same_moment(
    store: PostgresStore, someone: asyncpg.Connection
) -> None:
    donor = await running(store, job_type="embed", content_hash="h")
    await settle(store, donor.completes("42"))
    await someone.execute("LOCK TABLE edge IN EXCLUSIVE MODE")

    again = new_job(job_type="embed", content_hash="h", reuse_since=0)
    submitted = asyncio.create_task(store.insert([again], NOW))
    await _blocked(store, 1)
    retried = asyncio.create_task(retry_by_hand(store, donor.job_id))
    await _blocked(store, 2, retried)
    await someone.execute("ROLLBACK")

    [answer] = await submitted
    await retried
    found = await record(store, answer.job_id)
    assert (found.status, found.result, found.reused_from) == (Status.COMPLETED, "42", donor.job_id)
    assert await status(store, donor.job_id) is Status.PENDING


async def test_a_job_that_joins_an_identical_one_hears_of_its_end_however_fast_it_comes_and_goes(
    store: PostgresStore, someone: asyncpg.Connection
) -> None:
    another = await asyncpg.connect(store.address.dsn, server_settings={"search_path": store.address.schema})
    await another.execute("BEGIN; LOCK TABLE edge IN EXCLUSIVE MODE")
    await someone.execute("LOCK TABLE dedup IN ACCESS EXCLUSIVE MODE")

    joining = new_job(job_type="embed", content_hash="h", reuse_since=0)
    submitted = asyncio.create_task(store.insert([joining], NOW))
    await _blocked(store, 1)  # it has looked whom it has to wait for, and seen none
    identical = await running(store, job_type="embed", content_hash="h")
    await someone.execute("ROLLBACK")
    ended = asyncio.create_task(store.apply([identical.completes("5")], NOW))
    await _blocked(store, 2, ended)
    await another.execute("ROLLBACK")
    await another.close()

    await submitted
    assert await ended == [Verdict.APPLIED]
    found = await record(store, joining.job_id)
    assert (found.status, found.result, found.reused_from) == (Status.COMPLETED, "5", identical.job_id)


async def test_a_job_that_waits_again_for_a_running_one_hears_of_its_end_however_soon_it_comes(
    store: PostgresStore, someone: asyncpg.Connection
) -> None:
    first = await running(store)
    await settle(store, first.completes())
    dependent = await running(store, depends_on=(first.job_id,))
    await settle(store, dependent.ends_as(Status.FAILED))
    await retry_by_hand(store, first.job_id)
    again = await claim_again(store, first)  # not for anyone's sake
    await someone.execute("LOCK TABLE edge IN EXCLUSIVE MODE")

    retried = asyncio.create_task(retry_by_hand(store, dependent.job_id, rewait=True))
    await _blocked(store, 1)
    ended = asyncio.create_task(store.apply([again.completes("2")], NOW))
    await _blocked(store, 2, ended)
    await someone.execute("ROLLBACK")

    await retried
    assert await ended == [Verdict.APPLIED]
    assert await status(store, dependent.job_id) is Status.PENDING


async def test_a_dependency_that_is_run_again_keeps_those_that_maintenance_has_yet_to_release(
    store: PostgresStore, someone: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release.spread, "__defaults__", (1,))  # as if one were many
    dependency = await running(store)
    dependents = [await submit(store, depends_on=(dependency.job_id,)) for _ in range(3)]
    await settle(store, dependency.ends_as(Status.FAILED))
    assert [await status(store, each) for each in dependents].count(Status.WAITING) == 2
    await someone.execute("LOCK TABLE edge IN EXCLUSIVE MODE")

    more = asyncio.create_task(store.release(NOW, 1000))
    await _blocked(store, 1)
    retried = asyncio.create_task(retry_by_hand(store, dependency.job_id))
    await _blocked(store, 2, retried)
    early = retried.done()
    await someone.execute("ROLLBACK")
    await more
    await retried

    assert not early  # not between the look at how it ended and the release of what waited for that


async def test_a_dependency_that_someone_has_locked_keeps_no_other_from_being_released(
    store: PostgresStore, someone: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release.spread, "__defaults__", (1,))  # as if one were many
    dependencies = [await running(store) for _ in range(3)]
    dependents = {
        each.job_id: [await submit(store, depends_on=(each.job_id,)) for _ in range(2)] for each in dependencies
    }
    for each in dependencies:
        await settle(store, each.completes())
    locked = min(dependents)
    await someone.execute("SELECT FROM job WHERE job_id = $1 FOR UPDATE", locked)

    for _ in dependencies:
        await store.release(NOW, SWEEP_BATCH_MAX)

    waiting = {each: [await status(store, job_id) for job_id in dependents[each]] for each in dependents}
    assert waiting.pop(locked).count(Status.WAITING) == 1
    assert all(found == [Status.PENDING] * 2 for found in waiting.values())


async def test_a_job_is_not_dropped_while_its_children_are_still_to_be_stored(
    store: PostgresStore, someone: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await running(store, job_type="report", subject="s")
    children = [new_job(parent_job_id=parent.job_id) for _ in range(3)]
    await store.stage(parent.hold, 0, children, NOW)

    async def dies(*_: object) -> int:
        return 0

    with monkeypatch.context() as process:
        process.setattr(store, "_unpack", dies)
        await settle(store, parent.completes(staged=Staged(parts=1, jobs=3)))
    assert await someone.fetchval("SELECT drop_jobs('report', 's')") == 0
    await someone.execute("COMMIT")

    await store.release(NOW, 1000)
    assert {await status(store, child.job_id) for child in children} == {Status.PENDING}


async def test_a_job_that_gets_a_child_at_the_moment_it_is_dropped_is_kept_with_it(
    store: PostgresStore, someone: asyncpg.Connection
) -> None:
    parent = await running(store, job_type="report", subject="s")
    await settle(store, parent.completes())
    child = new_job(parent_job_id=parent.job_id)
    await someone.execute("LOCK TABLE detail IN EXCLUSIVE MODE")
    another = await asyncpg.connect(store.address.dsn, server_settings={"search_path": store.address.schema})
    await another.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM job")

    submitted = asyncio.create_task(store.insert([child], NOW))
    await _blocked(store, 1)
    dropping = await asyncpg.connect(store.address.dsn)
    call = asyncio.create_task(dropping.fetchval(f"SELECT {store.address.schema}.drop_jobs('report', 's')"))
    await _blocked(store, 2)
    await someone.execute("ROLLBACK")

    await submitted
    assert await call == 0
    with pytest.raises(asyncpg.SerializationError):  # it does not see the child, but that there is one
        await another.execute("SELECT drop_jobs('report', 's')")
    await another.close()
    await dropping.close()
    assert (await record(store, parent.job_id)).children == 1
