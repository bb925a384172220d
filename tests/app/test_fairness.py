"""Turns from a user's side: a large backlog of one key does not starve another's."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from backstay import Backstay, InvalidOption
from backstay.core.records import ClaimRequest
from backstay.limits import FAIR_KEYS_MAX
from backstay.worker import slots


def with_work(app: Backstay) -> list[str]:
    """A handler that notes whose jobs run, in order."""
    ran: list[str] = []

    @app.job("work")
    async def work(payload: str) -> None:
        ran.append(payload)

    return ran


async def run_all(app: Backstay) -> None:
    async with app.worker(concurrency=1):
        for job in await app.find(status="pending", limit=1000):
            await app.result(job.job_id, timeout=30)


async def test_two_tenants_take_turns_however_many_jobs_one_has(app: Backstay) -> None:
    ran = with_work(app)
    async with app:
        await app.submit_many([("work", "large", {"fairness_key": "large"}) for _ in range(200)])
        await app.submit_many([("work", "small", {"fairness_key": "small"}) for _ in range(10)])
        await run_all(app)

    assert ran[:20] in (["large", "small"] * 10, ["small", "large"] * 10)
    assert ran[20:] == ["large"] * 190


async def test_turns_go_by_weight(app: Backstay) -> None:
    ran = with_work(app)
    async with app:
        await app.submit_many([("work", "one", {"fairness_key": "one"}) for _ in range(100)])
        await app.submit_many([("work", "three", {"fairness_key": "three", "fairness_weight": 3}) for _ in range(100)])
        await run_all(app)

    for end in range(4, 130):
        assert abs(Counter(ran[:end])["three"] - end * 3 / 4) <= 1.5, ran[:end]


async def test_jobs_without_a_key_take_turns_as_one(app: Backstay) -> None:
    ran = with_work(app)
    async with app:
        await app.submit_many([("work", "plain") for _ in range(50)])
        await app.submit_many([("work", key, {"fairness_key": key}) for key in "ab" for _ in range(10)])
        await run_all(app)

    assert Counter(ran[:30]) == {"plain": 10, "a": 10, "b": 10}


async def test_a_higher_priority_comes_before_any_turn(app: Backstay) -> None:
    ran = with_work(app)
    async with app:
        await app.submit_many([("work", "a", {"fairness_key": "a"}) for _ in range(5)])
        await app.submit_many([("work", "b high", {"fairness_key": "b", "priority": "high"}) for _ in range(5)])
        await run_all(app)

    assert ran == ["b high"] * 5 + ["a"] * 5


async def test_who_comes_while_another_is_being_served_is_next(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "PREFETCH_MAX", 0)  # so that the worker claims nothing ahead
    ran: list[str] = []
    turn = asyncio.Semaphore(0)
    begun = asyncio.Semaphore(0)

    @app.job("work")
    async def work(payload: str) -> None:
        ran.append(payload)
        begun.release()
        await turn.acquire()

    async with app:
        await app.submit_many([("work", "large", {"fairness_key": "large"}) for _ in range(50)])
        async with app.worker(concurrency=1, grace=0):
            for _ in range(5):
                await begun.acquire()
                turn.release()
            await begun.acquire()
            await work.submit("small", fairness_key="small")
            for _ in range(2):
                turn.release()
                await begun.acquire()
    assert "small" in ran[6:8], ran


async def test_of_more_keys_than_one_claim_compares_none_is_left_out(app: Backstay) -> None:
    with_work(app)
    keys = FAIR_KEYS_MAX + 200
    served: Counter[str] = Counter()
    async with app:
        for _ in range(3):
            await app.submit_many([("work", f"{n:05}", {"fairness_key": f"{n:05}"}) for n in range(keys)])
        for n in range(2 * keys // 100):  # two thirds of all jobs
            request = ClaimRequest("w", "1", ("default",), {"work": 100}, 100, 60_000_000, f"token-{n}")
            served.update(job.payload for job in await app.store.claim(request, app.clock.now()))
    assert sum(served.values()) == 2 * keys
    assert len(served) == keys


async def test_keys_and_weights_that_cannot_be_meant_are_refused(
    app: Backstay, make_app: Callable[..., Backstay]
) -> None:
    with_work(app)
    async with app:
        for options in (
            {"fairness_key": "a", "fairness_weight": 0},
            {"fairness_key": "a", "fairness_weight": 10**6},
            {"fairness_key": "a", "fairness_weight": 1.5},
            {"fairness_weight": 2},
            {"fairness_key": "x" * 1000},
        ):
            with pytest.raises(InvalidOption, match="fairness"):
                await app.submit("work", "a", **options)  # type: ignore[arg-type]
