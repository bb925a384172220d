"""Submits that come together share a commit, but neither an error nor a cancellation, and they keep their order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from backstay.clock import Instant
from backstay.core.records import Inserted, NewJob
from backstay.core.states import Status
from backstay.engines.coalescer import Coalescer
from backstay.errors import NotOpen, QueueFull, StoreError, StoreUnavailable
from backstay.testing.conformance.factories import NOW, new_job


class Commits:
    """An engine that writes down what each commit stored, and refuses what a test tells it to."""

    def __init__(self) -> None:
        self.stored: list[list[str]] = []
        self.times: list[Instant] = []
        self.asked = 0
        self.refused: dict[str, Exception] = {}
        self.open = asyncio.Event()
        self.open.set()
        self.begun = asyncio.Event()
        self.takes_a_turn = True

    async def insert(self, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
        self.asked += 1
        self.begun.set()
        await self.open.wait()
        if self.takes_a_turn:
            await asyncio.sleep(0)
        for job in jobs:
            if job.job_id in self.refused:
                raise self.refused[job.job_id]
        self.stored.append([job.job_id for job in jobs])
        self.times.append(now)
        return [Inserted(job.job_id, Status.PENDING) for job in jobs]


@pytest.fixture
def commits() -> Commits:
    return Commits()


def ids(answers: Sequence[Inserted]) -> list[str]:
    return [answer.job_id for answer in answers]


async def test_concurrent_submits_share_a_commit_and_each_gets_its_own_answer(commits: Commits) -> None:
    submits = Coalescer(commits.insert)
    batches = [[new_job() for _ in range(size)] for size in (1, 3, 2)]

    answers = await asyncio.gather(*(submits.insert(batch, NOW) for batch in batches))

    assert [ids(each) for each in answers] == [[job.job_id for job in batch] for batch in batches]
    assert len(commits.stored) == 1


async def test_jobs_are_stored_in_the_order_in_which_they_were_submitted(commits: Commits) -> None:
    submits = Coalescer(commits.insert, jobs_max=4)
    jobs = [new_job() for _ in range(10)]

    await asyncio.gather(*(submits.insert([job], NOW) for job in jobs))

    assert [job_id for commit in commits.stored for job_id in commit] == [job.job_id for job in jobs]
    assert [len(commit) for commit in commits.stored] == [4, 4, 2]


async def test_a_batch_larger_than_a_commit_may_be_is_not_divided(commits: Commits) -> None:
    submits = Coalescer(commits.insert, jobs_max=2)
    small, large = [new_job()], [new_job() for _ in range(5)]

    await asyncio.gather(submits.insert(small, NOW), submits.insert(large, NOW))

    assert [len(commit) for commit in commits.stored] == [1, 5]


@pytest.mark.parametrize("error", [StoreError("refused"), QueueFull("full")])
async def test_a_submit_that_is_refused_does_not_fail_its_neighbours(commits: Commits, error: Exception) -> None:
    submits = Coalescer(commits.insert)
    first, bad, last = new_job(), new_job(), new_job()
    commits.refused[bad.job_id] = error

    answers = await asyncio.gather(*(submits.insert([job], NOW) for job in (first, bad, last)), return_exceptions=True)

    assert answers[1] is error
    assert commits.stored == [[first.job_id], [last.job_id]], "each alone, in the order in which they came"


async def test_a_store_that_is_away_is_asked_once_for_all(commits: Commits) -> None:
    submits = Coalescer(commits.insert)
    jobs = [new_job(), new_job()]
    commits.refused[jobs[1].job_id] = StoreUnavailable("away")

    answers = await asyncio.gather(*(submits.insert([job], NOW) for job in jobs), return_exceptions=True)

    assert [type(answer) for answer in answers] == [StoreUnavailable, StoreUnavailable]
    assert commits.asked == 1


async def test_the_cancellation_of_one_caller_does_not_lose_the_job_of_another(commits: Commits) -> None:
    submits = Coalescer(commits.insert)
    commits.open.clear()
    leaves, stays = new_job(), new_job()
    leaving, staying = [asyncio.create_task(submits.insert([job], NOW)) for job in (leaves, stays)]
    await commits.begun.wait()

    leaving.cancel()
    commits.open.set()

    assert ids(await staying) == [stays.job_id]
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_the_latest_time_of_a_group_counts_so_that_every_job_is_due_at_once(commits: Commits) -> None:
    submits = Coalescer(commits.insert)

    await asyncio.gather(*(submits.insert([new_job()], NOW + later) for later in (0, 2, 1)))

    assert commits.times == [NOW + 2]


async def test_a_submit_that_comes_alone_waits_for_no_other(commits: Commits) -> None:
    submits = Coalescer(commits.insert, at_once=True)

    commits.takes_a_turn = False
    alone = submits.insert([new_job()], NOW)
    with pytest.raises(StopIteration):
        alone.send(None)  # done without a turn of the event loop

    assert len(commits.stored) == 1


async def test_a_second_submit_during_a_first_waits_for_a_third(commits: Commits) -> None:
    submits = Coalescer(commits.insert, at_once=True)
    commits.open.clear()
    first = asyncio.create_task(submits.insert([new_job()], NOW))
    await commits.begun.wait()
    others = [asyncio.create_task(submits.insert([new_job()], NOW)) for _ in range(2)]

    commits.open.set()
    await asyncio.gather(first, *others)

    assert sorted(map(len, commits.stored)) == [1, 2]


async def test_after_submits_that_came_together_the_next_ones_are_expected_to(commits: Commits) -> None:
    submits = Coalescer(commits.insert, at_once=True)
    for _ in range(3):
        await asyncio.gather(*(submits.insert([new_job()], NOW) for _ in range(5)))

    assert [len(commit) for commit in commits.stored] == [1, 4, 5, 5]


async def test_what_waits_is_answered_before_a_store_closes(commits: Commits) -> None:
    submits = Coalescer(commits.insert)
    tasks = [asyncio.create_task(submits.insert([new_job()], NOW)) for _ in range(3)]
    await asyncio.sleep(0)

    await submits.finish()
    await asyncio.sleep(0)

    assert all(task.done() for task in tasks)
    await submits.finish()  # with nothing to wait for


async def test_a_submit_on_another_event_loop_is_refused_and_harms_no_other(commits: Commits) -> None:
    submits = Coalescer(commits.insert)
    submits.open()
    own = asyncio.create_task(submits.insert([first := new_job()], NOW))
    await asyncio.sleep(0)
    elsewhere = asyncio.to_thread(lambda: asyncio.run(asyncio.wait_for(submits.insert([new_job()], NOW), 5)))

    with pytest.raises(NotOpen, match="opened on another event loop"):
        await elsewhere

    assert ids(await own) == [first.job_id]
    assert commits.stored == [[first.job_id]]
    await submits.finish()
