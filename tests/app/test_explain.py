"""explain: every reason it can name, brought about for real."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import pytest

from backstay import Backstay, JobNotFound, Reason, ids
from backstay.clock import to_instant
from backstay.core.dumps import FROM, MoveState
from backstay.core.lifecycle import rescue
from backstay.ops.explanation import RelatedJob
from tests.app.explain_stage import NOON, Stage
from tests.docs.pages import params_of_reasons

SECOND = timedelta(seconds=1)


class Scene(NamedTuple):
    job_id: str
    says: list[str]
    until: datetime | None = None
    names: tuple[str, ...] = ()


@pytest.fixture
async def stage(make_app: Callable[..., Backstay]) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        stage = Stage(make_app, stack)
        await stack.enter_async_context(stage.app)
        yield stage


async def _completed(stage: Stage) -> Scene:
    await stage.worker()
    job_id = await stage.in_state(await stage.submit("other"), "completed")
    stage.clock.advance(60)
    return Scene(job_id, ["completed at 2030-01-01 12:00:00 UTC"])


async def _failed(stage: Stage) -> Scene:
    await stage.worker()
    job_id = await stage.in_state(await stage.submit("failing", max_attempts=1), "failed")
    return Scene(job_id, ["failed at 2030-01-01 12:00:00", "1 of 1", "ValueError: no such customer", "retry"])


async def _cancelled(stage: Stage) -> Scene:
    job_id = await stage.submit("other")
    await stage.app.cancel(job_id, by="ada", reason="no longer wanted")
    return Scene(job_id, ["cancelled at 2030-01-01 12:00:00 UTC by ada: no longer wanted"])


async def _archived(stage: Stage) -> Scene:
    await stage.worker()
    job_id = await stage.in_state(await stage.submit("other"), "completed")
    stage.clock.advance(3600)
    await stage.app.purge(older_than=0)
    return Scene(job_id, ["it completed at 2030-01-01 12:00:00", "archived at 2030-01-01 13:00:00"])


async def _running(stage: Stage) -> Scene:
    worker = await stage.worker()
    job_id = await stage.started("work")
    return Scene(job_id, ["running", "attempt 1", worker.worker_id, "since 2030-01-01 12:00:00", "25% halfway"])


async def _lease_expired(stage: Stage) -> Scene:
    job_id = await stage.submit("work")
    await stage.claimed_by("ghost", "work", lease=30)
    stage.clock.advance(31)
    return Scene(job_id, ["ghost", "expired at 2030-01-01 12:00:30", "start one"], NOON + timedelta(seconds=30))


async def _waiting(stage: Stage) -> Scene:
    await stage.worker()
    first, second = await stage.started("work"), await stage.submit("work", delay=60)
    done = await stage.in_state(await stage.submit("other"), "completed")
    job_id = await stage.submit("other", depends_on=[first, second, done])
    return Scene(job_id, ["waiting for", f"{first} (processing)", f"{second} (scheduled)"], names=(first, second))


async def _scheduled(stage: Stage) -> Scene:
    await stage.worker()
    return Scene(await stage.submit("other", delay=90), ["scheduled for 2030-01-01 12:01:30"], NOON + 90 * SECOND)


async def _snoozed(stage: Stage) -> Scene:
    await stage.worker()
    job_id = await stage.in_state(await stage.submit("sleepy"), "scheduled")
    await stage.app.reprioritise(job_id, 90, by="ada", reason="important")
    return Scene(job_id, ["snoozed until 2030-01-01 14:00:00", "the shop is closed"], NOON + timedelta(hours=2))


async def _sleeping(stage: Stage) -> Scene:
    await stage.worker()
    job_id = await stage.in_state(await stage.submit("resting"), "scheduled")
    return Scene(job_id, ["sleeping until 2030-01-01 14:00:00", "cooldown"], NOON + timedelta(hours=2))


async def _waiting_for_event(stage: Stage) -> Scene:
    await stage.worker()
    job_id = await stage.in_state(await stage.submit("approved"), "waiting")
    says = [
        "waiting for the event approved",
        "of the key order:7",
        "since 2030-01-01 12:00:00",
        "until 2030-01-01 14:00:00",
    ]
    return Scene(job_id, says, NOON + timedelta(hours=2))


async def _backing_off(stage: Stage) -> Scene:
    await stage.worker()
    job_id = await stage.in_state(await stage.submit("failing"), "retrying")
    return Scene(job_id, ["retries at 2030-01-01 12:01:00", "1 of 2", "no such customer"], NOON + 60 * SECOND)


async def _overdue(stage: Stage) -> Scene:
    job_id = await stage.submit("other", delay=90)
    stage.clock.advance(100)
    return Scene(job_id, ["became due at 2030-01-01 12:01:30", "start one"], NOON + 90 * SECOND)


async def _queue_paused(stage: Stage) -> Scene:
    await stage.worker()
    await stage.app.pause_queue("default", by="ada", reason="the shop moves")
    stage.clock.advance(5)
    return Scene(await stage.submit("other"), ["default", "by ada", "at 2030-01-01 12:00:00", "the shop moves"])


async def _type_paused(stage: Stage) -> Scene:
    await stage.worker()
    await stage.app.pause_type("other", by="ada", reason="the shop moves", until=600)
    stage.clock.advance(5)
    said = ["type other", "by ada", "at 2030-01-01 12:00:00", "the shop moves", "resumes at 2030-01-01 12:10:00"]
    return Scene(await stage.submit("other"), said, NOON + timedelta(minutes=10))


async def _type_limited(stage: Stage) -> Scene:
    await stage.worker()
    await stage.app.limit(job_type="work", concurrency=1, by="ada")
    holder = await stage.started("work")
    says = ["the type work", "limited to 1", "by ada", holder, "is running"]
    return Scene(await stage.submit("work"), says, names=(holder,))


async def _no_worker(stage: Stage) -> Scene:
    return Scene(await stage.submit("other"), ["no worker is alive", "start one"])


async def _no_worker_for_type(stage: Stage) -> Scene:
    worker = await stage.worker(job_types=["other", "rated"])
    return Scene(
        await stage.submit("work"), ["no live worker handles work", f"{worker.worker_id} handles other, rated"]
    )


async def _no_worker_for_queue(stage: Stage) -> Scene:
    worker = await stage.worker(queues=["default", "slow"])
    job_id = await stage.submit("other", queue="fast")
    return Scene(job_id, ["serves the queue fast", f"{worker.worker_id} serves default, slow"])


async def _no_worker_for_version(stage: Stage) -> Scene:
    await stage.worker()
    newer = stage.make_app(clock=stage.clock)
    stage.register(newer, version=3)
    async with newer:
        job_id = (await newer.submit("work", None)).job_id
    return Scene(job_id, ["version 3", "up to version 1", "upgrade"])


async def _key_full(stage: Stage) -> Scene:
    """Full in another queue: the key counts over all of them."""
    await stage.worker(queues=["default", "keys"])
    holder = await stage.started("keyed", concurrency_key="gpu")
    job_id = await stage.submit("keyed", queue="default", concurrency_key="gpu")
    return Scene(job_id, [f"key gpu is at its limit of 1: {holder} is running"], names=(holder,))


async def _rate_limited(stage: Stage) -> Scene:
    await stage.worker()
    await stage.in_state(await stage.submit("rated", rate_key="shop"), "completed")
    job_id = await stage.submit("rated", rate_key="shop")
    return Scene(job_id, ["rate limit of the key shop", "until 2030-01-01 13:00:00"], NOON + timedelta(hours=1))


async def _runs_alone(stage: Stage) -> Scene:
    """A worker is alive that would make room for it; only its row can hold that still."""
    job_id = await stage.submit("failing")
    await stage.claimed_by("ghost", "failing", lease=30)
    stage.clock.advance(31)
    [claim] = await stage.app.store.expired(stage.clock.now(), 10)
    lost = rescue(claim, lease=claim.lease_expires_at, now=stage.clock.now(), reason="died", by=None)
    await stage.app.store.apply([lost], stage.clock.now())
    await stage.app.store.promote(stage.clock.now(), 10)
    await stage.heard_of()
    return Scene(job_id, ["lost its worker at 2030-01-01 12:00:31", "will run alone", "1 of 2 attempts"])


async def _type_full(stage: Stage) -> Scene:
    worker = await stage.worker(concurrency=5)
    await stage.started("limited")
    return Scene(await stage.submit("limited"), ["as many of them as it may", f"{worker.worker_id} (1)", "it is next"])


async def _workers_busy(stage: Stage) -> Scene:
    worker = await stage.worker(concurrency=1)
    await stage.started("work")
    await stage.submit("other")
    return Scene(await stage.submit("other"), ["busy", worker.worker_id, "1 job of its queue and type is ahead of it"])


async def _in_line(stage: Stage) -> Scene:
    """A worker is alive and has room; that it has not come for it yet is a moment that only its row can hold still."""
    await stage.heard_of()
    for _ in range(2):
        await stage.submit("other")
    return Scene(await stage.submit("other"), ["in line", "2 jobs of its queue and type are ahead of it"])


async def _waiting_for_children(stage: Stage) -> Scene:
    await stage.worker()
    job_id = await stage.submit("family")
    left = ids.derived(job_id, "key|child")
    await stage.in_state(job_id, "waiting")
    for each in (await stage.app.store.children(job_id, None, 10)).items:
        await stage.in_state(each.job_id, "scheduled" if each.job_id == left else "completed")
    return Scene(job_id, [f"it is waiting for 1 of its 2 children: {left} (scheduled)"], names=(left,))


async def _ring(stage: Stage) -> Scene:
    """A parent waits for its child, which depends on a job elsewhere, which depends on the parent."""
    elsewhere = ids.new_id(to_instant(NOON))
    job_id = (await stage.app.submit("family", elsewhere)).job_id
    await stage.submit("other", job_id=elsewhere, depends_on=[job_id])
    await stage.worker()
    await stage.in_state(job_id, "waiting")
    child = ids.derived(job_id, "key|child")
    says = [f"family {job_id} → its child other {child} → other {elsewhere} → family {job_id}; cancel one of them"]
    return Scene(job_id, says, names=(job_id, child, elsewhere))


async def _moved(stage: Stage) -> Scene:
    job_id = await stage.submit("other")
    await stage.app.store.freeze(MoveState(role=FROM, move_id="m", other="sqlite:////there.db"))
    return Scene(job_id, ["is being transferred to sqlite:////there.db"])


SCENES: dict[Reason, Callable[[Stage], Awaitable[Scene]]] = {
    Reason.COMPLETED: _completed,
    Reason.FAILED: _failed,
    Reason.CANCELLED: _cancelled,
    Reason.ARCHIVED: _archived,
    Reason.RUNNING: _running,
    Reason.LEASE_EXPIRED: _lease_expired,
    Reason.WAITING: _waiting,
    Reason.WAITING_FOR_CHILDREN: _waiting_for_children,
    Reason.RING: _ring,
    Reason.SCHEDULED: _scheduled,
    Reason.SNOOZED: _snoozed,
    Reason.SLEEPING: _sleeping,
    Reason.WAITING_FOR_EVENT: _waiting_for_event,
    Reason.BACKING_OFF: _backing_off,
    Reason.OVERDUE: _overdue,
    Reason.QUEUE_PAUSED: _queue_paused,
    Reason.TYPE_PAUSED: _type_paused,
    Reason.TYPE_LIMITED: _type_limited,
    Reason.MOVED: _moved,
    Reason.NO_WORKER: _no_worker,
    Reason.NO_WORKER_FOR_TYPE: _no_worker_for_type,
    Reason.NO_WORKER_FOR_QUEUE: _no_worker_for_queue,
    Reason.NO_WORKER_FOR_VERSION: _no_worker_for_version,
    Reason.KEY_FULL: _key_full,
    Reason.RATE_LIMITED: _rate_limited,
    Reason.RUNS_ALONE: _runs_alone,
    Reason.TYPE_FULL: _type_full,
    Reason.WORKERS_BUSY: _workers_busy,
    Reason.IN_LINE: _in_line,
}


def test_every_reason_is_brought_about() -> None:
    assert set(SCENES) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
async def test_the_reason_is_found_and_said_in_one_sentence(stage: Stage, reason: Reason) -> None:
    scene = await SCENES[reason](stage)

    explanation = await stage.app.explain(scene.job_id)

    assert explanation.reason is reason, explanation
    for words in scene.says:
        assert words in str(explanation)
    assert "\n" not in str(explanation)
    assert {part.job_id for part in explanation.parts() if isinstance(part, RelatedJob)} <= set(explanation.job_ids)
    assert set(msgspec.to_builtins(explanation.params)) <= params_of_reasons()[reason.value]  # all are documented
    assert (explanation.until, set(explanation.job_ids)) == (scene.until, set(scene.names))


async def test_a_job_that_is_not_there_is_an_error(stage: Stage) -> None:
    with pytest.raises(JobNotFound):
        await stage.app.explain("01890000-0000-7000-8000-000000000000")
