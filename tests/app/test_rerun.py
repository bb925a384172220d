"""Running a tree again from one of its jobs: what comes after it runs anew, what came before is kept."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from backstay import Backoff, Backstay, Context, IllegalTransition, JobNotFound
from backstay.clock import SystemClock
from backstay.core.event_details import Rerun
from backstay.testing import drain

RAN: list[str] = []


@pytest.fixture
def app(make_app: Callable[..., Backstay]) -> Backstay:
    app = make_app()
    RAN.clear()

    @app.job("step")
    async def step(payload: str, ctx: Context) -> str:
        RAN.append(payload)
        upstream = await ctx.upstream()
        return f"{payload}{ctx.attempt}({','.join(str(job.result) for _, job in sorted(upstream.items()))})"

    @app.job("stage")
    async def stage(payload: str, ctx: Context) -> str:
        RAN.append(payload)
        await ctx.submit("step", f"{payload}-part")
        children = await ctx.wait_for_children()
        return f"{payload}:{children[0].result}"

    @app.job("flow")
    async def flow(payload: int, ctx: Context) -> Any:
        RAN.append("flow")
        first = await ctx.submit("step", "first", stage="first")
        wide = await ctx.submit("stage", "wide", stage="wide", depends_on=[first])
        last = await ctx.submit("step", "last", stage="last", depends_on=[wide])
        await ctx.submit("step", "beside", stage="beside", depends_on=[first])
        children = {each.job_id: each for each in await ctx.wait_for_children(trigger_rule="all_success")}
        return children[last.job_id].result

    return app


async def by_stage(app: Backstay, job_id: str) -> dict[str, str]:
    return {job.job_stage or job.job_type: job.job_id for job in (await app.tree(job_id)).jobs.values()}


async def test_a_job_and_what_comes_after_it_run_again_and_read_what_was_kept(app: Backstay) -> None:
    async with app:
        handle = await app.submit("flow", 1)
        await drain(app)
        assert (await handle.record()).result == "last1(wide:wide-part1())"
        names = await by_stage(app, handle.job_id)
        RAN.clear()
        await app.rerun(names["wide"], by="ann")
        await drain(app)
        job = await handle.record()
        wide = await app.get(names["wide"])
    assert job.status == "completed" and job.result == "last2(wide:wide-part2())"
    assert set(RAN) == {"wide", "wide-part", "last", "flow"}
    assert "first" not in RAN and "beside" not in RAN
    again = next(each for each in wide.history if each.event == "manual_retry")
    assert (again.by, again.reason, again.details) == ("ann", None, Rerun(names["wide"]))
    assert again.why == f"run again from {names['wide']}"


async def test_the_last_stage_alone_and_the_whole_run_again_from_their_own_place(app: Backstay) -> None:
    async with app:
        handle = await app.submit("flow", 1)
        await drain(app)
        names = await by_stage(app, handle.job_id)
        RAN.clear()
        await app.rerun(names["last"])
        await drain(app)
        assert sorted(set(RAN)) == ["flow", "last"]
        RAN.clear()
        await app.rerun(handle.job_id)
        await drain(app)
    assert sorted(set(RAN)) == ["beside", "first", "flow", "last", "wide", "wide-part"]


async def test_a_dependent_never_runs_again_before_what_it_depends_on(app: Backstay) -> None:
    async with app:
        handle = await app.submit("flow", 1)
        await drain(app)
        RAN.clear()
        await app.rerun((await by_stage(app, handle.job_id))["first"])
        await drain(app)
    order = {name: RAN.index(name) for name in set(RAN)}
    assert order["first"] < order["wide"] < order["wide-part"] < order["last"]
    assert order["first"] < order["beside"]


async def test_said_again_after_it_was_cut_off_it_goes_on(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    async with app:
        handle = await app.submit("flow", 1)
        await drain(app)
        names = await by_stage(app, handle.job_id)
        apply, calls = app.store.apply, 0

        async def cut_off(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise ConnectionError("killed here")
            return await apply(*arguments)

        monkeypatch.setattr(app.store, "apply", cut_off)
        with pytest.raises(ConnectionError):
            await app.rerun(names["first"])
        monkeypatch.undo()
        RAN.clear()
        await app.rerun(names["first"])
        await drain(app)
        assert (await handle.record()).status == "completed"
    assert sorted(set(RAN)) == ["beside", "first", "flow", "last", "wide", "wide-part"]


async def test_a_dependent_that_runs_with_the_old_input_stands_in_the_way(app: Backstay) -> None:
    async with app:
        root = await app.submit("step", "root")
        first = await app.submit("step", "first", stage="FIRST", parent=root)
        report = await app.submit("step", "report", stage="REPORT", depends_on=[first], parent=root)
        await drain(app)
        await app.retry(report.job_id)
        with pytest.raises(IllegalTransition, match=r"REPORT \(.*\) is about to run: cancel it, or wait"):
            await app.rerun(first.job_id)
        assert (await app.get(first.job_id)).status == "completed"


async def test_a_job_that_is_not_there_cannot_run_again(app: Backstay) -> None:
    async with app:
        with pytest.raises(JobNotFound):
            await app.rerun("01a1e55b-5ee1-7001-a296-56022cfba44d")


async def test_a_job_that_has_not_ended_cannot_run_again(app: Backstay) -> None:
    async with app:
        job = await app.submit("step", "one")
        with pytest.raises(IllegalTransition, match="is pending, and can be rerun once it has ended"):
            await app.rerun(job.job_id)


async def test_a_parent_that_has_read_the_old_result_stands_in_the_way(app: Backstay) -> None:
    read, go_on = asyncio.Event(), asyncio.Event()

    @app.job("reader")
    async def reader(payload: int, ctx: Context) -> str:
        await ctx.submit("step", "part")
        [child] = await ctx.wait_for_children()
        read.set()
        await go_on.wait()
        return str(child.result)

    async with app, app.worker():
        handle = await reader.submit(1)
        await read.wait()
        [child] = (await app.tree(handle.job_id)).children
        with pytest.raises(IllegalTransition, match=r"reader \(.*\) is running: cancel it, or wait"):
            await app.rerun(child.job.job_id)
        go_on.set()
        assert await handle.result(timeout=10) == "part1()"
        assert (await app.get(child.job.job_id)).result == "part1()"


async def test_a_child_that_cannot_run_again_stays_as_it_ended(app: Backstay) -> None:
    @app.job("bad", max_attempts=1)
    async def bad(payload: int) -> None:
        raise ValueError("no")

    @app.job("parent", max_attempts=1)
    async def parent(payload: str, ctx: Context) -> list[str]:
        await ctx.submit("step", "free")
        await ctx.submit("step", "bound", depends_on=[payload])
        return [each.status.value for each in await ctx.wait_for_children()]

    async with app:
        outside = await bad.submit(1)
        await drain(app)
        handle = await parent.submit(outside.job_id)
        await drain(app)
        assert (await handle.record()).result == ["completed", "cancelled"]
        RAN.clear()
        await app.rerun(handle.job_id)
        await drain(app)
        job = await handle.record()
    assert (job.status, job.result, RAN) == ("completed", ["completed", "cancelled"], ["free"])
    assert "not rerun" in str(job.logs)


async def test_the_words_of_a_retry_decide_nothing(app: Backstay) -> None:
    async with app:
        handle = await app.submit("stage", "wide")
        await drain(app)
        RAN.clear()
        for words in ("", ", version 9", ", version 9, without recorded steps"):
            RAN.clear()
            await app.retry(handle.job_id, reason=f"run again from {handle.job_id}{words}")
            await drain(app)
            assert RAN == ["wide"], "and not its children"


async def test_clocks_that_differ_do_not_decide_which_children_run_again(
    app: Backstay, make_app: Callable[..., Backstay]
) -> None:
    class Behind(SystemClock):
        def now(self) -> int:
            return super().now() - 3_600_000_000

    async with app, make_app(clock=Behind()) as elsewhere:
        handle = await app.submit("stage", "wide")
        await drain(app)
        RAN.clear()
        await elsewhere.rerun(handle.job_id)
        await drain(app)
    assert sorted(RAN) == ["wide", "wide", "wide-part"]


async def test_a_later_attempt_of_a_run_from_here_does_not_run_its_children_once_more(app: Backstay) -> None:
    fails: list[int] = []

    @app.job("parent", backoff=Backoff(base=0))
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("step", "part", at_once=True)
        if fails:
            raise ValueError(fails.pop())

    async with app:
        handle = await parent.submit(1)
        await drain(app)
        RAN.clear()
        fails += [1, 2]
        await app.rerun(handle.job_id)
        await drain(app)
        assert (await handle.record()).status == "completed"
    assert RAN == ["part"]


async def test_a_rerun_that_another_overtakes_is_told_so(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    async with app:
        handle = await app.submit("flow", 1)
        await drain(app)
        apply, others = app.store.apply, 0

        async def overtaken(transitions: Any, now: int) -> Any:
            nonlocal others
            if not others:
                others += 1
                await app.retry(handle.job_id, by="bob")
            return await apply(transitions, now)

        monkeypatch.setattr(app.store, "apply", overtaken)
        with pytest.raises(IllegalTransition, match="was just restarted by someone else"):
            await app.rerun(handle.job_id, by="ann")


async def test_a_child_that_someone_else_has_run_meanwhile_is_left_to_them_and_the_log_says_so(app: Backstay) -> None:
    async with app:
        handle = await app.submit("flow", 1)
        await drain(app)
        names = await by_stage(app, handle.job_id)
        await app.rerun(handle.job_id)
        await app.retry(names["beside"], by="bob")
        await drain(app)
        job = await handle.record()
    assert job.status == "completed"
    said = [entry["message"] for entry in job.logs["entries"]]
    assert any(f"at the same time: beside ({names['beside']})" in line for line in said), said
