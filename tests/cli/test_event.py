"""backstay event: sends what a handler waits for; and show, which lists what a job has recorded."""

from __future__ import annotations

from typing import Any

from backstay import Backstay, Context
from backstay.testing import drain
from tests.cli.conftest import Cli, Queue


def run(queue: Queue, job_id: str | None = None) -> str:
    """Run what can run, with a handler that waits; return the job."""

    async def work(app: Backstay) -> str:
        async def order(payload: Any, ctx: Context) -> Any:
            await ctx.step("charge", lambda: "paid")
            return await ctx.wait_for_event("approved", key=payload)

        app.job("order")(order)
        found = job_id or (await app.submit("order", None)).job_id
        await drain(app)
        return found

    return str(queue.do(work))


def test_an_event_is_sent_once_and_the_job_shows_what_it_recorded(cli: Cli, queue: Queue) -> None:
    job_id = run(queue)
    shown = cli("show", job_id).out
    assert "Steps" in shown
    assert 'step  charge    "paid"' in shown
    assert "waiting for the event approved" in shown

    sent = cli("event", "approved", '{"by": "ada"}', "--job", job_id[:13], "--event-id", "click")
    again = cli("event", "approved", '{"by": "eve"}', "--job", job_id, "--event-id", "click", "--json")

    assert sent.out == f"click was recorded with job {job_id}\n"
    assert again.document["delivery"] == "repeated"
    run(queue, job_id)
    assert cli("show", job_id, "--json").document["result"] == {"by": "ada"}
    assert [each["kind"] for each in cli("show", job_id, "--json").document["steps"]] == ["step", "event"]


def test_an_event_for_a_key_is_kept_until_a_job_waits_for_it(cli: Cli, queue: Queue) -> None:
    ran = cli("event", "paid", "--key", "order:7", "--event-id", "e1")
    assert ran.out == "e1 is kept for the key order:7: no job waits for it yet\n"


def test_a_job_or_a_key_has_to_be_named(cli: Cli, queue: Queue) -> None:
    ran = cli("event", "paid")
    assert (ran.code != 0, "--job ID" in ran.err) == (True, True)
