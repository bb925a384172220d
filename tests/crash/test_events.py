"""Killed while it sends an event to a key, or while its job begins or stops to wait for one: each event is received by
one job, once."""

import asyncio
import secrets
import signal
from pathlib import Path

import pytest

from backstay import Backstay
from tests.campaigns.processes.events import KEY, app_of
from tests.crash.test_rows import process
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres

LISTEN_POINTS = ("listen_for.uncommitted", "listen_for.committed")
STOP_POINTS = ("stop_listening.uncommitted", "stop_listening.committed")
SEND_POINTS = {"send.uncommitted": "recorded", "send.committed": "repeated"}  # and what the next try comes to
SEND = """
import asyncio, sys
from backstay import Backstay
async def main():
    async with Backstay(sys.argv[1]) as app:
        await app.send_event(name="paid", payload="first", key=sys.argv[2], event_id="click")
asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.url(schema=f"events_{secrets.token_hex(4)}")


async def work(url: str, failpoints: str = "") -> int:
    return await asyncio.to_thread(process, url, failpoints, "-m", "tests.campaigns.processes.events", url)


async def waits(app: Backstay, job_id: str) -> bool:
    return (await app.get(job_id)).status == "waiting"


@pytest.mark.parametrize("point", LISTEN_POINTS)
async def test_a_job_that_is_killed_as_it_begins_to_listen_receives_one_event_and_leaves_the_next(
    url: str, point: str
) -> None:
    async with app_of(url) as app:
        await app.send_event(name="paid", payload="first", key=KEY, event_id="first")
        await app.send_event(name="paid", payload="second", key=KEY, event_id="second")
        job = await app.submit("ask")

        assert await work(url, f"{point}=kill9@1") == -signal.SIGKILL
        assert await work(url) == 0

        assert await job.result(timeout=10) == "first"
        other = await app.submit("ask")
        assert await work(url) == 0
        assert await other.result(timeout=10) == "second"


@pytest.mark.parametrize("point", STOP_POINTS)
async def test_a_job_that_is_killed_as_it_stops_to_listen_leaves_later_events_to_others(url: str, point: str) -> None:
    async with app_of(url) as app:
        late = await app.submit("ask", 0.1)

        assert await work(url, f"{point}=kill9@1") == -signal.SIGKILL
        assert await work(url) == 0

        assert await late.result(timeout=10) == "nothing"
        sent = await app.send_event(name="paid", payload="first", key=KEY)
        assert sent.delivery == "kept"
        other = await app.submit("ask")
        assert await work(url) == 0
        assert await other.result(timeout=10) == "first"


@pytest.mark.parametrize("point", SEND_POINTS)
async def test_an_event_whose_sender_is_killed_is_received_once_when_it_is_sent_again(url: str, point: str) -> None:
    async with app_of(url) as app:
        job = await app.submit("ask")
        async with app.worker(poll_interval=0.1):
            await eventually(lambda: waits(app, job.job_id), 30)
        killed = await asyncio.to_thread(process, url, f"{point}=kill9@1", "-c", SEND, url, KEY)
        assert killed == -signal.SIGKILL

        again = await app.send_event(name="paid", payload="first", key=KEY, event_id="click")
        assert again.delivery == SEND_POINTS[point]
        assert await work(url) == 0

        assert await job.result(timeout=10) == "first"
        later = await app.submit("ask", 0.1)
        assert await work(url) == 0
        assert await later.result(timeout=10) == "nothing"
