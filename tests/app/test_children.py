"""Children that a handler submits: stored with its completion or not at all, the same ones whenever it runs again."""

import asyncio
import threading
from typing import Any

import pytest

from backstay import (
    Backoff,
    Backstay,
    BatchContext,
    BlockingContext,
    ChildMismatch,
    ClaimLost,
    Context,
    InvalidOption,
    Job,
    JobFailed,
    UnknownDependency,
    limits,
)
from backstay.testing import drain
from tests.app import family_jobs
from tests.support.eventually import eventually

NOW = Backoff(base=0)


@pytest.fixture
def app(app: Backstay) -> Backstay:
    @app.job("part")
    async def part(payload: Any) -> Any:
        return payload

    return app


async def children(app: Backstay, parent_id: str) -> list[Job]:
    page = await app.store.children(parent_id, None, 1_000)
    return [Job(record) for record in page.items]


async def test_children_are_stored_with_the_completion_of_their_parent(app: Backstay) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> str:
        child = await ctx.submit("part", {"n": 1}, stage="first", tags=["t"])
        begun.set()
        await go_on.wait()
        return child.job_id

    async with app, app.worker():
        handle = await parent.submit(1, subject="19305", created_by="ann")
        await begun.wait()
        assert await children(app, handle.job_id) == []
        go_on.set()
        child_id = await handle.result(timeout=10)
        assert await app.result(child_id, timeout=10) == {"n": 1}
        child, parent_job = await app.get(child_id), await handle.record()
    assert (child.parent_job_id, child.root_job_id) == (handle.job_id, handle.job_id)
    assert (child.job_stage, child.tags, child.subject, child.created_by) == ("first", ["t"], "19305", "ann")
    assert parent_job.child_count == 1


@pytest.mark.parametrize("ending", ["raises", "snoozes"])
async def test_a_run_that_comes_to_nothing_leaves_no_child(app: Backstay, ending: str) -> None:
    from backstay import Snooze

    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", 1)
        raise ValueError("no") if ending == "raises" else Snooze(3600)

    async with app:
        handle = await parent.submit(1)
        await drain(app)
        assert await children(app, handle.job_id) == []


async def test_a_second_attempt_makes_the_same_children_and_none_twice(app: Backstay) -> None:
    @app.job("parent", max_attempts=3, backoff=NOW)
    async def parent(payload: int, ctx: Context) -> list[str]:
        made = [await ctx.submit("part", n % 2, at_once=True) for n in range(4)]
        made.append(await ctx.submit("part", ctx.attempt, key="mine", at_once=True))
        if ctx.attempt < 3:
            raise ValueError("again")
        return [each.job_id for each in made]

    async with app, app.worker():
        handle = await parent.submit(1)
        made = await handle.result(timeout=10)
        stored = await children(app, handle.job_id)
        logs = (await handle.record()).logs["entries"]
    assert len(set(made)) == 5 and sorted(made) == [each.job_id for each in stored]
    assert sorted(each.payload for each in stored) == [0, 0, 1, 1, 1]
    assert "a different payload" in str(logs)


async def test_a_child_at_once_is_there_before_its_parent_ends_and_stays_when_that_fails(app: Backstay) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        child = await ctx.submit("part", 1, at_once=True)
        assert (await app.get(child.job_id)).parent_job_id == ctx.job_id
        raise ValueError("no")

    async with app:
        handle = await parent.submit(1)
        await drain(app)
        assert [each.status for each in await children(app, handle.job_id)] == ["completed"]


async def test_a_run_that_lost_its_claim_stores_no_child(app: Backstay) -> None:
    @app.job("parent")
    def parent(payload: int, ctx: BlockingContext) -> None:
        asyncio.run_coroutine_threadsafe(app.cancel(ctx.job_id), loop).result()
        try:
            ctx.submit("part", 1, at_once=True)
        except ClaimLost:
            refused.set()

    loop, refused = asyncio.get_running_loop(), threading.Event()
    async with app, app.worker():
        handle = await parent.submit(1)
        assert await asyncio.to_thread(refused.wait, 10)
        assert await children(app, handle.job_id) == []


async def test_children_may_depend_on_earlier_ones(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> str:
        first = await ctx.submit("part", 1)
        second = await ctx.submit("part", 2, depends_on=[first], trigger_rule="all_done")
        return second.job_id

    async with app:
        handle = await parent.submit(1)
        await drain(app)
        last = await app.get((await handle.record()).result)
        assert last.status == "completed" and len(last.dependencies) == 1


async def test_a_child_that_cannot_be_stored_fails_the_attempt_with_the_reason(app: Backstay) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", 1, depends_on=["01a1e55b-5ee1-7001-a296-56022cfba44d"])

    async with app, app.worker():
        with pytest.raises(JobFailed, match="01a1e55b-5ee1-7001-a296-56022cfba44d"):
            await (await parent.submit(1)).result(timeout=10)


async def test_more_children_than_one_commit_takes_are_staged_and_all_are_there_in_the_end(app: Backstay) -> None:
    count = limits.CHILDREN_PART_MAX + limits.CHILDREN_INLINE_MAX + 7

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> int:
        for n in range(count):
            await ctx.submit("part", n)
        return count

    async with app, app.worker(concurrency=50):
        handle = await parent.submit(1)
        assert await handle.result(timeout=30) == count

        async def all_ended() -> bool:
            job = await handle.record()
            return job.child_count == count and job.open_child_count == 0

        await eventually(all_ended, 30)
        page = await app.store.children(handle.job_id, None, 1_000)
    assert sorted(int(record.payload) for record in page.items) == list(range(count))


async def test_children_that_many_tasks_of_a_handler_submit_are_all_stored(app: Backstay) -> None:
    count = 2 * limits.CHILDREN_PART_MAX + 50

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> int:
        made = await asyncio.gather(*(ctx.submit("part", n) for n in range(count)))
        await asyncio.gather(*(ctx.submit("part", n, depends_on=[made[n]], key=f"{n}") for n in range(10)))
        return len({each.job_id for each in made})

    async with app:
        handle = await parent.submit(1)
        async with app.worker(job_types=["parent"]):
            assert await handle.result(timeout=30) == count

            async def all_stored() -> bool:
                return (await handle.record()).child_count == count + 10

            await eventually(all_stored, 30)


async def test_a_staged_child_with_an_unknown_dependency_is_refused_before_anything_is_stored(app: Backstay) -> None:
    errors: list[type[BaseException]] = []

    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", -1, depends_on=["01a1e55b-5ee1-7001-a296-56022cfba44d"])
        try:
            for n in range(limits.CHILDREN_PART_MAX):
                await ctx.submit("part", n)
        except UnknownDependency as error:
            errors.append(type(error))
            raise

    async with app:
        handle = await parent.submit(1)
        await drain(app)
        assert await children(app, handle.job_id) == []
    assert errors == [UnknownDependency]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"job_id": "01a1e55b-5ee1-7001-a296-56022cfba44d"}, "a child's id follows from its key: give key="),
    ({"parent": "01a1e55b-5ee1-7001-a296-56022cfba44d"}, "leave parent out"),
    ({"dedup_key": "x"}, "add at_once=True"),
    ({"key": ""}, "key=''"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
async def test_what_a_child_cannot_have_is_refused_with_what_to_write(
    app: Backstay, options: dict[str, Any], message: str
) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        with pytest.raises(InvalidOption, match=message):
            await ctx.submit("part", 1, **options)

    async with app, app.worker():
        await (await parent.submit(1)).result(timeout=10)


async def test_a_key_of_another_type_is_a_mistake(app: Backstay) -> None:
    @app.job("other")
    async def other(payload: int) -> None: ...

    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", 1, key="merge")
        await ctx.submit("other", 1, key="merge")

    async with app, app.worker():
        with pytest.raises(JobFailed, match="\"merge\" of this job is of type 'part' and is now submitted as 'other'"):
            await (await parent.submit(1)).result(timeout=10)


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_key_with_two_payloads_in_one_run_is_a_mistake(app: Backstay, at_once: bool) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", 1, key="merge", at_once=at_once)
        with pytest.raises(ChildMismatch, match='"merge" with a different payload: give it another key'):
            await ctx.submit("part", 2, key="merge", at_once=at_once)

    async with app, app.worker():
        await (await parent.submit(1)).result(timeout=10)


async def test_a_key_is_one_child_however_it_is_submitted(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> list[bool]:
        made = [await ctx.submit("part", 1, key="one", at_once=at_once) for at_once in (True, True, False)]
        made += [await ctx.submit("part", 1, key="two", at_once=at_once) for at_once in (False, True)]
        assert len({each.job_id for each in made}) == 2
        return [each.deduplicated for each in made]

    async with app:
        handle = await parent.submit(1)
        await drain(app)
        assert (await handle.record()).result == [False, True, True, False, True]
        assert len(await children(app, handle.job_id)) == 2


async def test_the_result_of_a_child_is_not_waited_for_in_a_slot(app: Backstay) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        (await ctx.submit("part", 1)).result()

    async with app, app.worker():
        with pytest.raises(JobFailed, match=r"wait for it with ctx.wait_for_children\(\)"):
            await (await parent.submit(1)).result(timeout=10)


async def test_a_thread_submits_children_in_the_same_way(app: Backstay) -> None:
    @app.job("parent")
    def parent(payload: int, ctx: BlockingContext) -> list[str]:
        return [ctx.submit("part", 1).job_id, ctx.submit("part", 2, at_once=True).job_id]

    async with app, app.worker():
        made = await (await parent.submit(1)).result(timeout=10)
        assert [await app.result(each, timeout=10) for each in made] == [1, 2]


async def test_a_job_of_a_batch_has_children_of_its_own(app: Backstay) -> None:
    @app.batch_job("embed", max_size=2, max_wait=5, max_attempts=2, backoff=NOW)
    async def embed(payloads: list[int], ctx: BatchContext) -> list[Any]:
        for item, payload in zip(ctx, payloads, strict=True):
            await item.submit("part", payload)
            with pytest.raises(InvalidOption, match="cannot wait"):
                await item.wait_for_children()
        return [ValueError("two") if each == 2 and len(payloads) == 2 else each for each in payloads]

    async with app, app.worker():
        handles = await app.submit_many([("embed", 1), ("embed", 2)])
        assert [await each.result(timeout=10) for each in handles] == [1, 2]
        made = [[child.payload for child in await children(app, each.job_id)] for each in handles]
    assert made == [[1], [2]]


async def test_a_job_reads_what_it_depends_on_by_stage_or_type(app: Backstay) -> None:
    @app.job("report")
    async def report(payload: int, ctx: Context) -> dict[str, Any]:
        return {name: job.result for name, job in (await ctx.upstream()).items()}

    async with app:
        pca = await app.submit("part", 7, stage="PCA")
        other = await app.submit("part", 8)
        handle = await report.submit(1, depends_on=[pca, other])
        await drain(app)
        assert (await handle.record()).result == {"PCA": 7, "part": 8}


async def test_two_of_one_name_upstream_fail_the_job_for_good(app: Backstay) -> None:
    @app.job("report", max_attempts=5, backoff=NOW)
    async def report(payload: int, ctx: Context) -> None:
        await ctx.upstream()

    async with app:
        handle = await report.submit(1, depends_on=[await app.submit("part", n) for n in range(2)])
        await drain(app)
        job = await handle.record()
    assert (job.status, job.attempt) == ("failed", 1)
    assert "two dependencies called 'part': give each its own stage=" in (job.last_error or "")


async def test_a_parent_in_a_child_process_submits_waits_and_reads(make_app: Any) -> None:
    app = family_jobs.bind(make_app)
    async with app, app.worker():
        handle = await app.submit("parent", 1)
        joined = await app.submit("parent_async", 4)
        assert await handle.result(timeout=30) == {"before": 2, "results": [10, 20]}
        assert await joined.result(timeout=30) == [40]
        with pytest.raises(JobFailed, match="InvalidOption"):
            await (await app.submit("mistaken", 1)).result(timeout=30)


async def test_more_children_than_one_commit_brings_all_run_although_nobody_polls(app: Backstay) -> None:
    count = 2 * limits.RELEASE_BATCH_MAX + 1

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> int:
        for n in range(count):
            await ctx.submit("part", n)
        await ctx.wait_for_children()
        return sum([child.result async for child in ctx.children])

    async with app, app.worker(poll_interval=600, lease=1200):
        assert await (await parent.submit(1)).result(timeout=60) == sum(range(count))


async def test_more_dependents_than_one_commit_releases_all_run_although_nobody_polls(app: Backstay) -> None:
    count, ran, all_ran, go_on = 2 * limits.RELEASE_BATCH_MAX + 1, [0], asyncio.Event(), asyncio.Event()

    @app.job("first")
    async def first(payload: None) -> None:
        await go_on.wait()

    @app.job("dependent")
    async def dependent(payload: int) -> None:
        ran[0] += 1
        if ran[0] == count:
            all_ran.set()

    async with app, app.worker(poll_interval=600, lease=1200):
        awaited = await first.submit(None)
        await app.submit_many([("dependent", n, {"depends_on": [awaited]}) for n in range(count)])
        go_on.set()
        async with asyncio.timeout(60):
            await all_ran.wait()
