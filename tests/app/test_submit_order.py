"""What is submitted together may name one another in any order; what could never start is refused."""

import pytest

from backstay import Backstay, DependencyCycle, InvalidOption, UnknownDependency, ids

A, B, C, D = (ids.new_id(1_000_000 * n) for n in range(1, 5))


@pytest.fixture
def app(app: Backstay) -> Backstay:
    @app.job("work")
    async def work(payload: str) -> str:
        return payload

    return app


async def test_jobs_of_one_batch_may_depend_on_later_ones_and_answers_stay_in_order(app: Backstay) -> None:
    async with app:
        handles = await app.submit_many(
            [
                ("work", "last", {"depends_on": [B, C]}),
                ("work", "second", {"job_id": B, "depends_on": [C]}),
                ("work", "child", {"parent": C}),
                ("work", "first", {"job_id": C}),
            ]
        )
        jobs = [await each.record() for each in handles]
        async with app.worker():
            assert [await each.result(timeout=10) for each in handles] == ["last", "second", "child", "first"]
    assert [job.payload for job in jobs] == ["last", "second", "child", "first"]
    assert [job.status for job in jobs] == ["waiting", "waiting", "pending", "pending"]
    assert jobs[2].root_job_id == C


async def test_jobs_that_wait_for_one_another_are_refused_by_name_and_none_is_stored(app: Backstay) -> None:
    ring = [(A, [D]), (B, [A]), (C, []), (D, [B])]
    async with app:
        with pytest.raises(DependencyCycle, match="jobs 0 → 3 → 1 → 0 of 4 wait for one another: nothing was stored"):
            await app.submit_many(
                [("work", "x", {"job_id": each, "depends_on": needs}) for each, needs in ring]  # type: ignore[typeddict-item]
            )
        assert await app.find() == []


async def test_a_job_that_depends_on_itself_or_on_its_parent_is_refused(app: Backstay) -> None:
    async with app:
        with pytest.raises(DependencyCycle, match=f"job {A} depends on itself"):
            await app.submit("work", "x", job_id=A, depends_on=[A])
        parent = await app.submit("work", "x")
        with pytest.raises(InvalidOption, match="depends_on names the parent"):
            await app.submit("work", "x", parent=parent, depends_on=[parent])
        with pytest.raises(UnknownDependency):
            await app.submit("work", "x", depends_on=[B])


async def test_a_rule_is_one_of_four_and_needs_something_to_depend_on(app: Backstay) -> None:
    async with app:
        first = await app.submit("work", "x")
        known = "use all_success, all_done, one_success, one_failed or none_failed"
        with pytest.raises(InvalidOption, match=f"trigger_rule='any': {known}"):
            await app.submit("work", "x", depends_on=[first], trigger_rule="any")
        with pytest.raises(InvalidOption, match="trigger_rule='all_done' needs depends_on"):
            await app.submit("work", "x", trigger_rule="all_done")
