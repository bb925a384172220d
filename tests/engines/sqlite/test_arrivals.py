"""A submit on its own writes no counter, and is counted all the same: once, and with its own minute."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from backstay.clock import Instant
from backstay.core.records import QueueChange
from backstay.core.states import Counted
from backstay.engines.sqlite import connection
from backstay.engines.sqlite.store import SQLiteStore
from backstay.engines.sqlite.writer import UNCOUNTED_MAX
from backstay.errors import QueueFull
from backstay.testing.conformance.factories import (
    DAY,
    HOUR,
    MINUTE,
    NOW,
    a_policy,
    completed,
    new_job,
    retire,
    submit,
    submit_many,
)


@pytest.fixture
async def other(store: SQLiteStore) -> AsyncIterator[SQLiteStore]:
    """Another process, as far as the file can tell."""
    opened = SQLiteStore(f"sqlite:///{store.path}")
    await opened.open()
    yield opened
    await opened.close()


async def written(store: SQLiteStore) -> int:
    """How many submits have been added to the stored counters."""
    return await store._read(
        lambda opened: connection.value(
            opened, "SELECT coalesce(sum(count), 0) FROM counter WHERE outcome = 'submitted'"
        )
    )


async def counted(store: SQLiteStore, since: Instant = 0) -> int:
    rows = await store.counters(since, NOW + 90 * DAY)
    return sum(row.count for row in rows if row.outcome is Counted.SUBMITTED)


async def total(store: SQLiteStore) -> int:
    return sum(each.count for each in await store.totals() if each.outcome is Counted.SUBMITTED)


async def test_a_submit_on_its_own_writes_no_counter_and_is_counted(store: SQLiteStore) -> None:
    await submit(store)
    await submit(store, now=NOW + MINUTE)
    await submit(store, dedup_key="k", now=NOW + MINUTE)

    assert await written(store) == 0
    assert (await counted(store), await total(store)) == (3, 3)
    assert await counted(store, NOW - NOW % MINUTE + MINUTE) == 2


async def test_many_submits_are_counted_before_a_read_would_have_to_add_them_all(store: SQLiteStore) -> None:
    jobs = UNCOUNTED_MAX + 10
    for _ in range(jobs):
        await submit(store)

    assert await written(store) == UNCOUNTED_MAX
    assert (await counted(store), await total(store)) == (jobs, jobs)


async def test_a_bulk_is_counted_with_those_before_it(store: SQLiteStore) -> None:
    for _ in range(3):
        await submit(store)

    await submit_many(store, UNCOUNTED_MAX)

    assert await written(store) == await counted(store) == await total(store) == UNCOUNTED_MAX + 3


async def test_two_processes_count_each_of_their_submits_once(store: SQLiteStore, other: SQLiteStore) -> None:
    for _ in range(UNCOUNTED_MAX):
        await submit(store)
        await submit(other)

    assert await counted(store) == await counted(other) == 2 * UNCOUNTED_MAX


async def test_a_submit_is_counted_before_its_job_is_deleted(store: SQLiteStore) -> None:
    await completed(store)
    await retire(store, a_policy(completed=0), now=NOW + HOUR)

    assert (await counted(store), await total(store)) == (1, 1)


async def test_a_job_after_a_deleted_one_is_counted_too(store: SQLiteStore) -> None:
    await completed(store)
    await retire(store, a_policy(completed=0), now=NOW + HOUR)

    await submit(store)  # there is no job left whose position its own could follow

    assert (await counted(store), await total(store)) == (2, 2)


async def test_a_few_submits_of_long_ago_are_in_the_totals_once_their_minutes_are_gone(store: SQLiteStore) -> None:
    await submit(store)
    await submit(store)

    await retire(store, a_policy(), now=NOW + 60 * DAY)

    assert (await counted(store), await total(store)) == (0, 2)


async def test_a_limit_of_another_process_holds_for_the_next_submit(store: SQLiteStore, other: SQLiteStore) -> None:
    await submit(store)
    await submit(store)
    await other.change_queue("default", QueueChange(max_pending=2), NOW)

    with pytest.raises(QueueFull):
        await submit(store)


async def test_a_limit_holds_for_the_submit_right_behind_it(store: SQLiteStore) -> None:
    await submit(store)

    answers = await asyncio.gather(
        store.change_queue("default", QueueChange(max_pending=1), NOW),
        store.insert([new_job()], NOW),
        return_exceptions=True,
    )

    assert isinstance(answers[1], QueueFull)


async def test_what_was_counted_before_the_uncounted_were_known_is_not_counted_again(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection.create(path)
    old = connection.connect(path)
    for number, _, statements in connection.migrations():
        if number < 4:
            old.execute(statements)
            old.pragma("user_version", number)
    old.pragma("application_id", connection.APPLICATION_ID)
    _as_before(old)
    old.close()
    store = SQLiteStore(f"sqlite:///{path}")
    await store.open()

    await submit(store)

    assert await total(store) == 2
    await store.close()


def _as_before(old: apsw.Connection) -> None:
    """A job as it was stored with its counter."""
    old.execute(
        "INSERT INTO job (seq, job_id, job_type, queue, priority, payload, scheduled_for, max_attempts, timeout_micros,"
        " payload_version, created_at) VALUES (7, 'old', 'noop', 'default', 50, '1', 1, 1, 1, 1, ?)",
        (NOW,),
    )
    old.execute("INSERT INTO counter VALUES (?, 'noop', 'default', 50, 'submitted', 0, 1, 0, 0)", (NOW - NOW % MINUTE,))
