"""Claims over many queues and types: the order of all of them, each job in its turn, and none left out."""

import gc
import itertools
import random
import secrets
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from backstay.core.port import Store
from backstay.core.records import NewJob, QueueChange
from backstay.engines import lanes
from backstay.engines.lanes import Asked, Lane, Pair, Row
from backstay.engines.postgres.store import PostgresStore
from backstay.engines.sqlite.store import SQLiteStore
from backstay.limits import CLAIM_LANES_MAX
from backstay.testing.conformance.factories import NOW, claim_ids, new_job, request
from tests.support.servers.postgres import Postgres

QUEUES = [f"q{number}" for number in range(40)]
TYPES = [f"t{number}" for number in range(30)]
ALL: dict[str, Any] = {"queues": tuple(QUEUES), "slots": dict.fromkeys(TYPES, 100)}


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: SQLiteStore | PostgresStore
    if request.param == "sqlite":
        opened = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        opened = PostgresStore(server.url(schema=f"lanes_{secrets.token_hex(4)}", clock="caller"))
    await opened.open()
    yield opened
    await opened.close()


def some_jobs(pairs: Iterable[Pair], seed: int, **said: Any) -> list[NewJob]:
    chance = random.Random(seed)
    return [
        new_job(
            queue=queue,
            job_type=job_type,
            priority=chance.choice((10, 50, 90)),
            scheduled_for=NOW - chance.randrange(100),
            **said,
        )
        for queue, job_type in pairs
        for _ in range(chance.choice((1, 1, 3)))
    ]


def in_claim_order(jobs: Iterable[NewJob]) -> list[str]:
    return [job.job_id for job in sorted(jobs, key=lambda job: (-job.priority, job.scheduled_for, job.job_id))]


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "with keys"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_jobs_of_many_lanes_are_claimed_in_the_order_of_all_of_them(store: Store, seed: int, keyed: bool) -> None:
    pairs = random.Random(seed).sample(list(itertools.product(QUEUES, TYPES)), 120)
    jobs = some_jobs(pairs, seed)
    if keyed:
        jobs += some_jobs(pairs[::3], seed + 10, concurrency_key="k", concurrency_limit=1_000)
    await store.insert(jobs, NOW)

    taken: list[str] = []
    while some := await claim_ids(store, limit=25, **ALL):
        taken += some

    assert taken == in_claim_order(jobs)


async def test_a_type_gets_no_more_than_its_slots_over_all_its_queues(store: Store) -> None:
    await store.insert(some_jobs(itertools.product(QUEUES, TYPES[:3]), 1), NOW)
    slots = {TYPES[0]: 2, TYPES[1]: 1, **dict.fromkeys(TYPES[5:], 9)}

    taken = await store.claim(request(queues=tuple(QUEUES), slots=slots, limit=50), NOW)

    assert len([job for job in taken if job.job_type == TYPES[0]]) <= 2
    assert len([job for job in taken if job.job_type == TYPES[1]]) <= 1
    assert {job.job_type for job in taken} <= set(TYPES[:2])
    assert taken


async def test_paused_and_foreign_queues_and_types_are_left_alone(store: Store) -> None:
    jobs = some_jobs([("q0", "t0"), ("q1", "t0"), ("q00", "t1"), ("q1", "t00"), ("q5", "t1")], 1)
    await store.insert(jobs, NOW)
    await store.change_queue("q1", QueueChange(paused=True), NOW)

    taken: list[str] = []
    while some := await claim_ids(store, limit=25, **ALL):
        taken += some

    assert taken == in_claim_order(job for job in jobs if (job.queue, job.job_type) in {("q0", "t0"), ("q5", "t1")})


async def test_of_more_lanes_than_one_claim_compares_none_is_left_out(store: Store) -> None:
    jobs = [
        new_job(queue=queue, job_type=job_type, fairness_key="a" if number % 50 == 0 else None)
        for number, (queue, job_type) in enumerate(itertools.product(QUEUES, TYPES[:20]))
    ]
    assert len(jobs) > CLAIM_LANES_MAX
    await store.insert(jobs, NOW)

    taken: list[str] = []
    while some := await claim_ids(store, limit=100, **ALL):
        taken += some

    assert sorted(taken) == sorted(job.job_id for job in jobs)


async def test_jobs_that_nobody_here_can_read_do_not_hide_those_behind_them(store: Store) -> None:
    unreadable = [
        new_job(queue=queue, job_type=job_type, payload_version=2, priority=90)
        for queue, job_type in itertools.product(QUEUES, TYPES[:15])
    ]
    assert len(unreadable) > CLAIM_LANES_MAX
    job = new_job(queue=QUEUES[20], job_type=TYPES[20])
    await store.insert([*unreadable, job], NOW)

    assert await claim_ids(store, limit=1, versions=dict.fromkeys(TYPES, 1), **ALL) == [job.job_id]


async def test_what_a_claim_compares_is_no_work_for_the_garbage_collector(store: Store) -> None:
    await store.insert([new_job(queue=queue, job_type=job_type) for queue in QUEUES for job_type in TYPES], NOW)
    collected: list[int] = []

    def note(phase: str, said: dict[str, int]) -> None:
        collected.append(said["generation"])

    gc.callbacks.append(note)
    for _ in range(30):
        assert len(await claim_ids(store, limit=1, **ALL)) == 1
    gc.callbacks.remove(note)

    assert len(collected) < 2 * 30  # it begins and ends; there were several collections for each claim


# The walk itself, over lanes in a list


async def pages_of(present: set[Pair], asked: Asked) -> list[list[Lane]]:
    async def ask(at: Pair) -> list[Row]:
        found = sorted(pair for pair in present if pair >= at and pair[0] in asked.queues and pair[1] in asked.types)
        return [Row("plain", *pair, 50, 0, "id") for pair in found[:CLAIM_LANES_MAX]]

    return [page async for page in lanes.pages(asked, ask)]


@pytest.mark.parametrize("count", [0, 1, 30, 499, 500, 501, 1_200])
async def test_the_pages_of_a_walk_hold_each_lane_once(count: int) -> None:
    asked = Asked(sorted(QUEUES), sorted(TYPES))
    present = set(random.Random(count).sample(list(itertools.product(QUEUES, TYPES)), count))

    pages = await pages_of(present, asked)

    found = [(lane.queue, lane.job_type) for page in pages for lane in page]
    assert sorted(found) == sorted(present)
    if count < CLAIM_LANES_MAX:
        assert len(pages) == 1
