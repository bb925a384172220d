"""Cancelling and retrying a job with all that it has submitted."""

from collections.abc import Callable
from typing import Any

import pytest

from backstay import Backstay, Context, IllegalTransition, JobNotFound, VersionConflict
from backstay.core.event_details import Subtree
from backstay.testing import drain

BAD: set[str] = set()


@pytest.fixture
def app(make_app: Callable[..., Backstay]) -> Backstay:
    app = make_app()
    BAD.clear()

    @app.job("leaf", max_attempts=1)
    async def leaf(payload: str) -> str:
        if payload in BAD:
            raise ValueError(payload)
        return payload

    @app.job("parent", max_attempts=1)
    async def parent(payload: dict[str, Any], ctx: Context) -> list[str]:
        for name, below in payload.items():
            if isinstance(below, dict):
                await ctx.submit("parent", below, key=name, stage=name)
            else:
                delay = 3600 if below == "later" else 0
                await ctx.submit("leaf", name, key=name, stage=name, delay=delay)
        return [each.job_stage or "" for each in await ctx.wait_for_children(trigger_rule="all_success")]

    return app


async def stages(app: Backstay, job_id: str) -> dict[str, str]:
    tree = await app.tree(job_id)
    return {job.job_stage or "root": job.status.value for job in tree.jobs.values()}


async def test_a_tree_is_loaded_from_its_top(app: Backstay) -> None:
    async with app:
        handle = await app.submit("parent", {"a": {"a1": "", "a2": "later"}, "b": ""})
        await drain(app)
        tree = await app.tree(handle.job_id)
    assert tree.complete and tree.job.job_id == handle.job_id
    assert sorted(each.job.job_stage or "" for each in tree.children) == ["a", "b"]
    assert sorted(tree.jobs) == sorted(each.job.job_id for each in tree)
    assert len(tree.jobs) == 5
    with pytest.raises(JobNotFound):
        async with app:
            await app.tree("01a1e55b-5ee1-7001-a296-56022cfba44d")


async def test_a_tree_beyond_what_is_loaded_says_so(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.ops.tree.TREE_JOBS_MAX", 4)
    async with app:
        handle = await app.submit("parent", {"a": {"a1": "", "a2": ""}, "b": "", "c": ""})
        await drain(app)
        tree = await app.tree(handle.job_id)
    assert not tree.complete and len(tree.jobs) == 4


async def test_cancelling_a_subtree_ends_what_is_active_below_and_nothing_else(app: Backstay) -> None:
    async with app:
        handle = await app.submit("parent", {"a": {"a1": "", "a2": "later"}, "b": "later", "c": ""})
        await drain(app)
        job = await app.cancel(handle.job_id, subtree=True, by="ann")
        found = await stages(app, handle.job_id)
        deepest = next(each for each in (await app.tree(handle.job_id)).jobs.values() if each.job_stage == "a2")
    assert job.status == "cancelled"
    assert found == {
        "root": "cancelled", "a": "cancelled", "a1": "completed", "a2": "cancelled", "b": "cancelled", "c": "completed",
    }  # fmt: skip
    assert (deepest.history[-1].by, deepest.history[-1].details) == ("ann", Subtree(handle.job_id))


async def test_cancelling_the_subtree_of_an_ended_job_ends_what_is_left_below(app: Backstay) -> None:
    async with app:
        handle = await app.submit("parent", {"a": "later"})
        await drain(app)
        await app.cancel(handle.job_id)
        assert (await stages(app, handle.job_id))["a"] == "scheduled"
        await app.cancel(handle.job_id, subtree=True)
        await app.cancel(handle.job_id, subtree=True)
        assert (await stages(app, handle.job_id)) == {"root": "cancelled", "a": "cancelled"}
        with pytest.raises(VersionConflict):
            await app.cancel(handle.job_id, subtree=True, expected_version=1)


async def test_retrying_a_subtree_runs_what_failed_and_keeps_what_completed(app: Backstay) -> None:
    BAD.update({"a2"})
    async with app:
        handle = await app.submit("parent", {"a": {"a1": "", "a2": ""}, "b": ""})
        await drain(app)
        assert set((await stages(app, handle.job_id)).items()) >= {
            ("root", "failed"),
            ("a", "failed"),
            ("a2", "failed"),
        }
        BAD.clear()
        await app.retry(handle.job_id, subtree=True)
        await drain(app)
        assert set((await stages(app, handle.job_id)).values()) == {"completed"}
        attempts = {job.job_stage or "root": job.attempt for job in (await app.tree(handle.job_id)).jobs.values()}
    assert attempts["a1"] == attempts["b"] == 1 and attempts["a2"] == 2


async def test_siblings_that_depend_on_one_another_are_retried_together(app: Backstay) -> None:
    @app.job("line", max_attempts=1)
    async def line(payload: int, ctx: Context) -> list[str]:
        before = None
        for n in range(payload):
            before = await ctx.submit("leaf", str(n), depends_on=[before] if before else [], stage=str(n))
        return sorted(each.status for each in await ctx.wait_for_children(trigger_rule="all_success"))

    BAD.add("0")
    async with app:
        handle = await app.submit("line", 4)
        await drain(app)
        assert sorted((await stages(app, handle.job_id)).values()) == ["cancelled"] * 3 + ["failed"] * 2
        BAD.clear()
        await app.retry(handle.job_id, subtree=True)
        await drain(app)
        assert set((await stages(app, handle.job_id)).values()) == {"completed"}


async def test_a_subtree_in_which_nothing_went_wrong_has_nothing_to_retry(app: Backstay) -> None:
    async with app:
        handle = await app.submit("parent", {"a": ""})
        await drain(app)
        with pytest.raises(IllegalTransition, match="no job in the tree of"):
            await app.retry(handle.job_id, subtree=True)


async def test_what_depends_on_a_failure_elsewhere_is_named(app: Backstay) -> None:
    BAD.add("outside")
    async with app:
        outside = await app.submit("leaf", "outside")
        parent = await app.submit("leaf", "parent")
        await app.submit("leaf", "inside", parent=parent, depends_on=[outside])
        await drain(app)
        with pytest.raises(
            IllegalTransition, match=f"depends on {outside.job_id}, outside this tree, which did not complete"
        ):
            await app.retry(parent.job_id, subtree=True)
