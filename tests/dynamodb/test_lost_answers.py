"""DynamoDB writes, and its answer never arrives, or says that something went wrong: the caller is told what is true."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TypeVar

import pytest

from holdfast.store.conformance.factories import DAY, NOW, a_policy, completed, new_job, record, submit
from holdfast.stores.dynamodb import DynamoStore
from tests.lost_answers.suite import *  # noqa: F403
from tests.servers.dynamo_proxy import DynamoProxy
from tests.servers.dynamodb import DynamoDB

T = TypeVar("T")


class Unheard:
    """`await unheard(store.claim(…))`: the answer to the call's first write is lost."""

    def __init__(self, proxy: DynamoProxy, how: str) -> None:
        self._proxy = proxy
        self._how = how

    async def __call__(self, call: Awaitable[T]) -> T:
        before = self._proxy.unheard
        if self._how == "cut":
            self._proxy.lose()
        else:
            self._proxy.reply_500_after()
        answer = await call
        assert self._proxy.unheard == before + 1
        return answer


@pytest.fixture
def line(dynamodb: DynamoDB) -> Iterator[DynamoProxy]:
    with DynamoProxy(dynamodb.port) as proxy:
        yield proxy


@pytest.fixture(params=["cut", "500"])
def unheard(line: DynamoProxy, request: pytest.FixtureRequest) -> Unheard:
    return Unheard(line, request.param)


@pytest.fixture
async def store(dynamodb: DynamoDB, line: DynamoProxy) -> AsyncIterator[DynamoStore]:
    url = dynamodb.url(f"u_{secrets.token_hex(4)}", wake="false")
    opened = DynamoStore(url.replace(f":{dynamodb.port}", f":{line.port}"))
    await opened.open()
    yield opened
    await opened.close()


async def test_a_job_is_promoted_once(store: DynamoStore, unheard: Unheard) -> None:
    job_id = await submit(store, scheduled_for=NOW + 1)

    assert (await unheard(store.promote(NOW + 1, 10))).count == 1

    assert (await record(store, job_id)).version == 2


async def test_a_job_is_retired_once_and_counted(store: DynamoStore, unheard: Unheard) -> None:
    job_id = await completed(store)

    done = await unheard(store.retire(a_policy(0, 0, 0), NOW + DAY, 10, None))

    assert done.archived == 1
    assert (await record(store, job_id)).archived_at == NOW + DAY


@pytest.mark.parametrize("fields", [{}, {"own_id": True}], ids=["plain", "own ids"])
async def test_a_batch_that_goes_through_the_journal_is_stored_once(
    store: DynamoStore, unheard: Unheard, fields: dict[str, bool]
) -> None:
    jobs = [new_job(**fields) for _ in range(120)]

    answers = await unheard(store.insert(jobs, NOW))

    assert [(answer.job_id, answer.existing) for answer in answers] == [(job.job_id, None) for job in jobs]
    assert (await store.counts())["pending"] == 120
