"""drain, where two statements can run at once."""

import secrets

from backstay import Backoff, Backstay
from backstay.testing import ManualClock, drain
from tests.support.servers.postgres import Postgres


async def test_a_retry_that_is_due_is_run_by_the_next_drain_every_time(postgres: Postgres) -> None:
    clock = ManualClock()
    url = postgres.url(schema=f"draining_{secrets.token_hex(3)}", clock="caller")
    app = Backstay(url, clock=clock)

    @app.job("fail", max_attempts=100, backoff=Backoff(60, 1, jitter=0))
    async def fail(payload: None) -> None:
        raise OSError

    async with app:
        await fail.submit(None)
        for attempt in range(1, 31):  # it was a race, lost about once in three drains
            assert [job.attempt for job in await drain(app)] == [attempt]
            clock.advance(60)
