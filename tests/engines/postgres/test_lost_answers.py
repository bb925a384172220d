"""The server commits, and its answer never arrives: whatever was asked, the caller is told what is true."""

import secrets
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import pytest

from backstay.core.lifecycle import Raised, reprioritise
from backstay.core.records import Verdict
from backstay.engines.postgres.store import PostgresStore
from backstay.testing.conformance.factories import NOW, SECOND, an_error, record, request, settle, submit
from tests.engines.lost_answers.suite import *  # noqa: F403
from tests.engines.lost_answers.suite import claimed
from tests.support.servers.postgres import Postgres
from tests.support.servers.proxy import Proxy

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


async def test_another_change_of_the_same_version_by_the_same_person_is_not_taken_for_ours(
    store: PostgresStore, unheard: Unheard
) -> None:
    job = await record(store, await submit(store))
    theirs, ours = (reprioritise(job, priority=priority, by="me", reason=None) for priority in (5, 95))
    await settle(store, theirs)

    assert await unheard(store.apply([ours], NOW)) == [Verdict.STALE]
    assert await unheard(store.apply([theirs], NOW)) == [Verdict.APPLIED]


async def test_a_settlement_is_not_called_stale_though_the_job_was_claimed_again_before_it_could_be_repeated(
    store: PostgresStore, postgres: Postgres, line: Proxy, unheard: Unheard
) -> None:
    claim = await claimed(store)
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
