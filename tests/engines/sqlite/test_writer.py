"""The writer thread: what waits is committed together, and nothing is answered before it is."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from backstay.clock import MICROS
from backstay.core.records import Verdict
from backstay.core.states import Status
from backstay.engines.sqlite import connection
from backstay.engines.sqlite.store import SQLiteStore
from backstay.engines.sqlite.writer import Tx, Writer
from backstay.errors import NotOpen, StoreBusy, StoreError, StoreFull, UnknownDependency
from backstay.testing.conformance.factories import HOUR, NOW, claim_ids, new_job, record, running, submit


def writer_of(store: SQLiteStore) -> Writer:
    assert store._writer is not None
    return store._writer


class Commits:
    def __init__(self, store: SQLiteStore) -> None:
        self.count = 0
        self.refuse = False
        writer_of(store).connection.set_commit_hook(self._committing)

    def _committing(self) -> bool:
        self.count += 1
        return self.refuse


async def turn_of_the_loop() -> None:
    await asyncio.to_thread(int)


@asynccontextmanager
async def held(store: SQLiteStore) -> AsyncIterator[None]:
    """The writer stands still, so that all that is asked inside becomes one group."""
    begun, gate = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        begun.set()
        gate.wait()

    holding = store._write("hold", hold, essential=True)
    await asyncio.to_thread(begun.wait)
    yield
    gate.set()
    await holding


async def together(store: SQLiteStore, *calls: Awaitable[Any]) -> list[Any]:
    """The answers, or errors, of verbs that the writer met at once."""
    async with held(store):
        tasks = [asyncio.ensure_future(call) for call in calls]
        await turn_of_the_loop()
        await turn_of_the_loop()
    return await asyncio.gather(*tasks, return_exceptions=True)


# Group commit


async def test_sixty_four_concurrent_submits_share_a_commit(store: SQLiteStore) -> None:
    commits = Commits(store)

    await asyncio.gather(*(submit(store) for _ in range(64)))

    assert commits.count <= 2


async def test_a_thread_that_waits_for_its_submit_commits_it_itself(store: SQLiteStore) -> None:
    threads: set[int] = set()

    def committing() -> bool:
        threads.add(threading.get_ident())
        return False

    writer_of(store).connection.set_commit_hook(committing)
    job = new_job()

    def submit_here() -> tuple[int, Any]:
        return threading.get_ident(), store.insert_here([job], NOW)

    thread, answers = await asyncio.to_thread(submit_here)

    assert threads == {thread}
    assert [each.job_id for each in answers] == [job.job_id]
    assert (await record(store, job.job_id)).status is Status.PENDING


async def test_a_thread_that_finds_the_file_in_use_lets_the_writer_share_a_commit(store: SQLiteStore) -> None:
    async with held(store):
        assert await asyncio.to_thread(store.insert_here, [new_job()], NOW) is None

    assert (await store.counts())["pending"] == 0


async def test_what_is_wrong_with_a_submit_is_told_to_the_thread_that_commits_it(store: SQLiteStore) -> None:
    orphan = new_job(depends_on=("01890000-0000-7000-8000-000000000000",), special=True)

    with pytest.raises(UnknownDependency):
        await asyncio.to_thread(store.insert_here, [orphan], NOW)

    assert await asyncio.to_thread(store.insert_here, [new_job()], NOW) is not None


async def test_an_interrupt_of_a_thread_that_commits_leaves_the_writer_usable(store: SQLiteStore) -> None:
    def interrupted(tx: Tx) -> None:
        raise KeyboardInterrupt

    def run() -> bool:
        try:
            writer_of(store).run_here("hold", interrupted)
        except KeyboardInterrupt:  # must not reach the event loop's executor
            return True
        return False

    assert await asyncio.to_thread(run)
    assert (await record(store, await submit(store))).status is Status.PENDING


async def test_a_closed_store_takes_no_submits_from_threads(store: SQLiteStore) -> None:
    writer = writer_of(store)
    await store.close()

    with pytest.raises(NotOpen):
        await asyncio.to_thread(store.insert_here, [new_job()], NOW)
    with pytest.raises(NotOpen):  # a thread that had the writer already
        await asyncio.to_thread(writer.run_here, "insert", lambda tx: None)


async def test_verbs_that_wait_share_a_commit_whatever_they_are(store: SQLiteStore) -> None:
    claims = [await running(store) for _ in range(20)]
    commits = Commits(store)

    answers = await together(
        store,
        *(store.apply([claim.completes()], NOW) for claim in claims),
        *(submit(store, dedup_key=str(i)) for i in range(20)),
        *(store.extend([claims[0].hold], NOW, NOW) for _ in range(20)),
    )

    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert commits.count == 2  # the verb that held the writer, and all the others


async def test_nothing_is_acknowledged_that_did_not_commit(store: SQLiteStore) -> None:
    jobs = [new_job(), new_job()]
    commits = Commits(store)
    commits.refuse = True

    answers = await asyncio.gather(*(store.insert([job], NOW) for job in jobs), return_exceptions=True)

    assert {type(answer) for answer in answers} == {StoreError}
    commits.refuse = False
    assert await store.get([job.job_id for job in jobs]) == [None, None]


async def test_after_a_refused_commit_the_writer_goes_on(store: SQLiteStore) -> None:
    commits = Commits(store)
    commits.refuse = True
    with pytest.raises(StoreError):
        await submit(store)
    commits.refuse = False

    job_id = await submit(store)

    assert await store.get([job_id]) != [None]


# One failure is one failure


async def test_the_error_of_one_verb_does_not_harm_the_others_of_its_group(store: SQLiteStore) -> None:
    claim = await running(store)
    before, bad, after = new_job(own_id=True), new_job(depends_on=("nobody",)), new_job(own_id=True)

    first, error, verdicts, last = await together(
        store,
        store.insert([before], NOW),
        store.insert([new_job(own_id=True, job_id=bad.job_id), bad], NOW),
        store.apply([claim.completes()], NOW),
        store.insert([after], NOW),
    )

    assert isinstance(error, UnknownDependency)
    assert (first[0].status, verdicts, last[0].status) == (Status.PENDING, [Verdict.APPLIED], Status.PENDING)
    found = await store.get([before.job_id, bad.job_id, after.job_id])
    assert [job is not None for job in found] == [True, False, True]


async def test_a_row_that_the_schema_refuses_does_not_harm_the_others_of_its_group(
    store: SQLiteStore,
) -> None:
    good, bad = new_job(own_id=True), new_job(own_id=True, priority=101)

    first, error = await together(store, store.insert([good], NOW), store.insert([bad], NOW))

    assert first[0].status is Status.PENDING
    assert isinstance(error, StoreError)
    assert [job is not None for job in await store.get([good.job_id, bad.job_id])] == [True, False]


async def test_a_plain_submit_that_is_refused_does_not_harm_those_of_the_same_turn(
    store: SQLiteStore,
) -> None:
    good, bad, other = new_job(), new_job(priority=101), new_job()

    first, error, last = await asyncio.gather(
        *(store.insert([job], NOW) for job in (good, bad, other)), return_exceptions=True
    )

    assert isinstance(error, StoreError)
    assert not isinstance(first, BaseException)
    assert not isinstance(last, BaseException)
    found = await store.get([job.job_id for job in (good, bad, other)])
    assert [job is not None for job in found] == [True, False, True]


async def test_a_caller_that_gave_up_does_not_harm_the_others_of_its_group(store: SQLiteStore) -> None:
    patient, hasty = new_job(own_id=True), new_job(own_id=True)

    async with held(store):
        waiting = asyncio.ensure_future(store.insert([patient], NOW))
        leaving = asyncio.ensure_future(store.insert([hasty], NOW))
        await turn_of_the_loop()
        leaving.cancel()

    assert (await waiting)[0].status is Status.PENDING
    assert leaving.cancelled()


# A lock that others hold


async def test_a_lock_that_others_hold_is_an_error_after_one_wait_for_the_whole_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []

    def impatient(self: object, tries: int) -> bool:
        waits.append(tries)
        return False

    monkeypatch.setattr(connection._Patience, "__call__", impatient)
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    rival = apsw.Connection(str(store.path))
    rival.execute("BEGIN IMMEDIATE")
    waits.clear()
    calls = [asyncio.ensure_future(submit(store, dedup_key=str(i))) for i in range(20)]

    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(answer) for answer in answers} == {StoreBusy}
    assert len(waits) <= 3  # the first verb may have gone ahead alone
    rival.execute("ROLLBACK")
    rival.close()
    assert await submit(store)
    await store.close()


# A full disk


def fill(store: SQLiteStore, spare_pages: int = 0) -> None:
    """From here on the file cannot grow by more than `spare_pages`."""
    c = writer_of(store).connection
    c.pragma("max_page_count", int(str(c.pragma("page_count"))) + spare_pages)


def make_room(store: SQLiteStore) -> None:
    writer_of(store).connection.pragma("max_page_count", 1_000_000)


BULK = '"' + "x" * 20_000 + '"'


async def test_on_a_full_disk_acknowledged_is_present_and_refused_is_absent(store: SQLiteStore) -> None:
    fill(store, 100)
    jobs = [new_job(payload=BULK, own_id=i % 3 == 0) for i in range(60)]

    answers = []
    for start in range(0, 60, 6):
        batch = jobs[start : start + 6]
        answers += await asyncio.gather(*(store.insert([job], NOW) for job in batch), return_exceptions=True)

    acknowledged = [not isinstance(answer, BaseException) for answer in answers]
    assert {type(answer) for answer in answers if isinstance(answer, BaseException)} == {StoreFull}
    assert True in acknowledged
    make_room(store)
    present = [job is not None for job in await store.get([job.job_id for job in jobs])]
    assert present == acknowledged


async def test_a_batch_that_does_not_fit_leaves_nothing(store: SQLiteStore) -> None:
    fill(store, 20)
    jobs = [new_job(payload=BULK) for _ in range(20)]

    with pytest.raises(StoreFull):
        await store.insert(jobs, NOW)

    make_room(store)
    assert set(await store.get([job.job_id for job in jobs])) == {None}


async def test_a_settlement_goes_through_beside_an_insert_that_does_not_fit(store: SQLiteStore) -> None:
    claim = await running(store)
    fill(store)

    verdicts, error = await together(
        store,
        store.apply([claim.completes("1")], NOW),
        store.insert([new_job(payload=BULK, own_id=True)], NOW),
    )

    assert verdicts == [Verdict.APPLIED]
    assert isinstance(error, StoreFull)
    make_room(store)
    assert (await record(store, claim.job_id)).status is Status.COMPLETED


async def test_the_last_space_goes_to_settlements(store: SQLiteStore) -> None:
    claim = await running(store)
    fill(store, 6)  # either fits, but not both

    error, verdicts = await together(
        store, store.insert([new_job(payload=BULK, own_id=True)], NOW), store.apply([claim.completes(BULK)], NOW)
    )

    assert verdicts == [Verdict.APPLIED]
    assert isinstance(error, StoreFull)


async def test_when_space_is_back_submits_are_accepted_again(store: SQLiteStore) -> None:
    fill(store)
    with pytest.raises(StoreFull):
        await submit(store, payload=BULK)

    make_room(store)

    assert await store.get([await submit(store, payload=BULK)]) != [None]


class Ballast:
    """Stands in for the reserve: giving it up makes the room that a settlement needs."""

    def __init__(self, store: SQLiteStore) -> None:
        self.store = store
        self.there = True

    def spend(self) -> bool:
        was_there, self.there = self.there, False
        if was_there:
            make_room(self.store)
        return was_there

    def ensure(self) -> bool:
        return self.there


async def test_a_settlement_that_does_not_fit_spends_the_reserve_and_until_it_is_back_no_job_comes_in(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await running(store)
    ballast = Ballast(store)
    monkeypatch.setattr(writer_of(store), "reserve", ballast)
    fill(store)

    assert await store.apply([claim.completes(BULK)], NOW) == [Verdict.APPLIED]
    with pytest.raises(StoreFull):
        await submit(store)
    assert (await record(store, claim.job_id)).result == BULK

    ballast.there = True
    assert await store.get([await submit(store)]) != [None]


async def test_an_insert_never_spends_the_reserve(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ballast = Ballast(store)
    monkeypatch.setattr(writer_of(store), "reserve", ballast)
    fill(store)

    with pytest.raises(StoreFull):
        await submit(store, payload=BULK)

    assert ballast.there


async def test_the_reserve_lies_beside_the_file_and_is_taken_once(store: SQLiteStore) -> None:
    reserve = writer_of(store).reserve
    assert reserve.path.stat().st_size > 0

    assert (reserve.spend(), reserve.spend(), reserve.path.exists()) == (True, False, False)
    assert reserve.ensure()
    assert reserve.path.stat().st_size > 0


async def test_a_reserve_that_another_process_has_spent_is_missed_at_once(store: SQLiteStore, tmp_path: Path) -> None:
    other = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    await other.open()
    await submit(store)
    await submit(store)
    await submit(other)
    reserve = writer_of(store).reserve
    reserve.path.unlink()

    await submit(store)

    assert reserve.path.exists()
    await other.close()


# Plain jobs, in bulk and on their own


@pytest.mark.parametrize("others", [0, 1])
async def test_what_few_jobs_have_is_stored_with_jobs_that_have_none_of_it(store: SQLiteStore, others: int) -> None:
    rare = {"subject": "s", "tags": '["t"]', "fairness_key": "f", "fairness_weight": 3, "payload_version": 2}
    marked = new_job(**rare)
    jobs = [*(new_job() for _ in range(others)), marked]

    await store.insert(jobs, NOW)

    found = await record(store, marked.job_id)
    assert (found.subject, found.tags, found.fairness_key, found.payload_version) == ("s", '["t"]', "f", 2)


# What only this engine can show: a guard whose job is gone


async def test_a_dedup_guard_whose_job_is_gone_guards_nothing(store: SQLiteStore) -> None:
    first = await submit(store, dedup_key="k")
    await store._write(
        "purge",
        lambda tx: tx.connection.execute("DELETE FROM job; DELETE FROM ready"),
        essential=False,
    )

    second = await submit(store, dedup_key="k")

    assert second != first
    assert await submit(store, dedup_key="k") == second


async def test_a_claim_that_waited_for_the_writer_begins_no_earlier_than_its_jobs_came_in(store: SQLiteStore) -> None:
    later = NOW + 10 * MICROS
    first = await submit(store, now=NOW)
    second = await submit(store, now=later, scheduled_for=later)

    assert set(await claim_ids(store, limit=2)) == {first, second}  # asked at NOW

    job = await record(store, second)
    assert job.started_at == later
    assert [event.at for event in job.history] == [later, later]
    assert job.lease_expires_at is not None
    assert job.lease_expires_at < later + HOUR  # a clock that was ahead once delays no rescue
