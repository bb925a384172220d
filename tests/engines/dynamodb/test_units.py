"""What a job costs. Amazon bills units: a plain job must not take one that its indexes do not need.

DynamoDB Local reports what a write takes, but inside a transaction it counts indexes twice, and of a transaction of
many items it reports one: so its figures are pinned for a single job, and the others are counted from the index entries
that come, go or change.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from backstay.core.records import ClaimedJob, ClaimRequest, Hold, NewJob, Note, Transition
from backstay.core.states import Event, Status
from backstay.engines.dynamodb import maintenance
from backstay.engines.dynamodb.schema import INDEXES, Index, Item, Table, size
from backstay.engines.dynamodb.store import DynamoStore
from backstay.ids import new_ids
from tests.support.servers.dynamodb import DynamoDB

NOW = 1_763_300_000_000_000
TRANSACTION = 2  # what each item of one is charged
COUNTER = TRANSACTION


@pytest.fixture
async def store(dynamodb: DynamoDB) -> AsyncIterator[DynamoStore]:
    opened = DynamoStore(dynamodb.url(meter="true", wake="false"))
    await opened.open()
    await opened.insert([_job()], NOW)  # what a store writes once in an hour is not a job's
    yield opened
    await opened.close()


def _job(**changes: object) -> NewJob:
    fields: dict[str, object] = {
        "job_id": new_ids(1, NOW)[0],
        "job_type": "summarise",
        "queue": "default",
        "priority": 50,
        "payload": '{"text":"' + "x" * 120 + '"}',
        "scheduled_for": NOW,
        "max_attempts": 5,
        "timeout_micros": 3_600_000_000,
    }
    return NewJob(**{**fields, **changes})  # type: ignore[arg-type]


def _request(limit: int, token: str) -> ClaimRequest:
    return ClaimRequest("worker-1", "1", ("default",), {"measured": limit}, limit, 60_000_000, token)


def _completed(job: ClaimedJob, token: str) -> Transition:
    return Transition(
        job_id=job.job_id,
        event=Event.COMPLETE,
        source=Status.PROCESSING,
        target=Status.COMPLETED,
        attempt=job.attempt,
        token=token,
        kind=(job.job_type, job.queue, job.priority),
        by="worker-1",
        progress=1.0,
        stage="complete",
        result='"done"',
    )


async def _raw(store: DynamoStore, job_id: str) -> Item:
    """With its index attributes."""
    found, _ = await store._open().tables.scan(Table.JOBS)
    [item] = [each for each in found if each["job_id"] == job_id]
    return item


def _entry(index: Index, item: Item | None) -> Item | None:
    if item is None or index.hash not in item or index.range not in item:
        return None
    return {name: item[name] for name in (index.hash, index.range, "job_id", *index.includes) if name in item}


def index_units(old: Item | None, new: Item) -> int:
    """One for an entry that comes, goes or changes; one that moves goes and comes."""
    total = 0
    for index in INDEXES.values():
        before, after = _entry(index, old), _entry(index, new)
        if before == after:
            continue
        moved = before is not None and after is not None and _key(index, before) != _key(index, after)
        total += 2 if moved else 1
    return total


def _key(index: Index, entry: Item) -> tuple[str, str]:
    return entry[index.hash], entry[index.range]


async def test_a_job_alone_takes_what_local_reports(store: DynamoStore) -> None:
    meter = store._open().tables.wire.meter
    used = [meter.write_units]

    await store.insert([_job(job_type="measured")], NOW)
    used.append(meter.write_units)
    [job] = await store.claim(_request(1, "a"), NOW)
    used.append(meter.write_units)
    await store.apply([_completed(job, "a")], NOW)
    used.append(meter.write_units)

    assert [after - before for before, after in itertools.pairwise(used)] == [10, 6, 14]
    assert used[-1] - used[0] == maintenance.units_of_job(1).most


@pytest.mark.parametrize(
    ("options", "submit", "claim", "complete"),
    [
        ({}, 3, 5, 5),
        ({"subject": "s"}, 4, 5, 5),
        ({"content_hash": "h"}, 4, 5, 7),
        ({"concurrency_key": "k", "concurrency_limit": 5, "special": True}, 4, 7, 7),
        ({"fairness_key": "tenant"}, 3, 5, 5),
    ],
    ids=["plain", "subject", "content hash", "concurrency key", "fairness key"],
)
async def test_no_index_entry_is_written_needlessly(
    store: DynamoStore, options: dict[str, object], submit: int, claim: int, complete: int
) -> None:
    new = _job(job_type="measured", **options)
    await store.insert([new], NOW)
    submitted = await _raw(store, new.job_id)
    [job] = await store.claim(_request(1, "a"), NOW + 1)
    claimed = await _raw(store, new.job_id)
    await store.apply([_completed(job, "a")], NOW + 2)
    done = await _raw(store, new.job_id)

    assert index_units(None, submitted) == submit
    assert index_units(submitted, claimed) == claim
    assert index_units(claimed, done) == complete
    if not options:  # what doctor tells: 22 alone, 19 and 4 / n of many at once
        assert (submit, claim, complete) == (
            maintenance.SUBMIT.entries,
            maintenance.CLAIM.entries,
            maintenance.COMPLETE.entries,
        )
        assert TRANSACTION + submit + COUNTER + 1 + claim + TRANSACTION + complete + COUNTER == 22


async def test_a_plain_job_stays_within_one_unit(store: DynamoStore) -> None:
    new = _job(job_type="measured")
    await store.insert([new], NOW)
    [job] = await store.claim(_request(1, "a"), NOW)
    await store.apply([_completed(job, "a")], NOW)

    stored = store._open().tables.form.stored(await _raw(store, new.job_id), new.job_id)
    assert size(stored) <= 1024


async def test_a_heartbeat_moves_one_entry_and_a_note_none(store: DynamoStore) -> None:
    new = _job(job_type="measured")
    await store.insert([new], NOW)
    [job] = await store.claim(_request(1, "a"), NOW)
    claimed = await _raw(store, new.job_id)
    hold = Hold(job.job_id, job.attempt, "a")
    await store.extend([hold], NOW + 60_000_000, NOW)
    extended = await _raw(store, new.job_id)
    await store.note([Note(hold, progress=0.5, stage="half")], NOW)

    assert index_units(claimed, extended) in (0, 2)
    assert index_units(extended, await _raw(store, new.job_id)) == 0
