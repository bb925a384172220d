"""Scenes: situations in which queues have failed, and a random walk through all of them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

from backstay.clock import MICROS
from backstay.core import lifecycle
from backstay.core.lifecycle import Discarded, GivenBack, Outcome, Snoozed
from backstay.core.port import Store
from backstay.core.records import FOREVER, ExpiredClaim, JobRecord
from tests.campaigns.scenes.operations import Operator
from tests.campaigns.stage import LEASE, Claim, Stage


async def a_stalled_worker_finishes_late(stage: Stage) -> None:
    await stage.submit("stall")
    for late in (stage.complete, stage.fail):
        for claim in await stage.claim(stage.a, "worker-a", "stall"):
            stage.pass_time()
            await stage.sweep()
            successors = await stage.claim(stage.b, "worker-b", "stall")
            await stage.extend(claim)
            await stage.note(claim)
            await late(claim)
            for successor in successors:
                await stage.fail(successor) if late == stage.complete else await stage.complete(successor)
        stage.pass_time()
        await stage.sweep()


async def a_stalled_worker_finishes_after_its_successor(stage: Stage) -> None:
    for late in (stage.complete, stage.fail):
        await stage.submit("late")
        for claim in await stage.claim(stage.a, "worker-a", "late"):
            stage.pass_time()
            await stage.sweep()
            for successor in await stage.claim(stage.b, "worker-b", "late"):
                await stage.complete(successor)
            await late(claim)
            await stage.extend(claim)


async def a_rescuer_is_slower_than_an_extension(stage: Stage) -> None:
    await stage.submit("alive")
    for claim in await stage.claim(stage.a, "worker-a", "alive"):
        stage.pass_time()
        seen = await stage.expired()
        await stage.extend(claim)
        await stage.rescue(seen)
        await stage.complete(claim)


async def a_rescuer_is_slower_than_another(stage: Stage) -> None:
    await stage.submit("rescued")
    await stage.claim(stage.a, "worker-a", "rescued")
    stage.pass_time()
    seen = await stage.expired(stage.a)
    await stage.sweep()
    successors = await stage.claim(stage.b, "worker-b", "rescued")
    await stage.rescue(seen, stage.a)
    for successor in successors:
        await stage.complete(successor)


async def a_cancel_races_with_a_completion(stage: Stage) -> None:
    first = await stage.submit("cancel")
    for claim in await stage.claim(stage.a, "worker-a", "cancel"):
        seen = await stage.record(first)
        await stage.complete(claim)
        await stage.cancel(seen)
    second = await stage.submit("cancel")
    for claim in await stage.claim(stage.a, "worker-a", "cancel"):
        await stage.cancel(await stage.record(second))
        await stage.extend(claim)
        await stage.complete(claim)
    third = await stage.submit("cancel")
    await stage.cancel(await stage.record(third))


async def two_submit_under_one_key(stage: Stage) -> None:
    for until in (None, FOREVER):
        key = f"key {until}"

        def submit(store: Store, key: str = key, until: int | None = until) -> Callable[[], Awaitable[object]]:
            return lambda: stage.submit("keyed", store, dedup_key=key, dedup_until=until)

        await stage.race(submit(stage.a), submit(stage.b))
        await submit(stage.b)()
        for claim in await stage.claim(stage.a, "worker-a", "keyed"):
            await stage.complete(claim)
        await submit(stage.a)()


async def a_submitter_crashes(stage: Stage) -> None:
    lost = stage.new("crashed", own_id=True)
    await stage.crash("insert.uncommitted=raise@1", stage.a.insert([lost], stage.now))
    await stage.crash("insert.uncommitted=raise@1", stage.a.insert([stage.new("crashed")], stage.now))
    await stage.quietly(stage.b.insert([lost], stage.now))
    await stage.quietly(stage.a.insert([lost], stage.now))


async def a_batch_crashes_in_the_middle(stage: Stage) -> None:
    for nth in (1, 3):
        batch = [stage.new("batch") for _ in range(5)]
        await stage.crash(f"insert.uncommitted=raise@{nth}", stage.a.insert(batch, stage.now))
    await stage.quietly(stage.a.insert([stage.new("batch") for _ in range(5)], stage.now))


async def two_claim_at_once(stage: Stage) -> None:
    for _ in range(3):
        await stage.submit("wanted")
    taken: list[Claim] = []

    async def take(store: Store, worker: str) -> None:
        taken.extend(await stage.claim(store, worker, "wanted"))

    await stage.race(lambda: take(stage.a, "worker-a"), lambda: take(stage.b, "worker-b"))
    for claim in taken:
        await stage.complete(claim)


async def two_promote_at_once(stage: Stage) -> None:
    await stage.submit("due")
    for claim in await stage.claim(stage.a, "worker-a", "due"):
        await stage.fail(claim)
    stage.pass_time()
    taken: list[Claim] = []

    async def promote_and_take() -> None:
        await stage.promote(stage.b)
        taken.extend(await stage.claim(stage.b, "worker-b", "due"))

    await stage.race(lambda: stage.promote(stage.a), promote_and_take)
    again = await stage.claim(stage.a, "worker-a", "due")
    for claim in taken + again:
        await stage.complete(claim)


async def jobs_fail_until_they_are_out_of_attempts(stage: Stage) -> None:
    await stage.submit("bad", max_attempts=3)
    await stage.submit("deadly", max_attempts=2)
    for _ in range(4):
        for claim in await stage.claim(stage.a, "worker-a", "bad"):
            await stage.fail(claim)
        await stage.claim(stage.a, "worker-a", "deadly")
        stage.pass_time()
        await stage.sweep()


async def jobs_that_run_alone_lose_their_worker_too(stage: Stage) -> None:
    for _ in range(2):
        await stage.submit("alone")
    for _ in range(2):
        await stage.claim(stage.a, "worker-a", "alone")
        stage.pass_time()
        await stage.sweep()
    taken: list[Claim] = []

    async def take(store: Store, worker: str) -> None:
        taken.extend(await stage.claim(store, worker, "alone", limit=1))

    await stage.race(lambda: take(stage.a, "worker-a"), lambda: take(stage.b, "worker-b"))
    stage.pass_time()
    await stage.sweep()
    successors = await stage.claim(stage.b, "worker-b", "alone")
    for late in taken:
        await stage.extend(late)
        await stage.complete(late)
    for successor in successors:
        await stage.complete(successor)


async def handlers_end_in_every_way(stage: Stage) -> None:
    for _ in range(4):
        await stage.submit("ways")
    claims = await stage.claim(stage.a, "worker-a", "ways")
    ways: list[Callable[[Claim], Outcome]] = [
        lambda claim: Discarded(stage.error(claim)),
        lambda claim: Snoozed(MICROS),
        lambda claim: GivenBack("the worker stops"),
        lambda claim: lifecycle.Cancelled("no longer wanted"),
    ]
    for claim, way in zip(claims, ways, strict=False):
        await stage.settle(claim, way(claim))


async def jobs_wait_for_others(stage: Stage) -> None:
    top = await stage.submit("top")
    sides = [await stage.submit("side", depends_on=(top,)) for _ in range(2)]
    bottom = await stage.submit("bottom", depends_on=tuple(sides))
    doomed = await stage.submit("doomed", max_attempts=1)
    heirs = [await stage.submit("heir", depends_on=(doomed,), on_dependency_failure=p) for p in ("cancel", "fail")]
    await stage.submit("heir", depends_on=(heirs[0], bottom))
    for round_of in ("bottom", "side", "top", "side", "bottom"):
        for claim in await stage.claim(stage.b, "worker-b", round_of):
            await stage.complete(claim)
    for claim in await stage.claim(stage.a, "worker-a", "doomed"):
        await stage.fail(claim)


async def a_token_is_forged(stage: Stage) -> None:
    await stage.submit("forged")
    for claim in await stage.claim(stage.a, "worker-a", "forged"):
        await stage.complete(claim, token="guessed")
        await stage.complete(claim)


async def answers_are_lost_after_the_commit(stage: Stage) -> None:
    for repeat in (True, False):
        await stage.submit("unheard")
        for claim in await stage.claim(stage.a, "worker-a", "unheard"):
            await stage.crash("apply.committed=raise@1", stage.complete(claim))
            if repeat:
                await stage.complete(claim)
                await stage.complete(claim)


async def a_job_is_for_later(stage: Stage) -> None:
    await stage.submit("later", scheduled_for=stage.now + 5 * LEASE)
    await stage.promote()
    for claim in await stage.claim(stage.a, "worker-a", "later"):
        await stage.complete(claim)
    stage.pass_time(5 * LEASE)
    await stage.promote()
    for claim in await stage.claim(stage.a, "worker-a", "later"):
        await stage.complete(claim)


async def an_id_is_submitted_again(stage: Stage) -> None:
    job = stage.new("own", own_id=True)
    for store in (stage.a, stage.b):
        await stage.quietly(store.insert([job], stage.now))
        for claim in await stage.claim(store, "worker-a", "own"):
            await stage.complete(claim)


async def an_ended_job_is_retried_by_hand(stage: Stage) -> None:
    job_id = await stage.submit("again")
    for _ in range(2):
        for claim in await stage.claim(stage.a, "worker-a", "again"):
            await stage.complete(claim)
        await stage.retry_by_hand(job_id)


async def a_settlement_is_followed_by_another(stage: Stage) -> None:
    """A handler that timed out and was settled returns a result later."""
    await stage.submit("twice")
    for claim in await stage.claim(stage.a, "worker-a", "twice"):
        await stage.fail(claim)
        await stage.complete(claim)


SCENES: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    a_stalled_worker_finishes_late,
    a_stalled_worker_finishes_after_its_successor,
    a_rescuer_is_slower_than_an_extension,
    a_rescuer_is_slower_than_another,
    a_cancel_races_with_a_completion,
    two_submit_under_one_key,
    a_submitter_crashes,
    a_batch_crashes_in_the_middle,
    two_claim_at_once,
    two_promote_at_once,
    jobs_fail_until_they_are_out_of_attempts,
    jobs_that_run_alone_lose_their_worker_too,
    handlers_end_in_every_way,
    jobs_wait_for_others,
    a_token_is_forged,
    answers_are_lost_after_the_commit,
    a_job_is_for_later,
    an_id_is_submitted_again,
    an_ended_job_is_retried_by_hand,
    a_settlement_is_followed_by_another,
)


async def at_random(stage: Stage, steps: int, clocks: Callable[[random.Random, int], int] | None = None) -> None:
    """Four workers on two stores act at random; some abandon their claims, some continue them late."""
    draw = stage.random
    operator = Operator(stage, retires=steps > 100 and draw.random() < 0.5)  # less can be checked for archived jobs
    held: list[Claim] = []
    seen: list[ExpiredClaim] = []
    known: list[str] = []
    edited: JobRecord | None = None
    for _ in range(steps):
        if clocks is not None:
            stage.now = clocks(draw, stage.now)
        store = draw.choice((stage.a, stage.b))
        claim = draw.choice(held) if held else None
        match draw.randrange(16):
            case 0 | 1:
                parents = tuple(draw.sample(known, min(len(known), draw.choice((0, 0, 1, 2)))))
                extra: dict[str, Any] = {"depends_on": parents} if parents else {}
                if draw.random() < 0.3:
                    extra["dedup_key"] = f"key {draw.randrange(9)}"
                    extra["dedup_until"] = draw.choice((None, None, FOREVER))
                known.append(await stage.submit("any", store, max_attempts=draw.choice((1, 3, 9)), **extra))
            case 2 | 3:
                held += await stage.claim(store, f"worker-{draw.randrange(4)}", "any", limit=draw.randrange(1, 4))
            case 4 | 5 | 6 if claim:
                await stage.complete(claim)
                if draw.random() < 0.7:
                    held.remove(claim)
            case 7 if claim:
                await stage.fail(claim)
            case 8 if claim:
                await stage.extend(claim)
            case 9:
                seen = await stage.expired(store)
            case 10:
                await stage.rescue(seen, store)
                await stage.promote(store)
            case 11 if known:
                if edited is None:
                    edited = await stage.record(draw.choice(known))
                elif edited.status in lifecycle.TERMINAL:
                    await stage.retry_by_hand(edited.job_id)
                    edited = None
                elif draw.random() < 0.5:
                    await stage.reprioritise(edited, draw.randrange(100), store)
                    edited = None
                else:
                    await stage.cancel(edited, store)
                    edited = None
            case 12 | 13:
                await operator.act(store)
            case 14:
                stage.pass_time(draw.choice((MICROS, LEASE // 2, LEASE + MICROS)))
            case _:
                await stage.promote(store)
