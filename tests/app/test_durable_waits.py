"""Handlers that sleep and wait for events: entered again from the top, past what they have recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from backstay import (
    Backoff,
    Backstay,
    BatchContext,
    BlockingContext,
    Context,
    EventRefused,
    EventsFull,
    EventTimeout,
    InvalidEvent,
    InvalidOption,
    JobNotFound,
    limits,
)
from backstay.core.waits import StepKind
from backstay.testing import ManualClock, drain
from tests.support import wait_jobs

START = datetime(2030, 1, 1, tzinfo=UTC)
DAYS_3 = timedelta(days=3)


class Approval(BaseModel):
    by: str
    amount: int = 0


@dataclass
class Receipt:
    number: int
    approval: Approval


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
async def app(make_app: Callable[..., Backstay], clock: ManualClock) -> AsyncIterator[Backstay]:
    app = make_app(clock=clock)
    async with app:
        yield app


async def entered(app: Backstay, job_id: str) -> int:
    """Run what can run; return the number of the job's attempts."""
    await drain(app)
    return (await app.get(job_id)).attempt


async def test_a_sleep_ends_the_attempt_and_the_handler_goes_on_after_it(app: Backstay, clock: ManualClock) -> None:
    ran: list[str] = []

    @app.job("order")
    async def order(payload: int, ctx: Context) -> str:
        ran.append("top")
        await ctx.step("charge", ran.append, "charge")
        await ctx.sleep("cooldown", DAYS_3)
        ran.append("rest")
        return "done"

    job = await order.submit(1)
    await drain(app)

    asleep = await job.record()
    assert (asleep.status, asleep.scheduled_for, asleep.failures) == ("scheduled", START + DAYS_3, 0)
    assert str(await job.explain()) == "it is sleeping until 2030-01-04 00:00:00 UTC (cooldown)"
    clock.advance(timedelta(days=2))
    assert await entered(app, job.job_id) == 1
    clock.advance(timedelta(days=1))
    await drain(app)

    assert await job.result() == "done"
    assert ran == ["top", "charge", "top", "rest"]


async def test_an_approval_is_waited_for_and_comes_as_its_type(app: Backstay, clock: ManualClock) -> None:
    @app.job("order")
    async def order(payload: int, ctx: Context) -> dict[str, Any]:
        await ctx.step("reserve", lambda: payload)
        approval = await ctx.wait_for_event("approved", type=Approval, timeout=timedelta(days=7))
        return {"by": approval.by, "kind": type(approval).__name__}

    job = await order.submit(1)
    await drain(app)

    record = await job.record()
    assert (record.status, record.waits_for, record.failures) == ("waiting", "event", 0)
    assert str(await job.explain()) == (
        "it is waiting for the event approved since 2030-01-01 00:00:00 UTC, until 2030-01-08 00:00:00 UTC at the"
        " latest: send it with app.send_event()"
    )
    clock.advance(3600)
    sent = await app.send_event(job, "approved", Approval(by="ada"), event_id="click-1")
    assert (sent.delivery, sent.repeated) == ("recorded", False)
    assert (await job.send_event("approved", Approval(by="eve"), event_id="click-1")).repeated
    await drain(app)

    assert await job.result() == {"by": "ada", "kind": "Approval"}
    entries = [(each.kind, each.name, each.event_id) for each in await job.steps()]
    assert entries == [("step", "reserve", None), ("event", "approved", "click-1")]


async def test_an_event_that_came_first_is_received_at_once(app: Backstay) -> None:
    @app.job("order")
    async def order(payload: int, ctx: Context) -> list[Any]:
        return [await ctx.wait_for_event("message"), await ctx.wait_for_event("message")]

    job = await order.submit(1)
    await app.send_event(job.job_id, "message", "one")
    await app.send_event(job.job_id, "message", "two")
    await app.send_event(job.job_id, "other", "three")
    await drain(app)

    assert await job.result() == ["one", "two"]
    assert (await job.record()).attempt == 1
    left = [each for each in await job.steps() if each.kind is StepKind.SENT]
    assert [(each.event, bytes(each.value)) for each in left] == [("other", b'"three"')]


async def test_a_wait_that_times_out_raises_in_this_attempt_and_all_later_ones(
    app: Backstay, clock: ManualClock
) -> None:
    timeouts = 0

    @app.job("order", max_attempts=2, backoff=Backoff(base=0))
    async def order(payload: int, ctx: Context) -> str:
        nonlocal timeouts
        try:
            await ctx.wait_for_event("approved", timeout=timedelta(hours=1))
        except EventTimeout:
            timeouts += 1
            if timeouts == 1:
                raise ValueError("once") from None
            return "escalated"
        return "approved"

    job = await order.submit(1)
    await drain(app)
    clock.advance(timedelta(minutes=59))
    assert await entered(app, job.job_id) == 1
    clock.advance(timedelta(minutes=1))
    await drain(app)
    await drain(app)

    assert await job.result() == "escalated"
    assert timeouts == 2
    assert [(each.kind, each.timed_out) for each in await job.steps()] == [("event", True)]


async def test_a_timeout_counts_from_the_first_time(app: Backstay, clock: ManualClock) -> None:
    @app.job("order")
    async def order(payload: int, ctx: Context) -> str:
        try:
            await ctx.wait_for_event("approved", timeout=3600)
        except EventTimeout:
            return "late"
        return "in time"

    job = await order.submit(1)
    await drain(app)
    clock.advance(1800)
    await app.send_event(job, "other")  # does not fit: it goes on waiting
    await drain(app)
    assert (await job.record()).status == "waiting"
    clock.advance(1800)
    await drain(app)

    assert await job.result() == "late"


async def test_waits_in_a_loop_are_told_apart_by_name_and_by_number(app: Backstay, clock: ManualClock) -> None:
    polled: list[int] = []

    @app.job("poll")
    async def poll(payload: int, ctx: Context) -> list[str]:
        for number in range(2):
            await ctx.step(f"poll-{number}", polled.append, number)
            await ctx.sleep(f"pause-{number}", 60)
        for _ in range(2):
            await ctx.sleep("again", 60)
        return [each.name for each in await app.steps(ctx.job_id)]

    job = await poll.submit(1)
    for _ in range(5):
        await drain(app)
        clock.advance(60)

    assert await job.result() == ["poll-0", "pause-0", "poll-1", "pause-1", "again", "again (2)"]
    assert polled == [0, 1]
    assert (await job.record()).attempt == 5


async def test_a_step_comes_back_as_the_type_that_its_function_returns(app: Backstay, clock: ManualClock) -> None:
    calls = 0

    async def charge(number: int, *, by: str) -> Receipt:
        nonlocal calls
        calls += 1
        return Receipt(number, Approval(by=by))

    @app.job("order")
    async def order(payload: int, ctx: Context) -> list[Any]:
        receipt = await ctx.step("charge", charge, 7, by="ada")
        assert isinstance(receipt, Receipt)
        assert receipt.approval == Approval(by="ada")
        await ctx.sleep("nap", 1)
        return [receipt.number, await ctx.once("plain", lambda: {"a": 1})]

    job = await order.submit(1)
    await drain(app)
    clock.advance(1)
    await drain(app)

    assert await job.result() == [7, {"a": 1}]
    assert calls == 1


async def test_a_payload_that_does_not_fit_is_refused_when_it_is_sent_to_a_job_that_waits(app: Backstay) -> None:
    @app.job("order")
    async def order(payload: int, ctx: Context) -> str:
        return (await ctx.wait_for_event("approved", type=Approval)).by

    job = await order.submit(1)
    await drain(app)

    with pytest.raises(InvalidEvent, match=r"waits for an event 'approved' of another form: .*by"):
        await app.send_event(job, "approved", {"amount": 3})
    assert (await job.record()).status == "waiting"
    await app.send_event(job, "approved", {"by": "ada"})
    await drain(app)
    assert await job.result() == "ada"


async def test_a_payload_that_does_not_fit_and_came_first_is_an_error_at_the_wait(app: Backstay) -> None:
    @app.job("order", max_attempts=1)
    async def order(payload: int, ctx: Context) -> str:
        try:
            return (await ctx.wait_for_event("approved", type=Approval)).by
        except InvalidEvent:
            return (await ctx.wait_for_event("approved", type=Approval)).by

    job = await order.submit(1)
    await app.send_event(job, "approved", {"amount": 3})
    await app.send_event(job, "approved", {"by": "ada"})
    await drain(app)

    assert await job.result() == "ada"


async def test_events_of_a_key_go_to_the_job_that_waits_for_it(app: Backstay) -> None:
    @app.job("order")
    async def order(payload: int, ctx: Context) -> Any:
        return await ctx.wait_for_event("paid", key=f"order:{payload}")

    early, late = await order.submit(7), await order.submit(8)
    await app.send_event(key="order:8", name="paid", payload=80)
    await drain(app)
    assert await late.result() == 80
    assert "of the key order:7" in str(await early.explain())
    assert (await app.send_event(key="order:7", name="paid", payload=70)).delivery == "recorded"
    assert (await app.send_event(key="order:7", name="paid", payload=71)).delivery == "kept"
    await drain(app)

    assert await early.result() == 70


async def test_a_wait_that_timed_out_leaves_the_events_of_its_key_to_others(app: Backstay, clock: ManualClock) -> None:
    @app.job("order")
    async def order(payload: float | None, ctx: Context) -> Any:
        try:
            return await ctx.wait_for_event("paid", key="k", timeout=payload)
        except EventTimeout:
            return "late"

    first, second = await order.submit(60), await order.submit(None)
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await first.result() == "late"
    await app.send_event(key="k", name="paid", payload=1)
    await drain(app)

    assert await second.result() == 1


async def test_what_cannot_be_sent_is_refused_with_the_reason(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job("order")
    async def order(payload: int) -> None: ...

    done = await order.submit(1)
    await drain(app)
    job = await order.submit(1)

    with pytest.raises(EventRefused, match="has ended"):
        await app.send_event(done, "approved")
    with pytest.raises(JobNotFound):
        await app.send_event("019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c", "approved")
    with pytest.raises(InvalidOption, match="either a job or key"):
        await app.send_event(job, "approved", key="k")
    with pytest.raises(InvalidOption, match="name of the event"):
        await app.send_event(job)
    with pytest.raises(InvalidEvent, match="not JSON"):
        await app.send_event(job, "approved", object())
    with pytest.raises(InvalidEvent, match="EVENT_BYTES_MAX"):
        await app.send_event(job, "approved", "x" * limits.EVENT_BYTES_MAX)
    for number in range(limits.EVENTS_KEPT_MAX):
        await app.store.send([_event(number)], app.clock.now())
    with pytest.raises(EventsFull, match="EVENTS_KEPT_MAX"):
        await app.send_event(key="k", name="e")


def _event(number: int) -> Any:
    from backstay.core.waits import NewEvent

    return NewEvent(f"e{number}", "e", "1", key="k")


async def test_sending_leaves_an_audit_entry_without_the_payload(app: Backstay) -> None:
    @app.job("order")
    async def order(payload: int) -> None: ...

    job = await order.submit(1)
    await app.send_event(job, "approved", {"secret": "s3cr3t"}, by="ada")

    [entry] = await app.audit_trail(limit=1)
    assert (entry.action, entry.target, entry.by, entry.outcome) == ("event.send", job.job_id, "ada", "ok")
    assert "s3cr3t" not in str(entry)


async def test_a_handler_in_a_thread_sleeps_and_waits(app: Backstay, clock: ManualClock) -> None:
    @app.job("order")
    def order(payload: int, ctx: BlockingContext) -> list[Any]:
        ctx.sleep("nap", 60)
        approval = ctx.wait_for_event("approved", type=Approval)
        return [ctx.step("charge", _double, payload), approval.by]

    job = await order.submit(21)
    await drain(app)
    clock.advance(60)
    await drain(app)
    await app.send_event(job, "approved", {"by": "ada"})
    await drain(app)

    assert await job.result() == [42, "ada"]


def _double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("name", ["blocking", "asynchronous"])
async def test_a_handler_in_a_process_sleeps_and_waits(
    make_app: Callable[..., Backstay], clock: ManualClock, name: str
) -> None:
    app = make_app(clock=clock)
    wait_jobs.register(app)
    async with app:
        job = await app.submit(name, 1)
        await drain(app)
        assert (await job.record()).status == "scheduled"
        clock.advance(60)
        await drain(app)
        assert (await job.record()).status == "waiting"
        await app.send_event(job, "approved", {"by": "ada"})
        await drain(app)

        assert await job.result() == ["ada", "late"]


async def test_a_batch_job_cannot_wait(app: Backstay) -> None:
    @app.batch_job("many", max_size=2, max_attempts=1)
    async def many(payloads: list[int], ctx: BatchContext) -> list[Any]:
        found = []
        for wait in (ctx.item(0).sleep("nap", 1), ctx.item(0).wait_for_event("approved")):
            with pytest.raises(InvalidOption, match="a batch job cannot wait"):
                await wait
            found.append(1)
        return [found] * len(payloads)

    job = await app.submit("many", 1)
    await drain(app)

    assert await job.result() == [1, 1]


async def test_children_that_were_submitted_before_a_sleep_are_stored_with_it(
    app: Backstay, clock: ManualClock
) -> None:
    @app.job("part")
    async def part(payload: int) -> int:
        return payload

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> list[int]:
        await ctx.submit("part", 1)
        await ctx.sleep("nap", 60)
        await ctx.submit("part", 2)
        await ctx.wait_for_event("go")
        children = await ctx.wait_for_children()
        return sorted([child.result async for child in children])

    job = await parent.submit(1)
    await drain(app)
    assert (await job.record()).child_count == 1
    clock.advance(60)
    await drain(app)
    assert (await job.record()).waits_for == "event"
    await app.send_event(job, "go")
    await drain(app)

    assert await job.result() == [1, 2]


async def test_a_retry_gets_past_what_was_recorded_unless_it_forgets(app: Backstay, clock: ManualClock) -> None:
    @app.job("order", max_attempts=1)
    async def order(payload: int, ctx: Context) -> str:
        await ctx.sleep("nap", 60)
        found = await ctx.wait_for_event("approved")
        if found == "bad":
            raise ValueError(found)
        return str(found)

    job = await order.submit(1)
    await drain(app)
    clock.advance(60)
    await app.send_event(job, "approved", "bad")
    await drain(app)
    assert (await job.record()).status == "failed"
    await job.retry()
    await drain(app)
    assert (await job.record()).status == "failed"

    await job.retry(forget_steps=True)
    await drain(app)
    assert (await job.record()).status == "scheduled"
    clock.advance(60)
    await drain(app)
    assert (await job.record()).status == "waiting"
    await app.send_event(job, "approved", "good")
    await drain(app)
    assert await job.result() == "good"


async def test_a_job_that_waits_can_be_cancelled(app: Backstay) -> None:
    @app.job("order")
    async def order(payload: int, ctx: Context) -> None:
        await ctx.wait_for_event("approved", key="k")

    job = await order.submit(1)
    await drain(app)
    await job.cancel(reason="no longer wanted")

    assert (await job.record()).status == "cancelled"
    assert (await app.send_event(key="k", name="approved")).delivery == "kept"


async def test_statements_and_rows_belong_after_the_last_wait(app: Backstay) -> None:
    @app.job("order", max_attempts=1)
    async def order(payload: int, ctx: Context) -> str:
        async with ctx.transaction() as tx:
            tx.execute("SELECT 1")
        with pytest.raises(InvalidOption, match="put them after the last"):
            await ctx.sleep("nap", 60)
        return "told"

    job = await order.submit(1)
    await drain(app)

    assert await job.result() == "told"


@pytest.mark.parametrize("span", [-1, timedelta(days=100_000)])
async def test_a_span_has_bounds(app: Backstay, span: Any) -> None:
    @app.job("order", max_attempts=1)
    async def order(payload: int, ctx: Context) -> str:
        with pytest.raises(InvalidOption, match="ten years"):
            await ctx.sleep("nap", span)
        return "told"

    job = await order.submit(1)
    await drain(app)

    assert await job.result() == "told"
