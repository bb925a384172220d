"""Scenes of operating: schedules, pauses, retention, other priorities, retries by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from backstay.clock import MICROS
from backstay.core import lifecycle, schedules
from backstay.core.port import Store
from backstay.core.records import FOREVER, Schedule
from backstay.core.schedules import MISSED
from backstay.testing.conformance.factories import a_policy
from tests.campaigns.stage import LEASE, Stage

MINUTE = 60 * MICROS
DAY = 86_400 * MICROS
# Only of these types: other scenes need the histories of their jobs.
KEEP = a_policy(DAY, 3 * DAY, 2 * DAY, job_types=("kept", "rooted"))
EMPTY = a_policy(DAY, 3 * DAY, 2 * DAY, archive=9 * DAY, job_types=("old", "older"))


# Schedules


async def two_workers_see_one_tick(stage: Stage) -> None:
    for missed in MISSED:
        name = f"tick-{missed}"
        await stage.schedule(name, missed)
        for minutes in (1, 1, 4):
            stage.pass_time(minutes * MINUTE)
            seen = await stage.stored_schedule(name)
            await stage.race(lambda seen=seen: stage.fire(seen, stage.a), lambda seen=seen: stage.fire(seen, stage.b))
            await stage.fire(seen, stage.b)
        for claim in await stage.claim(stage.a, "worker-a", "ticked", limit=100):
            await stage.complete(claim)


async def a_worker_fires_what_it_read_long_ago(stage: Stage) -> None:
    await stage.schedule("late", "all")
    stage.pass_time(MINUTE)
    seen = await stage.stored_schedule("late")
    await stage.fire(seen, stage.b)
    stage.pass_time(3 * MINUTE)
    await stage.fire(await stage.stored_schedule("late"), stage.b)
    await stage.fire(seen, stage.a)


async def a_worker_dies_while_it_fires(stage: Stage) -> None:
    await stage.schedule("crashed", "all")
    for where in ("fire.uncommitted", "fire.committed"):
        stage.pass_time(MINUTE)
        await stage.crash(f"{where}=raise@1", stage.fire(await stage.stored_schedule("crashed")))
    await stage.fire(await stage.stored_schedule("crashed"), stage.b)


async def a_schedule_changes_under_a_worker(stage: Stage) -> None:
    await stage.schedule("changing", "one")
    stage.pass_time(MINUTE)
    seen = await stage.acknowledged_schedule("changing")
    await stage.save(schedules.paused(seen, "operator", stage.now), seen)
    await stage.fire(seen, stage.b)
    paused = await stage.acknowledged_schedule("changing")
    overlooked = msgspec.structs.replace(paused, paused_at=None)  # by a worker with a bug of its own
    await stage.fire(overlooked, stage.b)
    await stage.save(schedules.resumed(paused, stage.now), paused)
    stage.pass_time(MINUTE)
    seen = await stage.stored_schedule("changing")
    await stage.schedule("changing", "all", stage.b)
    await stage.fire(seen, stage.a)
    await stage.fire(await stage.stored_schedule("changing"), stage.a)
    stage.pass_time(MINUTE)
    seen = await stage.stored_schedule("changing")
    await stage.quietly(stage.b.drop_schedule("changing"))
    await stage.fire(seen, stage.a)


# Pausing


async def a_queue_is_paused(stage: Stage) -> None:
    for _ in range(3):
        await stage.submit("paused", queue="slow")
    [first] = await stage.claim(stage.a, "worker-a", "paused", queue="slow", limit=1)
    await stage.pause("slow")
    for store in (stage.a, stage.b):
        await stage.claim(store, "worker-b", "paused", queue="slow")
    await stage.extend(first)
    await stage.complete(first)
    await stage.pause("slow", paused=False, store=stage.b)
    for claim in await stage.claim(stage.b, "worker-b", "paused", queue="slow"):
        await stage.complete(claim)


# Retention


async def jobs_are_retired_while_others_work(stage: Stage) -> None:
    done = [await stage.submit("kept") for _ in range(3)]
    keyed = await stage.submit("kept", dedup_key="for ever", dedup_until=FOREVER)
    for claim in await stage.claim(stage.a, "worker-a", "kept"):
        await stage.complete(claim)
    root = await stage.submit("rooted")
    await stage.submit("rooted", parent_job_id=root)
    for claim in await stage.claim(stage.a, "worker-a", "rooted", limit=1):
        await stage.complete(claim)
    waiting = await stage.submit("kept")
    await stage.claim(stage.a, "worker-a", "kept")
    await stage.submit("kept")
    stage.pass_time(DAY // 2)
    await stage.retire(KEEP)
    stage.pass_time(DAY)
    seen = await stage.record(done[0])
    await stage.race(lambda: stage.retire(KEEP, stage.a), lambda: _retry_and_claim(stage, seen))
    await stage.retry_by_hand(done[1])
    await stage.submit("kept", dedup_key="for ever", dedup_until=FOREVER)
    await stage.submit("after", depends_on=(keyed,))
    await stage.cancel(await stage.record(waiting))
    await stage.sweep()


async def the_archive_is_emptied_in_time(stage: Stage) -> None:
    for job_type in ("old", "older"):
        await stage.submit(job_type)
        for claim in await stage.claim(stage.a, "worker-a", job_type):
            await stage.complete(claim)
        stage.pass_time(2 * DAY)
        await stage.retire(EMPTY)
        stage.pass_time((10 if job_type == "old" else 1) * DAY)
        await stage.retire(EMPTY)


async def _retry_and_claim(stage: Stage, seen: lifecycle.Editable | None) -> None:
    if seen is None:
        return
    retry = lifecycle.manual_retry(seen, now=stage.now, by="editor", reason=None)
    await stage.quietly(stage.b.apply([retry], stage.now))
    for claim in await stage.claim(stage.b, "worker-b", "kept"):
        await stage.fail(claim)


# Windows, priorities, retries


async def a_window_of_a_key_ends(stage: Stage) -> None:
    until = stage.now + 30 * MICROS
    for _ in range(2):
        await stage.submit("windowed", dedup_key="window", dedup_until=until)
        for claim in await stage.claim(stage.a, "worker-a", "windowed"):
            await stage.complete(claim)
    stage.pass_time(40 * MICROS)
    for store in (stage.a, stage.b):
        await stage.submit("windowed", store, dedup_key="window", dedup_until=stage.now + LEASE)


async def a_running_job_is_reprioritised(stage: Stage) -> None:
    ids = [await stage.submit("urgent") for _ in range(3)]
    finishing, dying, _ = await stage.claim(stage.a, "worker-a", "urgent")
    for job_id in ids:
        await stage.reprioritise(await stage.record(job_id), 90)
    await stage.sweep()
    await stage.extend(finishing)
    await stage.complete(finishing)
    stage.pass_time()
    await stage.sweep()
    for claim in await stage.claim(stage.b, "worker-b", "urgent"):
        await stage.complete(claim)
    await stage.complete(dying)


async def a_waiting_job_is_reprioritised(stage: Stage) -> None:
    first = await stage.submit("ordered", priority=50)
    second = await stage.submit("ordered", priority=50)
    seen = await stage.record(second)
    await stage.reprioritise(seen, 80)
    await stage.reprioritise(seen, 10)
    await stage.cancel(await stage.record(first))
    for claim in await stage.claim(stage.a, "worker-a", "ordered"):
        await stage.complete(claim)


async def retries_by_hand_meet_keys_and_dependencies(stage: Stage) -> None:
    first = await stage.submit("again and again", dedup_key="retried")
    for claim in await stage.claim(stage.a, "worker-a", "again and again"):
        await stage.complete(claim)
    await stage.submit("again and again", dedup_key="retried")
    await stage.retry_by_hand(first)
    parent = await stage.submit("doomed parent", max_attempts=1)
    child = await stage.submit("doomed child", depends_on=(parent,))
    for claim in await stage.claim(stage.a, "worker-a", "doomed parent"):
        await stage.fail(claim)
    await stage.retry_by_hand(child)
    for claim in await stage.claim(stage.a, "worker-a", "again and again", "doomed child"):
        await stage.complete(claim)


OPERATING: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    two_workers_see_one_tick,
    a_worker_fires_what_it_read_long_ago,
    a_worker_dies_while_it_fires,
    a_schedule_changes_under_a_worker,
    a_queue_is_paused,
    the_archive_is_emptied_in_time,
    jobs_are_retired_while_others_work,
    a_window_of_a_key_ends,
    a_running_job_is_reprioritised,
    a_waiting_job_is_reprioritised,
    retries_by_hand_meet_keys_and_dependencies,
)


class Operator:
    """Acts at random, partly on outdated reads."""

    def __init__(self, stage: Stage, retires: bool) -> None:
        self.stage = stage
        self.retires = retires
        self.read: list[Schedule] = []

    async def act(self, store: Store) -> None:
        stage, draw = self.stage, self.stage.random
        seen = draw.choice(self.read[-4:]) if self.read else None
        match draw.randrange(8):
            case 0:
                await stage.pause(store=store)
            case 1 | 2:
                await stage.pause(paused=False, store=store)
            case 3:
                await stage.schedule("random", draw.choice(MISSED), store)
            case 4 if seen is not None:
                changed = draw.choice((schedules.resumed(seen, stage.now), schedules.paused(seen, "me", stage.now)))
                await stage.save(changed, seen, store)
            case 5 if self.retires:
                spans = draw.choice(((0, 0, 0), (LEASE, 0, None)))
                await stage.retire(a_policy(*spans, job_types=("any",)), store)
            case 6 if draw.random() < 0.2:
                await stage.quietly(store.drop_schedule("random"))
            case _:
                await stage.fire(seen, store)
        self.read += await store.schedules()
