"""Scenes of trees: children submitted in every way, waiting parents, trigger rules, and reruns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from backstay.core import lifecycle
from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.lifecycle import Discarded, WaitingForChildren
from backstay.core.records import NewJob, Staged, Verdict
from tests.campaigns.stage import Claim, Stage

ALL_DONE = WaitingForChildren(Awaits(TriggerRule.ALL_DONE, "fail"))


def children(stage: Stage, parent: Claim, count: int, **fields: Any) -> tuple[NewJob, ...]:
    return tuple(stage.new("child", own_id=True, parent_job_id=parent.job.job_id, **fields) for _ in range(count))


async def parents(stage: Stage, **fields: Any) -> list[Claim]:
    await stage.submit("parent", **fields)
    return await stage.claim(stage.a, "worker-a", "parent")


async def wait(stage: Stage, claim: Claim, **said: Any) -> Verdict | None:
    return await stage.settle(claim, ALL_DONE, **said)


async def go_on(stage: Stage) -> None:
    """Run and complete every parent that can resume."""
    for claim in await stage.claim(stage.b, "worker-b", "parent"):
        await stage.complete(claim)


async def a_parent_waits_for_each_of_its_children(stage: Stage) -> None:
    for parent in await parents(stage):
        await wait(stage, parent, children=children(stage, parent, 4))
        await go_on(stage)
        for child in await stage.claim(stage.b, "worker-b", "child"):
            for _ in range(2):  # the answer was lost
                await stage.complete(child)
            await go_on(stage)


async def children_end_badly_while_their_parent_waits(stage: Stage) -> None:
    for parent in await parents(stage):
        await wait(stage, parent, children=children(stage, parent, 3))
        first, second, third = await stage.claim(stage.b, "worker-b", "child") or [None] * 3
        if first is None or second is None or third is None:
            continue
        await stage.cancel(await stage.record(first.job.job_id))
        await stage.settle(second, Discarded(stage.error(second)))
        await go_on(stage)
        await stage.complete(third)
        await go_on(stage)


async def a_run_that_fails_had_staged_children(stage: Stage) -> None:
    for parent in await parents(stage):
        await stage.quietly(stage.a.stage(parent.hold, 0, children(stage, parent, 3), stage.now))
        await stage.fail(parent)
        await stage.sweep()
        stage.pass_time()
        await stage.sweep()
        await go_on(stage)


async def a_worker_dies_while_it_unpacks(stage: Stage) -> None:
    """Some of the children are stored and end; the parent must still wait for the others."""
    for nth in (1, 2):
        for parent in await parents(stage):
            for part in range(2):
                await stage.quietly(stage.a.stage(parent.hold, part, children(stage, parent, 2), stage.now))
            await stage.crash(f"unpack.uncommitted=raise@{nth}", wait(stage, parent, staged=Staged(2, 4)))
            for _ in range(2):
                for child in await stage.claim(stage.b, "worker-b", "child"):
                    await stage.complete(child)
                await go_on(stage)
                await stage.sweep()
            for child in await stage.claim(stage.b, "worker-b", "child"):
                await stage.complete(child)
            await wait(stage, parent, staged=Staged(2, 4))  # a caller without an answer repeats the call
            await go_on(stage)


async def a_stalled_run_makes_children_late(stage: Stage) -> None:
    for parent in await parents(stage):
        stage.pass_time()
        await stage.sweep()
        successors = await stage.claim(stage.b, "worker-b", "parent")
        await stage.quietly(stage.a.insert_children(parent.hold, children(stage, parent, 1), stage.now))
        await stage.quietly(stage.a.stage(parent.hold, 0, children(stage, parent, 1), stage.now))
        await stage.settle(parent, lifecycle.Completed("1"), staged=Staged(1, 1))
        for successor in successors:
            await stage.complete(successor)


async def each_rule_meets_each_end(stage: Stage) -> None:
    for rule in TriggerRule:
        for end in ("completes", "fails", "is cancelled"):
            first = await stage.submit("ruling")
            await stage.submit("ruled", depends_on=(first,), trigger_rule=rule.value)
            for claim in await stage.claim(stage.a, "worker-a", "ruling"):
                match end:
                    case "completes":
                        await stage.complete(claim)
                    case "fails":
                        await stage.settle(claim, Discarded(stage.error(claim)))
                    case _:
                        await stage.cancel(await stage.record(first))
            for claim in await stage.claim(stage.a, "worker-a", "ruled"):
                await stage.complete(claim)


async def a_dependency_ends_late(stage: Stage) -> None:
    """A dependency ends after one success has started the job, which by then waits for its children."""
    first, late = await stage.submit("early"), await stage.submit("late")
    await stage.submit("parent", depends_on=(first, late), trigger_rule=TriggerRule.ONE_SUCCESS.value)
    for claim in await stage.claim(stage.a, "worker-a", "early"):
        await stage.complete(claim)
    for parent in await stage.claim(stage.a, "worker-a", "parent"):
        await wait(stage, parent, children=children(stage, parent, 1))
        for claim in await stage.claim(stage.a, "worker-a", "late"):
            await stage.complete(claim)
        await go_on(stage)
        for child in await stage.claim(stage.b, "worker-b", "child"):
            await stage.complete(child)
        await go_on(stage)


async def a_line_of_jobs_is_run_again(stage: Stage) -> None:
    first = await stage.submit("line", max_attempts=1)
    second = await stage.submit("line", depends_on=(first,))
    for claim in await stage.claim(stage.a, "worker-a", "line"):
        await stage.fail(claim)
    for job_id in (first, second):
        seen = await stage.record(job_id)
        if seen is not None and seen.status in lifecycle.TERMINAL:
            retry = lifecycle.manual_retry(seen, now=stage.now, by="editor", reason=None, rewait=True)
            await stage.quietly(stage.b.apply([retry], stage.now))
    for _ in range(2):
        for claim in await stage.claim(stage.a, "worker-a", "line"):
            await stage.complete(claim)


TREES: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    a_parent_waits_for_each_of_its_children,
    children_end_badly_while_their_parent_waits,
    a_run_that_fails_had_staged_children,
    a_worker_dies_while_it_unpacks,
    a_stalled_run_makes_children_late,
    each_rule_meets_each_end,
    a_dependency_ends_late,
    a_line_of_jobs_is_run_again,
)
