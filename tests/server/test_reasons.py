"""Explanations for a key of some queues: none of them names a job that the key may not see."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
import pytest

from backstay import Backstay, Context, Explanation, Reason
from backstay.server.auth import Principal
from backstay.server.visibility import explained
from tests.app.conftest import make_app as make_app
from tests.app.explain_stage import Stage
from tests.app.test_explain import SCENES

MINE = Principal("someone", frozenset({"read"}), queues=("mine",))


@pytest.fixture
async def stage(make_app: Callable[..., Backstay]) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        stage = Stage(make_app, stack)

        @stage.app.job("parent")
        async def parent(payload: list[dict[str, Any]], ctx: Context) -> None:
            for options in payload:
                await ctx.submit("failing", None, **options)
            await ctx.wait_for_children(trigger_rule="all_success")

        await stack.enter_async_context(stage.app)
        yield stage


def sent(found: Explanation) -> str:
    """All that a key gets to read of it."""
    return f"{found} {msgspec.json.encode(found).decode()}"


@pytest.mark.parametrize("reason", Reason)
async def test_whatever_the_reason_a_key_that_sees_none_of_the_jobs_gets_no_id(stage: Stage, reason: Reason) -> None:
    scene = await SCENES[reason](stage)
    job = await stage.app.get(scene.job_id)

    found = await explained(stage.app, MINE, job)

    assert found.reason is reason
    assert found.job_ids == ()
    assert [job_id for job_id in {scene.job_id, *scene.names} if job_id in sent(found)] == []
    assert str(found)


class Hidden(NamedTuple):
    job_id: str
    theirs: list[str]
    says: str


async def _cancelled_with_a_dependency(stage: Stage) -> Hidden:
    theirs = await stage.submit("other", delay=60)
    ours = await stage.submit("other", queue="mine", depends_on=[theirs])
    await stage.app.cancel(theirs)
    return Hidden(ours, [theirs], "because a job in another queue ended: retry that job first")


async def _failed_with_a_dependency(stage: Stage) -> Hidden:
    theirs = await stage.submit("other", delay=60)
    ours = await stage.submit("other", queue="mine", depends_on=[theirs], on_dependency_failure="fail")
    await stage.app.cancel(theirs)
    return Hidden(ours, [theirs], "because a job in another queue ended: retry that job first")


async def _scheduled_once_a_dependency_completed(stage: Stage) -> Hidden:
    theirs = await stage.submit("other")
    ours = await stage.submit("other", queue="mine", depends_on=[theirs], delay=60)
    await stage.worker()
    await stage.in_state(ours, "scheduled")
    return Hidden(ours, [theirs], "it is scheduled for 2030-01-01 12:01:00 UTC")


async def _cancelled_with_a_subtree(stage: Stage) -> Hidden:
    """By someone who cancelled the job above its parent."""
    theirs = (await stage.app.submit("parent", [])).job_id
    middle = (await stage.app.submit("other", None, parent=theirs)).job_id
    ours = (await stage.app.submit("other", None, parent=middle, queue="mine")).job_id
    await stage.app.cancel(theirs, subtree=True, by="ada")
    return Hidden(ours, [theirs, middle], "by ada with the subtree of a job in another queue")


async def _failed_with_its_children(stage: Stage) -> Hidden:
    await stage.worker(queues=["default", "mine"])
    child = {"max_attempts": 1, "queue": "default"}
    ours = (await stage.app.submit("parent", [child], queue="mine")).job_id
    await stage.in_state(ours, "failed")
    theirs = [each.job_id for each in (await stage.app.store.children(ours, None, 10)).items]
    return Hidden(ours, theirs, "because of its children: a job in another queue ended; retry")


async def _failed_with_a_child_that_failed_with_a_dependency(stage: Stage) -> Hidden:
    theirs = await stage.submit("other", delay=60)
    await stage.app.cancel(theirs)
    await stage.worker(queues=["default", "mine"])
    child = {"queue": "mine", "depends_on": [theirs], "on_dependency_failure": "fail"}
    ours = (await stage.app.submit("parent", [child], queue="mine")).job_id
    await stage.in_state(ours, "failed")
    return Hidden(ours, [theirs], "failed (a job it depends on did not complete); retry")


async def _behind_a_full_key(stage: Stage) -> Hidden:
    await stage.worker(queues=["default", "keys", "mine"])
    theirs = await stage.started("keyed", concurrency_key="gpu")
    ours = await stage.submit("keyed", queue="mine", concurrency_key="gpu")
    return Hidden(ours, [theirs], "the concurrency key gpu is at its limit of 1: a job in another queue is running")


@pytest.mark.parametrize(
    "scene",
    [
        _cancelled_with_a_dependency,
        _failed_with_a_dependency,
        _scheduled_once_a_dependency_completed,
        _cancelled_with_a_subtree,
        _failed_with_its_children,
        _failed_with_a_child_that_failed_with_a_dependency,
        _behind_a_full_key,
    ],
)
async def test_a_job_of_another_queue_is_told_of_without_its_id(
    stage: Stage, scene: Callable[[Stage], Awaitable[Hidden]]
) -> None:
    hidden = await scene(stage)

    found = await explained(stage.app, MINE, await stage.app.get(hidden.job_id))

    assert hidden.says in str(found)
    assert [job for job in found.params.jobs if job.job_id is None and job.status is not None] == []
    assert [job_id for job_id in hidden.theirs if job_id in sent(found)] == []


async def test_a_job_of_its_own_queue_is_named(stage: Stage) -> None:
    first, theirs = await stage.submit("other", queue="mine"), await stage.submit("other")
    second = await stage.submit("other", queue="mine", depends_on=[first, theirs])

    found = await explained(stage.app, MINE, await stage.app.get(second))

    assert str(found) == f"it is waiting for {first} (pending) and a job in another queue"
    assert found.job_ids == (first,)


async def test_a_key_of_all_queues_is_told_everything(stage: Stage) -> None:
    hidden = await _cancelled_with_a_subtree(stage)
    everyone = Principal("everyone", frozenset({"read"}))

    found = await explained(stage.app, everyone, await stage.app.get(hidden.job_id))

    assert found == await stage.app.explain(hidden.job_id)
    assert str(found).endswith(f"by ada with the subtree of {hidden.theirs[0]}")
    assert found.job_ids == (hidden.theirs[0],)
