"""The server commits, and its answer never arrives: whatever was asked, the caller is told what is true."""

import secrets
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import msgspec
import pytest

from holdfast.lifecycle import Raised, Status, cancel, manual_retry, reprioritise, rescue
from holdfast.schedules import defined
from holdfast.store.conformance.factories import NOW, SECOND, Claim, an_error, new_job, record, request, submit
from holdfast.store.types import Note, QueueChange, Schedule, Verdict
from holdfast.stores.postgres import PostgresStore
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy

T = TypeVar("T")


class Unheard:
    """`await unheard(store.claim(…))`: the answer to the call's first commit is lost."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def __call__(self, call: Awaitable[T]) -> T:
        before = self._proxy.swallowed
        self._proxy.swallow()
        answer = await call
        assert self._proxy.swallowed == before + 1
        return answer


@pytest.fixture
async def line(postgres: Postgres) -> AsyncIterator[Proxy]:
    with Proxy(postgres.port) as proxy:
        yield proxy


@pytest.fixture
def unheard(line: Proxy) -> Unheard:
    return Unheard(line)


@pytest.fixture
async def store(postgres: Postgres, line: Proxy) -> AsyncIterator[PostgresStore]:
    url = postgres.url(schema=f"unheard_{secrets.token_hex(3)}", clock="caller", wake="false")
    opened = PostgresStore(url.replace(f":{postgres.port}/", f":{line.port}/"))
    await opened.open()
    yield opened
    await opened.close()


async def _claimed(store: PostgresStore, **asked: object) -> Claim:
    await submit(store, **asked)
    wanted = request()
    [job] = await store.claim(wanted, NOW)
    return Claim(job, wanted.token)


@pytest.mark.parametrize("fields", [{}, {"dedup_key": "k"}, {"concurrency_key": "c", "concurrency_limit": 1}])
async def test_a_submitted_job_is_stored_once(
    store: PostgresStore, unheard: Unheard, fields: dict[str, object]
) -> None:
    job = new_job(**fields)

    [answer] = await unheard(store.insert([job], NOW))

    assert (answer.job_id, answer.status, answer.existing) == (job.job_id, Status.PENDING, None)
    assert (await store.counts())["pending"] == 1


@pytest.mark.parametrize("fields", [{}, {"concurrency_key": "c", "concurrency_limit": 5}])
async def test_a_claim_is_told_what_it_took_and_takes_no_more(
    store: PostgresStore, unheard: Unheard, fields: dict[str, object]
) -> None:
    await store.insert([new_job(**fields) for _ in range(5)], NOW)

    taken = await unheard(store.claim(request(limit=2), NOW))

    assert [job.attempt for job in taken] == [1, 1]
    assert (await store.counts())["processing"] == 2


@pytest.mark.parametrize("how", ["plain", "with a log", "failed"])
async def test_a_settlement_is_applied_once_and_not_called_stale(
    store: PostgresStore, unheard: Unheard, how: str
) -> None:
    claim = await _claimed(store)
    settles = {
        "plain": claim.completes(),
        "with a log": claim.completes(log_location="/log"),
        "failed": claim.ends(Raised(an_error())),
    }

    assert await unheard(store.apply([settles[how]], NOW)) == [Verdict.APPLIED]

    assert len((await record(store, claim.job_id)).history) == 3


async def test_a_settlement_is_not_called_stale_though_the_job_was_claimed_again_before_it_could_be_repeated(
    store: PostgresStore, postgres: Postgres, line: Proxy, unheard: Unheard
) -> None:
    claim = await _claimed(store)
    rival = PostgresStore(postgres.url(schema=store.address.schema, clock="caller", wake="false"))
    await rival.open()
    tries = 0
    once = store._session._once

    async def after_the_rival(*given: object) -> object:
        nonlocal tries
        tries += 1
        if tries == 2:
            await rival.promote(NOW + 3600 * SECOND, 10)
            assert len(await rival.claim(request(worker_id="rival"), NOW)) == 1
        return await once(*given)  # type: ignore[arg-type]

    store._session._once = after_the_rival  # type: ignore[method-assign, assignment]

    assert await unheard(store.apply([claim.ends(Raised(an_error()))], NOW)) == [Verdict.APPLIED]

    assert tries == 2
    assert (await record(store, claim.job_id)).attempt == 2
    await rival.close()


async def test_an_edit_is_applied_once_and_not_called_stale(store: PostgresStore, unheard: Unheard) -> None:
    job_id = await submit(store)

    seen = await record(store, job_id)
    urgent = reprioritise(seen, priority=90, by="me", reason=None)
    assert await unheard(store.apply([urgent], NOW)) == [Verdict.APPLIED]
    assert await store.apply([urgent], NOW) == [Verdict.STALE]  # asked for anew it is another edit, of what is gone

    seen = await record(store, job_id)
    assert await unheard(store.apply([cancel(seen, by="me", reason=None)], NOW)) == [Verdict.APPLIED]

    seen = await record(store, job_id)
    again = manual_retry(seen, now=NOW, by="me", reason=None)
    assert await unheard(store.apply([again], NOW)) == [Verdict.APPLIED]
    assert [entry.event for entry in (await record(store, job_id)).history] == [
        "submit",
        "reprioritise",
        "cancel",
        "manual_retry",
    ]


async def test_a_rescue_is_applied_once_and_not_called_stale(store: PostgresStore, unheard: Unheard) -> None:
    claim = await _claimed(store)
    later = NOW + 3600 * SECOND
    [expired] = await store.expired(later, 10)
    move = rescue(expired, lease=expired.lease_expires_at, now=later, reason="lost", by="sweeper")

    assert await unheard(store.apply([move], later)) == [Verdict.APPLIED]

    assert (await record(store, claim.job_id)).failures == 1


async def test_what_a_holder_says_is_taken(store: PostgresStore, unheard: Unheard) -> None:
    claim = await _claimed(store)

    assert await unheard(store.extend([claim.hold], NOW + 90 * SECOND, NOW)) == [Verdict.APPLIED]
    assert await unheard(store.note([Note(claim.hold, progress=0.5)], NOW)) == [Verdict.APPLIED]
    assert await unheard(store.record_step(claim.hold, "step", "1", NOW)) is Verdict.APPLIED

    job = await record(store, claim.job_id)
    assert (job.lease_expires_at, job.progress) == (NOW + 90 * SECOND, 0.5)


async def test_operators_are_told_that_it_is_done(store: PostgresStore, unheard: Unheard) -> None:
    row = await unheard(store.change_queue("default", QueueChange(paused=True, by="me"), NOW))
    assert row.paused_at == NOW

    nightly = defined(None, "nightly", "0 3 * * *", "UTC", "skip", new_job(), NOW)
    assert nightly is not None
    assert await unheard(store.save_schedule(nightly, None)) is Verdict.APPLIED
    [stored] = await store.schedules()
    assert _told(stored) == _told(nightly)
    assert await unheard(store.drop_schedule("nightly")) is Verdict.APPLIED
    assert await store.schedules() == []


def _told(schedule: Schedule) -> Schedule:
    return msgspec.structs.replace(schedule, version=0)
