"""The backstop: what was lost by a death at the worst moment, or by an index, is found again."""

from __future__ import annotations

import secrets
import uuid
from typing import Any

import pytest

from backstay.clock import MICROS
from backstay.core.lifecycle import cancel
from backstay.core.records import Rate, Signal
from backstay.engines.dynamodb import admission, dependencies, items, maintenance, outbox, parking, schema
from backstay.engines.dynamodb.expressions import update
from backstay.engines.dynamodb.outbox import Mark, MarkKind
from backstay.engines.dynamodb.schema import Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.store import DynamoStore
from backstay.engines.dynamodb.table import Tables
from backstay.errors import StoreBusy, StoreError
from backstay.ids import new_id
from backstay.testing.conformance.factories import (
    DAY,
    HOUR,
    NOW,
    SECOND,
    a_policy,
    claim_ids,
    claim_one,
    completed,
    new_job,
    record,
    retire,
    running,
    settle,
    submit,
    submit_many,
)

LATER = NOW + HOUR


def _session(store: DynamoStore) -> Session:
    assert store._session is not None
    return store._session


async def _forget_marks(store: DynamoStore) -> None:
    rows, _ = await _session(store).tables.scan(Table.RECORDS)
    marks = [(row["pk"], row["sk"]) for row in rows if row["pk"] == schema.WAITING]
    assert marks
    await _session(store).tables.delete_many(Table.RECORDS, marks)


async def test_a_job_whose_index_attributes_are_lost_is_found(store: DynamoStore) -> None:
    job_id = await submit(store)
    await _session(store).tables.update(update(Table.JOBS, (job_id,), removes=("gr", "gq")))
    assert await claim_ids(store) == []

    await store.release(LATER, 100)

    assert await claim_ids(store) == [job_id]


async def test_of_more_late_jobs_than_one_look_takes_each_is_looked_up_some_time(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await submit_many(store, 3)
    looked_up: set[str] = set()

    async def look_up(session: Session, row: Item, item: Item) -> None:
        looked_up.add(item["job_id"])

    monkeypatch.setattr(maintenance, "_LOOKED_UP_MAX", 1)
    monkeypatch.setattr(maintenance, "_look_up", look_up)
    rows, _ = await _session(store).tables.scan(Table.JOBS)
    for _ in range(100):
        await maintenance._look_at_jobs(_session(store), rows, LATER)

    assert looked_up == set(ids)


async def test_whoever_leaves_and_dies_before_it_lets_the_next_one_in_is_stood_in_for(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await running(store, concurrency_key="gpu")
    waiting = await submit(store, concurrency_key="gpu")
    with monkeypatch.context() as patched:
        patched.setattr(parking, "after_leaving", _nothing)
        await settle(store, holder.completes())
    assert await claim_ids(store, now=NOW + 60 * SECOND) == []

    assert await store.release(NOW, 100) == 1

    assert await claim_ids(store) == [waiting]


async def test_of_more_keys_than_one_sweep_looks_at_each_gets_its_turn(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "MARKS_MAX", 2)
    for i in range(5):
        await submit(store, job_type="first", concurrency_key=f"key {i}")
        await submit(store, concurrency_key=f"key {i}", job_type="first")
    holders = [await claim_one(store, slots={"first": 1}) for _ in range(5)]
    with monkeypatch.context() as patched:
        patched.setattr(parking, "after_leaving", _nothing)
        await settle(store, *(holder.completes() for holder in holders))

    assert sum([await store.release(NOW, 100) for _ in range(4)]) == 5

    assert len(await claim_ids(store, slots={"first": 9})) == 5


async def test_a_rate_whose_jobs_nobody_looks_at_is_looked_at(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await submit_many(store, 2, rate_key="api", rate=Rate(1, HOUR))
    with monkeypatch.context() as patched:
        patched.setattr(parking, "after_leaving", _nothing)
        await settle(store, cancel(await record(store, first), by=None, reason=None))
    await store.promote(NOW, 10)
    assert await claim_ids(store) == []

    await store.release(NOW, 100)

    assert await claim_ids(store) == [second]


@pytest.mark.parametrize("changes", [{"concurrency_key": "gpu"}, {"rate_key": "api", "rate": Rate(1, SECOND)}], ids=str)
async def test_what_is_parked_without_a_mark_is_found(store: DynamoStore, changes: dict[str, object]) -> None:
    first, second = await submit_many(store, 2, **changes)
    holder = await claim_one(store, first)
    await _forget_marks(store)
    if "rate_key" in changes:
        gate = schema.rate_gate("api", 1, SECOND)
        await _session(store).tables.update(update(Table.RECORDS, gate, removes=("due_at",)))

    await store.release(LATER, 100)
    await settle(store, holder.completes())
    await store.promote(LATER + 2 * SECOND, 10)

    assert await claim_ids(store, now=LATER + 2 * SECOND) == [second]


async def test_marks_that_stand_for_nobody_go_when_they_are_old(store: DynamoStore) -> None:
    ids = await submit_many(store, 2, concurrency_key="gpu", concurrency_limit=1)
    for job_id in ids:
        await settle(store, (await claim_one(store, job_id)).completes())

    await store.release(NOW, 100)
    assert await _waiting(store) != []
    await store.release(LATER, 100)

    assert await _waiting(store) == []


async def test_a_gate_that_names_one_who_does_not_run_lets_him_go(store: DynamoStore) -> None:
    ghost = await submit(store, job_type="ghost", concurrency_key="gpu")
    await _session(store).tables.update(admission.enter("gpu", 1, {ghost}))
    waiting = await submit(store, concurrency_key="gpu")
    assert await claim_ids(store) == []

    await store.release(NOW, 100)

    assert await claim_ids(store) == [waiting]


async def test_texts_that_nobody_names_are_removed_when_they_are_old(store: DynamoStore) -> None:
    days = 24 * HOUR
    never_came, about_to_come, here = _id_of(NOW - 2 * days), _id_of(NOW + 2 * days), new_id(NOW)
    await store.insert([new_job(job_id=here, payload='"' + "x" * 1_000 + '"')], NOW)
    for job_id in (never_came, about_to_come, here):
        pk, sk = schema.body(job_id, "other.p.1", 0)
        await _session(store).tables.put(Table.RECORDS, {"pk": pk, "sk": sk, "text": "x"})

    for walk in (2, 4):
        await store.release(NOW + walk * days, 100)

    rows, _ = await _session(store).tables.scan(Table.RECORDS)
    assert [row["pk"] for row in rows if row["pk"].startswith("body|")] == [f"body|{here}"]
    [job] = await store.get([here])
    assert job is not None
    assert len(job.payload) == 1_002


async def test_a_text_whose_commit_is_under_way_stays_however_old_its_job_is(
    store: DynamoStore, second_store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = items.put
    walks = 0

    async def put_and_sweep(tables: Tables, records: list[Item], **how: Any) -> None:
        nonlocal walks
        await put(tables, records, **how)
        if records:
            walks += 1
            await second_store.release(NOW + walks * 30 * HOUR, 100)

    long = '"' + "x" * 300 + '"'
    claim = await running(store, now=NOW, lease_micros=100 * HOUR)
    monkeypatch.setattr(items, "put", put_and_sweep)

    made_long_ago = _id_of(NOW - 48 * HOUR)
    await store.insert([new_job(job_id=made_long_ago, own_id=True, payload=long)], NOW)
    await store.apply([claim.completes(long, now=NOW)], NOW)

    assert walks == 2
    assert (await record(store, made_long_ago)).payload == long
    assert (await record(store, claim.job_id)).result == long


async def test_a_text_that_is_missing_is_not_read_as_nothing(
    store: DynamoStore, caplog: pytest.LogCaptureFixture
) -> None:
    broken, whole = [await submit(store, payload='"' + "x" * 300 + '"', priority=n) for n in (60, 50)]
    rows, _ = await _session(store).tables.scan(Table.RECORDS)
    texts = [(row["pk"], row["sk"]) for row in rows if row["pk"] == f"body|{broken}"]
    await _session(store).tables.delete_many(Table.RECORDS, texts)

    with pytest.raises(StoreError, match=f"{broken}: a part of its payload is missing"):
        await store.get([broken])
    assert await claim_ids(store) == [whole]
    assert broken in caplog.text


async def test_who_reads_a_job_while_it_is_retired_sees_what_is_left(
    store: DynamoStore, second_store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await completed(store, payload='"' + "x" * 300 + '"')
    fetch = items.fetch

    async def retire_and_fetch(*args: Any, **how: Any) -> Any:
        monkeypatch.setattr(items, "fetch", fetch)
        await retire(second_store, a_policy(0, 0, 0), now=NOW + DAY, limit=10)
        return await fetch(*args, **how)

    monkeypatch.setattr(items, "fetch", retire_and_fetch)

    assert (await record(store, job_id)).archived_at is not None


def _id_of(instant: int) -> str:
    return str(uuid.UUID(int=(instant // 1_000) << 80 | 7 << 76 | 2 << 62 | secrets.randbits(60)))


async def test_one_sweeps_for_all(
    store: DynamoStore, second_store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[Table] = []

    async def page(session: Session, table: Table, now: int) -> None:
        swept.append(table)

    monkeypatch.setattr(maintenance, "_sweep_page", page)
    for _ in range(3):
        await store.release(LATER, 100)
        await second_store.release(LATER + 30 * MICROS, 100)

    assert swept == [Table.JOBS, Table.RECORDS]


async def _waiting(store: DynamoStore) -> list[Item]:
    rows, _ = await _session(store).tables.scan(Table.RECORDS)
    return [row for row in rows if row["pk"] == schema.WAITING]


async def _nothing(*_: object) -> set[Signal]:
    return set()


async def test_a_mark_that_fails_keeps_no_other_waiting_and_is_tried_again(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = [new_id(NOW) for _ in range(6)]
    for name in names:
        await _session(store).tables.update(outbox.written(outbox.new_mark(MarkKind.ENDED, name, NOW)))
    unknown = {**outbox.new_mark(MarkKind.ENDED, names[0], NOW).item, "sk": "later|x", "kind": "later"}
    await _session(store).tables.put(Table.RECORDS, unknown)
    resume, broken = dependencies.resume, {names[0], names[3]}

    async def failing(session: Session, marks: list[Mark], *rest: Any) -> int:
        if marks[0].name in broken:
            raise StoreBusy("throttled")
        return await resume(session, marks, *rest)

    monkeypatch.setattr(dependencies, "resume", failing)

    await store.release(LATER, 100)
    left = {mark.name async for mark in outbox.marks(_session(store).tables, 100)}
    assert left == broken
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 3
    broken.clear()
    await store.release(LATER, 100)

    assert [mark.kind async for mark in outbox.marks(_session(store).tables, 100)] == ["later"]
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 3  # each is said once
    await _session(store).tables.delete_many(Table.RECORDS, [(unknown["pk"], unknown["sk"])])
