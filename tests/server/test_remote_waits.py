"""Handlers of remote workers record steps, sleep and wait for events, as those next to the store do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, EventTimeout
from backstay.client import BlockingRemoteContext, Client, RemoteContext, RemoteWorker
from tests.server.far import listening, reached
from tests.support.eventually import eventually


@pytest.fixture
def app(tmp_path: Path) -> Backstay:
    return Backstay(f"sqlite:///{tmp_path}/jobs.db", poll_interval=0.05)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_remote_handler_goes_on_after_its_steps_sleeps_and_events(app: Backstay, kind: str) -> None:
    ran: list[str] = []
    async with app, listening(app) as url, Client(url) as client:
        worker = RemoteWorker(client, worker_id="far-1")
        if kind == "async":

            @worker.job("order")
            async def order(payload: int, ctx: RemoteContext) -> list[Any]:
                ran.append("top")
                await ctx.step("charge", ran.append, "charge")
                await ctx.sleep("nap", 0.05)
                found = await ctx.wait_for_event("approved", type=dict)
                try:
                    await ctx.wait_for_event("approved", timeout=0)
                except EventTimeout:
                    return [found["by"], await ctx.once("plain", lambda: 7)]
                return []
        else:

            @worker.job("order")
            def threaded(payload: int, ctx: BlockingRemoteContext) -> list[Any]:
                ran.append("top")
                ctx.step("charge", ran.append, "charge")
                ctx.sleep("nap", 0.05)
                found = ctx.wait_for_event("approved", type=dict)
                try:
                    ctx.wait_for_event("approved", timeout=0)
                except EventTimeout:
                    return [found["by"], ctx.once("plain", lambda: 7)]
                return []

        async with worker:
            job_id = (await client.submit("order", 1)).job_id

            async def waits() -> bool:
                await app.store.promote(app.clock.now(), 10)  # there is no worker here that does maintenance
                return (await app.get(job_id)).waits_for == "event"

            await eventually(waits, 30)
            sent = await client.send_event(job_id, "approved", {"by": "ada"}, event_id="click")
            assert (await client.send_event(job_id, "approved", {}, event_id="click"))["delivery"] == "repeated"
            assert sent["delivery"] == "recorded"
            assert await client.result(job_id, timeout=30) == ["ada", 7]

        assert ran.count("charge") == 1
        assert ran.count("top") >= 3
        job = await app.get(job_id)
        assert (job.failures, job.row.snoozes) == (0, 0)
        steps = [(each["kind"], each["name"]) for each in await client.steps(job_id)]
        assert steps == [
            ("step", "charge"), ("sleep", "nap"), ("event", "approved"), ("event", "approved (2)"), ("step", "plain"),
        ]  # fmt: skip


async def test_only_the_holder_of_a_claim_records_and_waits(app: Backstay) -> None:
    @app.job("order")
    async def order(payload: int) -> None: ...

    async with app, reached(app) as far:
        await far.register("order")
        job = await app.submit("order", 1)
        job_id, token = await far.one()
        asked: dict[str, dict[str, Any]] = {
            "step": {"name": "charge", "record": True, "answer": 1},
            "wait": {"name": "approved", "event": "approved"},
            "outcome": {"outcome": "wait_for_event", "name": "approved", "seen": 0},
        }
        assert (await far.say("outcome", job_id, token, outcome="sleep", name="unheard")).status_code == 422
        await job.cancel()

        answers = [(await far.say(verb, job_id, token, **body)).status_code for verb, body in asked.items()]

        assert answers[:2] == [409, 409]
        assert answers[2] in (409, 422)
        assert await app.steps(job_id) == []
