"""DynamoDB writes, and its answer never arrives, or says that something went wrong: the caller is told what is true."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TypeVar

import pytest

from backstay.core.dependencies import Brood, TriggerRule
from backstay.core.lifecycle import manual_retry
from backstay.core.records import Staged, Verdict
from backstay.core.states import Status
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing.conformance.factories import (
    DAY,
    NOW,
    a_policy,
    completed,
    new_job,
    quiet,
    record,
    retry_by_hand,
    running,
    settle,
    submit,
)
from backstay.testing.conformance.test_children import brood
from backstay.testing.conformance.test_results import POINTS, batch, read
from backstay.testing.conformance.test_waiting_parents import waiting
from tests.engines.lost_answers.suite import *  # noqa: F403
from tests.support.servers.dynamo_proxy import DynamoProxy
from tests.support.servers.dynamodb import DynamoDB

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


# Trees


async def test_a_wait_with_children_comes_once(store: DynamoStore, unheard: Unheard) -> None:
    parent = await running(store)
    jobs = tuple(new_job(parent_job_id=parent.job_id, own_id=True) for _ in range(3))

    assert await unheard(store.apply([parent.waits(children=jobs)], NOW)) == [Verdict.APPLIED]

    assert await brood(store, parent.job_id) == Brood(3, 3)
    assert (await record(store, parent.job_id)).version == 3


@pytest.mark.parametrize("end", [Status.COMPLETED, Status.FAILED])
async def test_the_last_child_is_counted_once_and_its_parent_goes_on_once(
    store: DynamoStore, unheard: Unheard, end: Status
) -> None:
    parent, [child] = await waiting(store, rule=TriggerRule.ALL_SUCCESS)

    assert await unheard(store.apply([child.ends_as(end)], NOW)) == [Verdict.APPLIED]
    await quiet(store)

    job = await record(store, parent.job_id)
    assert (job.status, job.version) == (Status.PENDING if end is Status.COMPLETED else Status.FAILED, 4)
    assert await brood(store, parent.job_id) == Brood(1, 0, int(end is Status.FAILED))


async def test_staged_children_come_once(store: DynamoStore, unheard: Unheard) -> None:
    parent = await running(store)
    jobs = [new_job(parent_job_id=parent.job_id, own_id=True) for _ in range(40)]

    assert await unheard(store.stage(parent.hold, 0, jobs, NOW)) is Verdict.APPLIED
    assert await unheard(store.apply([parent.completes(staged=Staged(1, 40))], NOW)) == [Verdict.APPLIED]

    assert await brood(store, parent.job_id) == Brood(40, 40)


async def test_children_at_once_are_stored_once_and_not_called_existing(store: DynamoStore, unheard: Unheard) -> None:
    parent = await running(store)
    jobs = [new_job(parent_job_id=parent.job_id, own_id=True) for _ in range(2)]

    answers = await unheard(store.insert_children(parent.hold, jobs, NOW))

    assert answers is not None
    assert [answer.existing for answer in answers] == [None, None]
    assert await brood(store, parent.job_id) == Brood(2, 2)


async def test_one_that_waits_again_is_told_so(store: DynamoStore, unheard: Unheard) -> None:
    first = await running(store)
    second = await submit(store, depends_on=(first.job_id,))
    await settle(store, first.ends_as(Status.FAILED))
    await retry_by_hand(store, first.job_id)
    again = manual_retry(await record(store, second), now=NOW, by=None, reason=None, rewait=True)

    assert await unheard(store.apply([again], NOW)) == [Verdict.APPLIED]

    assert (await record(store, second)).status is Status.WAITING


# Result tables


async def test_rows_are_put_once(store: DynamoStore, unheard: Unheard) -> None:
    assert await unheard(store.declare([POINTS])) == ["points"]
    claim = await running(store)
    for part in range(2):  # the first names the table, too
        rows = batch(claim, POINTS, (part, 0.5), part=part)
        assert await unheard(store.put_rows([rows], NOW)) == [Verdict.APPLIED]

    await settle(store, claim.completes())

    assert await read(store, claim.job_id, POINTS) == [(0, 0.5), (1, 0.5)]
