"""What ten thousand children of one parent, and ten thousand dependents of one job, cost those who come after them."""

from collections.abc import Awaitable, Callable
from typing import Any

from backstay.engines.sqlite.store import SQLiteStore
from backstay.limits import RELEASE_BATCH_MAX
from backstay.testing.conformance.factories import NOW, claim_one, new_job, running, settle, submit, submit_many
from tests.engines.plans.backlog import Meter, jobs
from tests.engines.plans.test_backlog import grows

MANY = 10_000
CHILD: dict[str, Any] = {"slots": {"child": 1}}
Call = Callable[[], Awaitable[Any]]


def siblings(parent: str) -> str:
    """Children of it that have ended."""
    return jobs("e", "ended", parent_job_id=f"'{parent}'", root_job_id=f"'{parent}'")


async def test_the_end_of_a_child_does_not_look_at_its_siblings(store: SQLiteStore, meter: Meter) -> None:
    parent = await running(store)

    async def make() -> Call:
        await submit(store, job_type="child", parent_job_id=parent.job_id)
        claim = await claim_one(store, **CHILD)
        return lambda: settle(store, claim.completes())

    assert not await grows(meter, store, make, siblings(parent.job_id), MANY)


async def test_a_child_comes_without_a_look_at_its_siblings(store: SQLiteStore, meter: Meter) -> None:
    parent = await running(store)

    async def make() -> Call:
        child = new_job(job_type="child", parent_job_id=parent.job_id, own_id=True)
        return lambda: store.insert_children(parent.hold, [child], NOW)

    assert not await grows(meter, store, make, siblings(parent.job_id), MANY)


async def test_a_parent_goes_on_without_a_look_at_those_that_have_ended(store: SQLiteStore, meter: Meter) -> None:
    parent = await running(store, job_type="parent")

    async def make() -> Call:
        nonlocal parent
        child = new_job(job_type="child", parent_job_id=parent.job_id, own_id=True)
        await settle(store, parent.waits(children=(child,)))
        claim = await claim_one(store, **CHILD)

        async def end_and_go_on() -> None:
            nonlocal parent
            await settle(store, claim.completes())
            parent = await claim_one(store, parent.job_id, slots={"parent": 1})

        return end_and_go_on

    assert not await grows(meter, store, make, siblings(parent.job_id), MANY)


async def test_a_page_of_children_costs_what_it_answers_with(store: SQLiteStore, meter: Meter) -> None:
    parent = await submit(store)

    async def make() -> Call:
        return lambda: store.children(parent, "f", 10)

    assert not await grows(meter, store, make, siblings(parent), MANY)


async def test_an_end_releases_a_bounded_number_and_leaves_a_mark(store: SQLiteStore, meter: Meter) -> None:
    async def end(dependents: int) -> int:
        first = await running(store)
        await submit_many(store, dependents, depends_on=(first.job_id,))
        steps, _ = await meter.cost(lambda: settle(store, first.completes()))
        return steps

    await end(1)
    a_batch, many = await end(RELEASE_BATCH_MAX), await end(3 * RELEASE_BATCH_MAX)

    assert many < 1.1 * a_batch
