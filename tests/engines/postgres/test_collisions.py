"""Many at once on the same jobs: each write is applied once, and nobody waits in a circle."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator

import pytest

from backstay.core.records import Transition, Verdict
from backstay.core.states import TERMINAL
from backstay.engines.postgres import connection
from backstay.engines.postgres.store import PostgresStore
from backstay.testing.conformance.factories import NOW, Claim, new_job, record, request, submit_many
from tests.support.servers.postgres import Postgres

JOBS = 40


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres.url(schema=f"collide_{secrets.token_hex(3)}", clock="caller", pool="12"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def collisions(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Deadlocks and the like, which a verb would quietly get over by running again."""
    seen: list[BaseException] = []
    told = connection.is_collision

    def is_collision(error: BaseException) -> bool:
        if told(error):
            seen.append(error)
        return told(error)

    monkeypatch.setattr(connection, "is_collision", is_collision)
    return seen


async def _claim_all(store: PostgresStore) -> list[Claim]:
    asked = request(limit=JOBS)
    return [Claim(job, asked.token) for job in await store.claim(asked, NOW)]


def _slowly(claim: Claim) -> Transition:
    """A completion with more to it than a result: it leaves the common path."""
    return claim.completes(log_location="/log")


@pytest.mark.parametrize("how", ["plain", "slow", "both"])
async def test_overlapping_batches_in_any_order_apply_each_once_and_never_deadlock(
    store: PostgresStore, collisions: list[BaseException], how: str
) -> None:
    await submit_many(store, JOBS)
    claims = await _claim_all(store)
    draw = random.Random(7)

    def batch(i: int) -> list[Transition]:
        some = draw.sample(claims, JOBS * 3 // 4)
        slow = how == "slow" or (how == "both" and i % 2 == 0)
        return [_slowly(claim) if slow else claim.completes() for claim in some]

    verdicts = await asyncio.gather(*(store.apply(batch(i), NOW) for i in range(24)))

    assert {each for answer in verdicts for each in answer} == {Verdict.APPLIED}
    for claim in claims:
        job = await record(store, claim.job_id)
        assert [event.target in TERMINAL for event in job.history] == [False, False, True]
    assert collisions == []


async def test_keyed_claims_and_settlements_at_once_never_deadlock(
    store: PostgresStore, collisions: list[BaseException]
) -> None:
    keys = [f"k{i}" for i in range(6)]
    await store.insert(
        [new_job(concurrency_key=keys[i % 6], concurrency_limit=3, priority=i % 7) for i in range(120)], NOW
    )
    done: set[str] = set()

    async def work() -> None:
        idle = 0
        while idle < 3:
            asked = request(limit=4)
            claims = [Claim(job, asked.token) for job in await store.claim(asked, NOW)]
            idle = 0 if claims else idle + 1
            verdicts = await store.apply([_slowly(claim) for claim in claims], NOW) if claims else []
            assert set(verdicts) <= {Verdict.APPLIED}
            done.update(claim.job_id for claim in claims)

    async def submit() -> None:
        for i in range(30):
            mixed = random.Random(i).sample(keys, 4)
            await store.insert([new_job(concurrency_key=key, concurrency_limit=3) for key in mixed], NOW)

    await asyncio.gather(submit(), submit(), *(work() for _ in range(6)))
    await work()  # what came after the last of them had left

    assert len(done) == 120 + 2 * 30 * 4
    assert collisions == []


async def test_dependents_that_are_submitted_while_their_keyed_parents_end_never_deadlock(
    store: PostgresStore, collisions: list[BaseException]
) -> None:
    await store.insert([new_job(concurrency_key=f"k{i % 3}", concurrency_limit=JOBS) for i in range(JOBS)], NOW)
    claims = await _claim_all(store)
    assert len(claims) == JOBS
    ids = [claim.job_id for claim in claims]
    draw = random.Random(11)

    async def depend() -> None:
        for _ in range(10):
            await store.insert(
                [
                    new_job(concurrency_key=f"k{draw.randrange(3)}", concurrency_limit=JOBS),
                    new_job(job_type="after", depends_on=tuple(draw.sample(ids, 5))),
                    new_job(concurrency_key=f"k{draw.randrange(3)}", concurrency_limit=JOBS),
                ],
                NOW,
            )

    async def end() -> None:
        for start in range(0, JOBS, 4):
            await store.apply([claim.completes() for claim in claims[start : start + 4]], NOW)

    await asyncio.gather(depend(), depend(), depend(), end())

    counts = await store.counts()
    assert (counts["completed"], counts["waiting"], counts["pending"]) == (JOBS, 0, 90)
    assert collisions == []
