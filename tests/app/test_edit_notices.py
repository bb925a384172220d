"""What a user is told when operating: in the handler, by those who wait, and by the check-up."""

from datetime import UTC, datetime

import pytest

from backstay import Backstay, Context, JobCancelled, JobFailed


async def test_a_handler_knows_the_schedule_and_the_tick_that_it_runs_for(app: Backstay) -> None:
    @app.job("tick", version=3)
    async def tick(payload: None, ctx: Context) -> list[str]:
        assert ctx.job.tick_at is not None
        return [str(ctx.job.schedule), ctx.job.tick_at.isoformat(), str(ctx.job.payload_version)]

    async with app:
        await app.schedule("often", "@every 1s", tick)
        next_at = (await app.schedules())[0].next_at or datetime.max.replace(tzinfo=UTC)
        async with app.worker():
            while (job_id := (await app.schedules())[0].last_job_id) is None:
                await app.check_up()
            name, at, version = await app.result(job_id, timeout=30)

    assert name == "often"
    assert datetime.fromisoformat(at) >= next_at
    assert version == "3"


@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_who_waits_for_a_job_that_was_archived_is_told_how_it_ended(app: Backstay, end: str) -> None:
    @app.job("end", max_attempts=1)
    async def handler(payload: None) -> None:
        raise ValueError("no")

    async with app:
        job = await handler.submit(None, delay=60 if end == "cancelled" else 0)
        if end == "cancelled":
            await app.cancel(job.job_id)
        else:
            async with app.worker():
                with pytest.raises(JobFailed):
                    await job.result(timeout=30)
        assert await app.purge(older_than=0) == 1

        with pytest.raises(JobCancelled if end == "cancelled" else JobFailed):
            await app.result(job.job_id, timeout=30)


async def test_the_check_up_counts_what_a_paused_queue_holds_over_all_types(app: Backstay) -> None:
    for name in ("one", "two"):
        app.job(name)(lambda payload: None)

    async with app:
        await app.pause_queue("default", by="ada")
        await app.submit_many([("one", None), ("one", None), ("two", None)])

        [finding] = [each for each in await app.check_up() if each.check == "queues"]

    assert finding.says == "paused: default (by ada, 3 pending)"
