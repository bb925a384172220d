"""Running again with or without the answers that `ctx.once` has recorded."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from backstay import Backoff, Backstay, Context, IllegalTransition
from backstay.sync import Backstay as BlockingBackstay
from backstay.testing import drain

MADE: Counter[str] = Counter()
WITHOUT = "without recorded steps"


@pytest.fixture
def app(make_app: Callable[..., Backstay]) -> Backstay:
    MADE.clear()
    app = make_app()

    async def once(ctx: Context, name: str) -> int:
        def make() -> int:
            MADE[name] += 1
            return MADE[name]

        return await ctx.once(name, make)

    @app.job("plain", max_attempts=2, backoff=Backoff(base=0))
    async def plain(payload: str, ctx: Context) -> int:
        answer = await once(ctx, payload)
        if payload.startswith("bad"):
            raise ValueError(payload)
        return answer

    @app.job("parent", max_attempts=1)
    async def parent(payload: list[str], ctx: Context) -> Any:
        own = await once(ctx, "parent")
        for each in payload:
            await ctx.submit("plain", each)
        children = await ctx.wait_for_children()
        return [own, *(child.result for child in children)]

    return app


def reasons(job: Any) -> list[str | None]:
    return [each.why for each in job.history if each.event == "manual_retry"]


async def test_a_retry_uses_recorded_answers_unless_it_forgets_them(app: Backstay) -> None:
    async with app:
        handle = await app.submit("plain", "charge")
        await drain(app)
        await app.retry(handle.job_id)
        await drain(app)
        assert (await handle.record()).result == 1

        await app.retry(handle.job_id, forget_steps=True, reason="wrong account", by="ada")
        await drain(app)

        job = await handle.record()
        assert (job.result, MADE["charge"]) == (2, 2)
        assert reasons(job) == [None, f"{WITHOUT}: wrong account"]
        [entry] = [each for each in await app.audit_trail() if each.by == "ada"]
        assert entry.after is not None and entry.after["forget_steps"] is True
        await app.retry(handle.job_id)
        await drain(app)
        assert (await handle.record()).result == 2  # recorded since


async def test_attempts_after_it_share_their_answers_as_always(app: Backstay) -> None:
    async with app:
        handle = await app.submit("plain", "bad charge")
        await drain(app)
        assert ((await handle.record()).attempt, MADE["bad charge"]) == (2, 1)

        await app.retry(handle.job_id, forget_steps=True)
        await drain(app)

        assert ((await handle.record()).attempt, MADE["bad charge"]) == (4, 2)


async def test_a_retry_that_is_refused_forgets_nothing(app: Backstay) -> None:
    async with app:
        handle = await app.submit("plain", "charge")
        await drain(app)
        await app.retry(handle.job_id)
        with pytest.raises(IllegalTransition):
            await app.retry(handle.job_id, forget_steps=True)
        await drain(app)
    assert MADE["charge"] == 1


async def test_in_a_tree_those_that_are_retried_forget_theirs_and_others_do_not(app: Backstay) -> None:
    async with app:
        handle = await app.submit("parent", ["good", "bad"])
        await drain(app)
        await app.retry(handle.job_id, subtree=True, forget_steps=True)
        await drain(app)
    assert MADE == {"parent": 1, "good": 1, "bad": 2}  # the parent had completed


@pytest.mark.parametrize("forget", [True, False])
async def test_a_rerun_passes_it_on_to_the_jobs_below(app: Backstay, forget: bool) -> None:
    async with app:
        handle = await app.submit("parent", ["one", "two"])
        await drain(app)
        await app.rerun(handle.job_id, forget_steps=forget, reason="new data")
        await drain(app)
        job = await handle.record()
        tree = await app.tree(handle.job_id)
    assert job.result == ([2, 2, 2] if forget else [1, 1, 1])
    assert dict.fromkeys(("parent", "one", "two"), 2 if forget else 1) == MADE
    said = [reason for each in tree.jobs.values() for reason in reasons(each)]
    assert len(said) == 3 and all((WITHOUT in str(reason)) is forget for reason in said)


async def test_a_rerun_leaves_the_steps_of_its_parents(app: Backstay) -> None:
    async with app:
        handle = await app.submit("parent", ["one", "two"])
        await drain(app)
        [child] = await app.find(job_type="plain", limit=1)
        await app.rerun(child.job_id, forget_steps=True)
        await drain(app)
        assert (await handle.record()).status == "completed"
    assert MADE["parent"] == 1
    assert sorted((MADE["one"], MADE["two"])) == [1, 2]


async def test_many_and_dead_letters_may_start_without_them(app: Backstay) -> None:
    async with app:
        handles = await app.submit_many([("plain", name) for name in ("one", "two", "bad")])
        await drain(app)
        await app.retry_many([handles[0].job_id])
        await app.retry_many([handles[1].job_id], forget_steps=True)
        assert await app.retry_dead() == 1
        await drain(app)
        assert MADE == {"one": 1, "two": 2, "bad": 1}
        assert await app.retry_dead(forget_steps=True) == 1
        await drain(app)
        assert MADE["bad"] == 2
        trail = [each.after for each in await app.audit_trail() if each.action == "dead.retry"]
    assert trail == [{"retried": 1, "forget_steps": True}, {"retried": 1}]


def test_the_blocking_face_does_the_same(app: Backstay) -> None:
    blocking = BlockingBackstay(app.url)
    made: list[int] = []

    @blocking.job("count")
    def count(payload: int, ctx: Any) -> int:
        return int(ctx.once("count", lambda: made.append(1) or len(made)))

    with blocking, blocking.worker():
        handle = count.submit(1)
        assert handle.result(timeout=30) == 1
        blocking.retry(handle.job_id, forget_steps=True)
        assert handle.result(timeout=30) == 2
        blocking.rerun(handle.job_id, forget_steps=True)
        assert handle.result(timeout=30) == 3
        blocking.retry_many([handle.job_id], forget_steps=True)
        assert handle.result(timeout=30) == 4
        blocking.retry(handle.job_id)
        assert handle.result(timeout=30) == 4
