"""explain where a hasty look would say something else: old rows, other keys, other versions, turns."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from backstay import Backstay, Explanation, Reason
from backstay.core import workers
from backstay.core.records import BlockedLoop
from tests.app.explain_stage import LEASE, Stage
from tests.support.eventually import eventually
from tests.support.rows_read import RowsRead


@pytest.fixture
async def stage(make_app: Callable[..., Backstay]) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        stage = Stage(make_app, stack)
        await stack.enter_async_context(stage.app)
        yield stage


async def explained(stage: Stage, job_id: str) -> Explanation:
    return await stage.app.explain(job_id)


# Workers


async def test_a_worker_that_took_jobs_since_it_was_last_heard_of_is_busy(stage: Stage) -> None:
    await stage.heard_of(concurrency=1)
    await stage.submit("other")
    await stage.claimed_by("elsewhere", "other")

    assert (await explained(stage, await stage.submit("other"))).reason is Reason.WORKERS_BUSY


async def test_a_worker_whose_jobs_have_ended_since_it_was_last_heard_of_is_not(stage: Stage) -> None:
    ended = await stage.submit("other")
    await stage.app.cancel(ended)
    await stage.heard_of(concurrency=1, running=(ended,), busy={"other": 1})

    assert (await explained(stage, await stage.submit("other"))).reason is Reason.IN_LINE


async def test_a_thread_that_does_not_stop_keeps_its_worker_busy(stage: Stage) -> None:
    ended = await stage.submit("other")
    await stage.app.cancel(ended)
    await stage.heard_of(concurrency=1, stuck=(ended,))

    assert (await explained(stage, await stage.submit("other"))).reason is Reason.WORKERS_BUSY


async def test_a_job_on_a_worker_whose_event_loop_is_blocked_is_told_by_whom_and_others_that_it_takes_none(
    stage: Stage,
) -> None:
    innocent, guilty = await stage.submit("other"), await stage.submit("other")
    for _ in range(2):
        await stage.claimed_by("elsewhere", "other")
    await stage.heard_of(concurrency=9, blocked=BlockedLoop(stage.app.clock.now(), "other", guilty))

    said = str(await explained(stage, innocent))
    assert "the event loop of that worker has been blocked since" in said and f"by {guilty} (other)" in said
    assert "it has blocked the event loop of that worker since" in str(await explained(stage, guilty))
    waiting = await explained(stage, await stage.submit("other"))
    assert waiting.reason is Reason.NO_WORKER and "except elsewhere, which has been blocked since" in str(waiting)


async def test_jobs_that_were_claimed_ahead_hold_no_slot(stage: Stage) -> None:
    """Of a type with a limit a worker may hold more than it runs; the rest of its slots is free."""
    await stage.heard_of(concurrency=3, limits={"limited": 1})
    for _ in range(3):
        await stage.submit("limited")
        await stage.claimed_by("elsewhere", "limited")

    assert (await explained(stage, await stage.submit("other"))).reason is Reason.IN_LINE
    assert (await explained(stage, await stage.submit("limited"))).reason is Reason.TYPE_FULL


async def test_one_worker_that_is_full_of_the_type_and_one_that_is_busy_are_no_room(stage: Stage) -> None:
    for worker_id, options in {"a": {"concurrency": 9, "limits": {"limited": 1}}, "b": {"concurrency": 1}}.items():
        await stage.heard_of(worker_id, **options)
        await stage.submit("limited")
        await stage.claimed_by(worker_id, "limited")

    found = await explained(stage, await stage.submit("limited"))

    assert found.reason is Reason.WORKERS_BUSY
    assert "a and b" in str(found)


async def test_a_worker_with_room_among_busy_ones_is_found(stage: Stage) -> None:
    for worker_id in ("a", "b", "c"):
        await stage.heard_of(worker_id, concurrency=1)
        await stage.submit("other")
        await stage.claimed_by(worker_id, "other")
    await stage.heard_of("d", concurrency=1)

    assert (await explained(stage, await stage.submit("other"))).reason is Reason.IN_LINE


async def test_of_many_workers_only_so_many_are_read_as_it_takes(stage: Stage) -> None:
    for number in range(150):
        await stage.heard_of(f"w-{number:03}", job_types=("other",) if number % 2 else ("sleepy",))
    pending, running = await stage.submit("other"), await stage.submit("sleepy")
    await stage.claimed_by("w-149", "sleepy")
    later = (await stage.app.submit("other", delay=60)).job_id
    store = RowsRead.of(stage.app)

    assert (await explained(stage, pending)).reason is Reason.IN_LINE
    assert store.workers_read == 100
    assert (await stage.app.explain(pending, ask_first=["w-001", "w-gone"])).reason is Reason.IN_LINE
    assert store.workers_read == 101
    assert (await explained(stage, running)).reason is Reason.RUNNING
    assert (await explained(stage, later)).reason is Reason.SCHEDULED
    assert store.workers_read == 102


async def test_a_worker_that_could_run_the_job_is_found_among_many_that_cannot(stage: Stage) -> None:
    for number in range(1_200):
        await stage.heard_of(f"w-{number:04}", job_types=("sleepy",))
    pending = await stage.submit("other")
    assert (await explained(stage, pending)).reason is Reason.NO_WORKER_FOR_TYPE
    await stage.heard_of("w-last", job_types=("other",))
    assert (await explained(stage, pending)).reason is Reason.IN_LINE


async def test_a_worker_that_is_stopping_is_not_counted_on(stage: Stage) -> None:
    worker = stage.app.worker(grace=60)
    await worker.__aenter__()
    await stage.started("work")
    stopping = asyncio.create_task(worker.stop())
    job_id = await stage.submit("other")

    async def told() -> bool:
        found = await explained(stage, job_id)
        return found.reason is Reason.NO_WORKER and f"{worker.worker_id}, which is stopping" in str(found)

    await eventually(told)
    stage.release.set()
    await stopping


async def test_a_silent_worker_is_not_counted_on_and_the_sentence_says_when_it_was_heard(stage: Stage) -> None:
    await stage.heard_of()
    stage.clock.advance(LEASE)
    job_id = await stage.submit("other")
    assert (await explained(stage, job_id)).reason is Reason.IN_LINE

    stage.clock.advance(1)

    found = await explained(stage, job_id)
    assert found.reason is Reason.NO_WORKER
    assert "elsewhere was last seen at 2030-01-01 12:00:00 UTC" in str(found)


async def test_a_worker_with_a_longer_lease_than_ours_is_not_silent_so_soon(stage: Stage) -> None:
    await stage.heard_of(lease_micros=round(10 * LEASE * 1_000_000))
    stage.clock.advance(5 * LEASE)

    assert (await explained(stage, await stage.submit("other"))).reason is Reason.IN_LINE


async def test_a_worker_tells_its_lease(stage: Stage) -> None:
    await stage.worker(lease=123)

    assert [worker.lease_micros for worker in await stage.app.workers()] == [123_000_000]


async def test_a_worker_whose_process_has_died_is_not_counted_on_though_it_was_just_heard_of(stage: Stage) -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    key = f"{workers._machine()}:{ended.pid}:1"
    await ended.wait()
    await stage.heard_of(process_key=key)

    assert (await explained(stage, await stage.submit("other"))).reason is Reason.NO_WORKER


async def test_an_idle_worker_that_cannot_read_the_payload_does_not_count_as_room(stage: Stage) -> None:
    newer = stage.make_app(clock=stage.clock)
    stage.register(newer, version=2)
    await stage.heard_of("old", versions={"work": 1})
    await stage.heard_of("new", versions={"work": 2}, concurrency=1)
    async with newer:
        await newer.submit("work", None)
        await stage.claimed_by("new", "work")
        job_id = (await newer.submit("work", None)).job_id

    found = await explained(stage, job_id)

    assert found.reason is Reason.WORKERS_BUSY
    assert "old" not in found.params.workers


# Keys


async def test_a_full_key_holds_up_only_its_own_jobs(stage: Stage) -> None:
    await stage.worker(queues=["default", "keys"], concurrency=1, job_types=["keyed"])
    await stage.started("keyed", concurrency_key="a")

    assert (await explained(stage, await stage.submit("keyed", concurrency_key="a"))).reason is Reason.KEY_FULL
    assert (await explained(stage, await stage.submit("keyed", concurrency_key="b"))).reason is Reason.WORKERS_BUSY


async def test_a_key_with_a_large_limit_is_full_when_so_many_run(stage: Stage) -> None:
    @stage.app.job("wide", global_concurrency=150)
    async def wide(payload: Any) -> None: ...

    await stage.heard_of(concurrency=1_000, job_types=("wide",))
    for n in range(150):
        await stage.submit("wide", concurrency_key="k")
        if n == 148:
            assert (await explained(stage, await stage.submit("wide", concurrency_key="k"))).reason is Reason.IN_LINE
        await stage.claimed_by("elsewhere", "wide")

    found = await explained(stage, await stage.submit("wide", concurrency_key="k"))

    assert found.reason is Reason.KEY_FULL
    assert "is at its limit of 150: " in str(found) and "and 147 more are running" in str(found)
    assert len(found.job_ids) == 150


async def test_jobs_that_a_key_holds_back_do_not_come_first(stage: Stage) -> None:
    await stage.heard_of()
    for _ in range(5):
        await stage.submit("keyed", concurrency_key="a", priority="urgent")
    await stage.claimed_by("elsewhere", "keyed", queue="keys")

    found = await explained(stage, await stage.submit("keyed", concurrency_key="b"))

    assert found.reason is Reason.IN_LINE
    assert "it is next" in str(found)


async def test_the_backlog_of_another_fairness_key_does_not_come_first(stage: Stage) -> None:
    await stage.heard_of()
    await stage.app.submit_many([("other", n, {"fairness_key": "large"}) for n in range(200)])
    await stage.submit("other", fairness_key="small")

    second = await explained(stage, await stage.submit("other", fairness_key="small"))

    assert "1 job of the key small is ahead of it, and keys take turns" in str(second)
    last = await explained(stage, await stage.submit("other", fairness_key="large"))
    assert "200 jobs of the key large are ahead of it" in str(last)


# Where a job is at


async def test_a_job_that_was_rescheduled_does_not_snooze(stage: Stage) -> None:
    await stage.worker()
    job_id = await stage.in_state(await stage.submit("sleepy"), "scheduled")
    await stage.app.reschedule(job_id, delay=60, by="ada", reason="rather later")

    found = await explained(stage, job_id)

    assert found.reason is Reason.SCHEDULED
    assert "2030-01-01 12:01:00 UTC, rescheduled by ada: rather later" in str(found)


async def test_a_job_that_failed_with_what_it_depends_on_does_not_tell_of_attempts(stage: Stage) -> None:
    broken = await stage.submit("other", delay=60)
    job_id = await stage.submit("other", depends_on=[broken], on_dependency_failure="fail")
    await stage.app.cancel(broken)

    found = await explained(stage, job_id)

    assert found.reason is Reason.FAILED
    assert "attempts" not in str(found)
    assert f"because {broken} was cancelled" in str(found)


async def test_a_job_that_waits_on_more_than_are_listed_does_not_claim_that_they_are_ending(stage: Stage) -> None:
    done = [await stage.submit("other") for _ in range(100)]
    last = await stage.submit("work", delay=60)
    job_id = await stage.submit("other", depends_on=[*done, last])
    await stage.worker()
    for each in done:
        await stage.in_state(each, "completed")

    found = await explained(stage, job_id)

    assert found.reason is Reason.WAITING
    assert last in found.job_ids or "other than the first 100" in str(found)


async def test_a_rescheduled_or_reprioritised_job_says_where_it_is_now(stage: Stage) -> None:
    await stage.heard_of()
    await stage.submit("other")
    job_id = await stage.submit("other")
    assert "1 job of its queue" in str(await explained(stage, job_id))

    await stage.app.reprioritise(job_id, "urgent")

    assert "it is next" in str(await explained(stage, job_id))


async def test_a_job_that_has_joined_an_identical_one_will_take_its_result(stage: Stage) -> None:
    first = await stage.submit("other", content_hash="same")
    joined = await stage.submit("other", content_hash="same", reuse=True)

    found = await stage.app.explain(joined)

    assert str(found) == f"it is waiting for {first} (pending, whose result it will reuse)"
