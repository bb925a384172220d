"""Parents that wait for their children: without a slot, and entered again when the last has ended."""

import asyncio
import contextlib
from typing import Any

import apsw
import pytest

from backstay import (
    Backoff,
    Backstay,
    BlockingContext,
    ConfigurationError,
    Context,
    InvalidOption,
    JobCancelled,
    JobFailed,
)
from backstay.testing import drain
from tests.support.eventually import eventually

NOW = Backoff(base=0)


@pytest.fixture
def app(app: Backstay) -> Backstay:
    @app.job("part", max_attempts=1)
    async def part(payload: int) -> int:
        if payload < 0:
            raise ValueError("bad part")
        return payload * 10

    return app


async def test_a_parent_is_entered_again_when_its_children_have_ended_and_holds_no_slot_meanwhile(
    app: Backstay,
) -> None:
    entries: list[list[Any]] = []

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> list[int]:
        entries.append([each.status for each in ctx.children])
        for n in range(3):
            await ctx.submit("part", n)
        children = await ctx.wait_for_children()
        return sorted(each.result for each in children)

    async with app, app.worker(concurrency=1):
        handle = await parent.submit(1)
        assert await handle.result(timeout=10) == [0, 10, 20]
        job = await handle.record()
    assert entries == [[], ["completed"] * 3]
    assert (job.attempt, job.failures, job.child_count) == (2, 0, 3)
    assert [each.event for each in job.history if each.event in ("wait_for_children", "release")] == [
        "wait_for_children",
        "release",
    ]


async def test_a_waiting_parent_says_what_it_waits_for(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", 1, delay=3600)
        await ctx.submit("part", 2)
        await ctx.wait_for_children()

    async with app:
        handle = await parent.submit(1)
        await drain(app)
        job = await handle.record()
        assert (job.status, job.waits_for, job.child_count, job.open_child_count) == ("waiting", "children", 2, 1)
        assert job.progress == 0.5
        assert [each.progress for each in await app.find(job_type="parent")] == [0.5]
        assert "1 of its 2 children" in str(await app.explain(handle.job_id))


async def test_a_parent_that_reports_0_after_its_children_have_ended_is_at_0_and_not_at_100_percent(
    app: Backstay,
) -> None:
    seen: list[float] = []

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", 1)
        await ctx.progress(0.0, "splitting")
        await ctx.wait_for_children()
        await ctx.progress(0.0, "merging")
        seen.append((await app.get(ctx.job_id)).progress)

    async with app:
        handle = await parent.submit(1)
        await drain(app)
        assert (await handle.record()).status == "completed"
    assert seen == [0.0]


async def test_a_parent_may_wait_in_several_phases(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> list[int]:
        first = [await ctx.submit("part", n, key=f"map-{n}") for n in range(3)]
        done = {each.job_id: each for each in await ctx.wait_for_children()}
        await ctx.submit("part", sum(done[each.job_id].result for each in first), key="reduce")
        return sorted(each.result for each in await ctx.wait_for_children())

    async with app, app.worker():
        assert await (await parent.submit(1)).result(timeout=10) == [0, 10, 20, 300]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_each_wait_gives_the_children_that_were_submitted_before_it_in_their_order(
    app: Backstay, kind: str
) -> None:
    if kind == "async":

        @app.job("parent")
        async def parent(payload: int, ctx: Context) -> list[list[int]]:
            for n in (3, 1, 2):
                await ctx.submit("part", n)
            one = await ctx.wait_for_children()
            for each in one:
                await ctx.submit("part", each.result + 1)
            two = await ctx.wait_for_children()
            return [[each.result for each in one], [each.result for each in two]]

    else:

        @app.job("parent")
        def threaded(payload: int, ctx: BlockingContext) -> list[list[int]]:
            for n in (3, 1, 2):
                ctx.submit("part", n)
            one = ctx.wait_for_children()
            for each in one:
                ctx.submit("part", each.result + 1)
            two = ctx.wait_for_children()
            return [[each.result for each in one], [each.result for each in two.all()]]

    async with app, app.worker():
        handle = await app.submit("parent", 1)
        assert await handle.result(timeout=10) == [[30, 10, 20], [30, 10, 20, 310, 110, 210]]
        job = await handle.record()
    assert (job.attempt, job.child_count) == (3, 6)


async def test_a_bad_child_of_a_later_phase_is_judged_by_the_later_wait(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> list[str]:
        await ctx.submit("part", 1)
        await ctx.wait_for_children(trigger_rule="all_success")
        await ctx.submit("part", -1)
        return [each.status.value for each in await ctx.wait_for_children()]

    async with app, app.worker():
        assert await (await parent.submit(1)).result(timeout=10) == ["completed", "failed"]


async def test_a_wait_in_a_task_group_is_a_wait(app: Backstay) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> list[int]:
        await ctx.submit("part", 1)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(ctx.wait_for_children())
        return [each.result for each in waiting.result()]

    async with app, app.worker():
        assert await (await parent.submit(1)).result(timeout=10) == [10]


async def test_an_error_beside_a_wait_in_a_task_group_fails_the_attempt(app: Backstay) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        async def breaks() -> None:
            raise ValueError("no")

        await ctx.submit("part", 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(breaks())
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await ctx.wait_for_children()

    async with app, app.worker():
        with pytest.raises(JobFailed, match="ExceptionGroup"):
            await (await parent.submit(1)).result(timeout=10)


async def test_without_children_to_wait_for_it_goes_on_at_once(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> int:
        return len(await ctx.wait_for_children())

    async with app, app.worker():
        handle = await parent.submit(1)
        assert await handle.result(timeout=10) == 0
        assert (await handle.record()).attempt == 1


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_phase_without_children_stays_empty_when_the_next_phase_has_some(app: Backstay, kind: str) -> None:
    if kind == "async":

        @app.job("parent", max_attempts=1)
        async def parent(payload: list[int], ctx: Context) -> list[list[int | None]]:
            for n in payload:
                await ctx.submit("part", n)
            one = await ctx.wait_for_children(trigger_rule="all_success")
            for n in (-1, 2):
                await ctx.submit("part", n)
            two = await ctx.wait_for_children()
            return [[each.result async for each in one], [each.result for each in two]]

    else:

        @app.job("parent", max_attempts=1)
        def threaded(payload: list[int], ctx: BlockingContext) -> list[list[int | None]]:
            for n in payload:
                ctx.submit("part", n)
            one = ctx.wait_for_children(trigger_rule="all_success")
            for n in (-1, 2):
                ctx.submit("part", n)
            two = ctx.wait_for_children()
            return [[each.result for each in one.all()], [each.result for each in two]]

    async with app, app.worker():
        handle = await app.submit("parent", [])
        assert await handle.result(timeout=30) == [[], [None, 20]]
        assert (await handle.record()).attempt == 2
        await app.retry(handle.job_id)  # its children are there from the beginning
        assert await handle.result(timeout=30) == [[], [None, 20]]


async def test_two_phases_without_children_and_a_third_with_some(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> list[int]:
        one = await ctx.wait_for_children()
        two = await ctx.wait_for_children()
        await ctx.submit("part", 1)
        three = await ctx.wait_for_children()
        return [len(one), len(two), len(three)]

    async with app, app.worker():
        assert await (await parent.submit(1)).result(timeout=30) == [0, 0, 1]


async def test_children_that_only_a_later_attempt_finds_are_waited_for(app: Backstay) -> None:
    found: list[int] = []

    @app.job("parent", backoff=NOW)
    async def parent(payload: int, ctx: Context) -> list[int]:
        if not ctx.children:
            for n in found:
                await ctx.submit("part", n)
        children = await ctx.wait_for_children()
        if not found:
            found.extend((1, 2))
            raise ConnectionError("not there yet")
        return sorted(each.result for each in children)

    async with app, app.worker():
        assert await (await parent.submit(1)).result(timeout=30) == [10, 20]


async def test_a_fan_out_of_zero_runs_the_join_at_once_and_its_phases_are_its_own(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.wait_for_children()

    @parent.join
    async def collect(payload: int, ctx: Context) -> list[int]:
        before = len(ctx.children)
        none = await ctx.wait_for_children(join="collect")
        await ctx.submit("part", 1)
        some = await ctx.wait_for_children(join="collect")
        return [before, len(none), len(some)]

    async with app, app.worker():
        assert await (await parent.submit(1)).result(timeout=30) == [1, 0, 1]


async def test_a_step_may_have_the_name_of_one_that_the_worker_records_for_itself(app: Backstay) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> int:
        mine = await ctx.once("wait 1, for none", lambda: 1)
        return mine + len(await ctx.wait_for_children())

    async with app, app.worker():
        assert await (await parent.submit(1)).result(timeout=30) == 1


@pytest.mark.parametrize(
    ("rule", "on_failure", "ends"),
    [
        ("all_done", "fail", "completed"),
        ("all_success", "fail", "failed"),
        ("all_success", "cancel", "cancelled"),
        ("none_failed", "fail", "failed"),
    ],
)
async def test_a_bad_child_decides_by_the_rule(app: Backstay, rule: str, on_failure: str, ends: str) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> list[str]:
        for n in (1, -1):
            await ctx.submit("part", n)
        children = await ctx.wait_for_children(trigger_rule=rule, on_child_failure=on_failure)
        return sorted(each.status for each in children)

    async with app:
        handle = await parent.submit(1)
        await drain(app)
        job = await handle.record()
    assert job.status == ends
    if ends == "completed":
        assert job.result == ["completed", "failed"]
    if ends == "failed":
        assert "ChildFailed" in (job.last_error or "")


async def test_a_join_is_entered_instead_of_the_handler(app: Backstay) -> None:
    entries: list[str] = []

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> None:
        entries.append("handler")
        for n in range(payload):
            await ctx.submit("part", n)
        await ctx.wait_for_children()

    @parent.join
    async def merge(payload: int, ctx: Context) -> int:
        entries.append("merge")
        return sum(each.result for each in ctx.children)

    async with app, app.worker():
        assert await (await parent.submit(4)).result(timeout=10) == 60
    assert entries == ["handler", "merge"]


async def test_a_join_is_chosen_by_name_or_function_and_must_exist(app: Backstay) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: str, ctx: Context) -> None:
        await ctx.submit("part", 1)
        await ctx.wait_for_children(join={"name": "one", "function": two, "unknown": "three", "none": None}[payload])

    @parent.join("one")
    async def first(payload: str, ctx: Context) -> str:
        return "first"

    @parent.join
    async def two(payload: str) -> str:
        return "second"

    with pytest.raises(ConfigurationError, match="must be an `async def`"):

        @parent.join
        def three(payload: str) -> None: ...

    async with app, app.worker():
        assert await (await parent.submit("name")).result(timeout=10) == "first"
        assert await (await parent.submit("function")).result(timeout=10) == "second"
        unnamed = await parent.submit("none")
        with pytest.raises(JobFailed, match="has the joins one, two: name one of them"):
            await unnamed.result(timeout=30)
        with pytest.raises(JobFailed, match="has no join 'three': register it"):
            await (await parent.submit("unknown")).result(timeout=10)


async def test_older_code_without_the_join_fails_the_attempt_until_newer_code_takes_it(app: Backstay) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", 1)
        await ctx.wait_for_children()

    @parent.join
    async def merge(payload: int) -> str:
        del parent.joins["merge"]
        raise ValueError("a deploy came between")

    async with app, app.worker():
        handle = await parent.submit(1, max_attempts=2)
        app.handlers["parent"].backoff = NOW
        with pytest.raises(JobFailed, match="has no join 'merge'"):
            await handle.result(timeout=10)


async def test_a_handlers_except_clause_does_not_swallow_the_wait(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> int:
        await ctx.submit("part", 1)
        try:
            return len(await ctx.wait_for_children())
        except Exception:
            return -1

    async with app, app.worker():
        assert await (await parent.submit(1)).result(timeout=10) == 1


async def test_rows_and_statements_belong_after_the_wait(app: Backstay) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", 1)
        async with ctx.transaction() as tx:
            tx.execute("CREATE TABLE never (n)")
        await ctx.wait_for_children()

    async with app, app.worker():
        with pytest.raises(JobFailed, match=r"put them after ctx.wait_for_children\(\)"):
            await (await parent.submit(1)).result(timeout=10)
        with apsw.Connection(str(app.store.path)) as file:  # type: ignore[attr-defined]
            assert list(file.execute("SELECT name FROM sqlite_schema WHERE name = 'never'")) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trigger_rule": "one_success"}, "use all_done, all_success or none_failed"),
        ({"on_child_failure": "ignore"}, "use fail or cancel"),
    ],
)
async def test_a_rule_that_a_parent_cannot_wait_by_is_refused(app: Backstay, options: Any, message: str) -> None:
    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        with pytest.raises(InvalidOption, match=message):
            await ctx.wait_for_children(**options)

    async with app, app.worker():
        await (await parent.submit(1)).result(timeout=10)


async def test_a_parent_whose_every_entry_makes_new_children_is_stopped_and_told_why(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.core.lifecycle.WAITS_MAX", 3)

    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", ctx.attempt)
        await ctx.wait_for_children()

    async with app:
        handle = await parent.submit(1)
        await drain(app)
        assert "WaitedTooOften" in ((await handle.record()).last_error or "")


async def test_many_ended_children_beyond_those_loaded_are_not_waited_for_again(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.worker.channels.CHILDREN_LOADED_MAX", 5)

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> int:
        for n in range(120):
            await ctx.submit("part", n)
        return sum([1 async for _ in await ctx.wait_for_children()])

    async with app, app.worker(concurrency=20):
        handle = await parent.submit(1)
        assert await handle.result(timeout=30) == 120
        assert (await handle.record()).attempt == 2


async def test_more_children_than_are_read_ahead_are_never_taken_for_all(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.worker.channels.CHILDREN_LOADED_MAX", 5)

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> list[int]:
        for n in range(12):
            await ctx.submit("part", n)
        children = await ctx.wait_for_children()
        for some in (children, ctx.children):
            assert some and len(some) == 12 and some[4].job_id
            for part in (lambda some=some: list(some), lambda some=some: some[:6], lambda some=some: some[5]):
                with pytest.raises(InvalidOption, match=r"12 children, and 5 are loaded: .*async for"):
                    part()
        assert sorted([each.result async for each in ctx.children]) == [10 * n for n in range(12)]
        return [each.result async for each in children]

    async with app, app.worker():
        assert await (await parent.submit(1)).result(timeout=10) == [10 * n for n in range(12)]


async def test_a_cancelled_parent_stays_so_and_its_children_go_on(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("part", 1, delay=0.3)
        await ctx.wait_for_children()

    async with app, app.worker():
        handle = await parent.submit(1)

        async def waits() -> bool:
            return (await handle.record()).status == "waiting"

        await eventually(waits)
        await app.cancel(handle.job_id)
        with pytest.raises(JobCancelled):
            await handle.result(timeout=10)
        [child] = (await app.store.children(handle.job_id, None, 10)).items
        assert await app.result(child.job_id, timeout=10) == 10


async def test_a_thread_waits_in_the_same_way(app: Backstay) -> None:
    @app.job("parent")
    def parent(payload: int, ctx: BlockingContext) -> list[int]:
        for n in range(3):
            ctx.submit("part", n)
        return sorted(each.result for each in ctx.wait_for_children().all())

    async with app, app.worker():
        assert await (await parent.submit(1)).result(timeout=10) == [0, 10, 20]


async def test_a_join_goes_on_even_if_the_children_have_ended_before_the_wait(make_app: Any) -> None:
    app = make_app()

    @app.job("quick")
    async def quick(payload: int) -> int:
        return payload

    @app.job("parent")
    async def parent(payload: None, ctx: Context) -> None:
        child = await ctx.submit(quick, 7, at_once=True)
        await app.result(child.job_id, timeout=20)
        await ctx.wait_for_children()

    @parent.join
    async def joined(payload: None, ctx: Context) -> list[int]:
        return [child.result for child in await ctx.wait_for_children()]

    async with app, app.worker():
        assert await (await parent.submit(None)).result(timeout=20) == [7]
