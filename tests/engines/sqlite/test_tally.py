"""How many jobs there are is told without looking at each of them."""

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from backstay.core.records import Query
from backstay.core.states import Status
from backstay.engines.sqlite import connection, read
from backstay.engines.sqlite.store import SQLiteStore
from backstay.testing.conformance.factories import NOW, new_job


@pytest.mark.parametrize("question", [read.counts, read.depths])
async def test_counting_takes_as_many_steps_for_many_jobs_as_for_few(
    tmp_path: Path, question: Callable[[apsw.Connection], object]
) -> None:
    steps = []
    for jobs in (300, 3_000):
        store = SQLiteStore(f"sqlite:///{tmp_path}/{jobs}.db")
        await store.open()
        for due in (NOW, NOW + 1):
            await store.insert([new_job(scheduled_for=due) for _ in range(jobs)], NOW)
        await store.close()
        steps.append(_steps(tmp_path / f"{jobs}.db", question))

    assert steps[1] <= 1.1 * steps[0]


def _steps(path: Path, question: Callable[[apsw.Connection], object]) -> int:
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    opened = connection.connect(path)
    opened.set_progress_handler(count, 1)
    assert question(opened)
    opened.close()
    return steps


async def test_a_search_in_claim_order_takes_as_many_steps_for_many_jobs_as_for_few(tmp_path: Path) -> None:
    query = Query(status=Status.PENDING, order="priority", limit=10)
    steps = []
    for jobs in (300, 3_000):
        store = SQLiteStore(f"sqlite:///{tmp_path}/{jobs}.db")
        await store.open()
        await store.insert([new_job(priority=n % 3, job_type=f"type-{n % 5}") for n in range(jobs)], NOW)
        await store.close()
        steps.append(_steps(tmp_path / f"{jobs}.db", lambda opened: read.find(opened, query)))

    assert steps[1] <= 1.1 * steps[0]
