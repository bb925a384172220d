"""What a worker did in the last day outlives it: everywhere where workers are listed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from backstay import Backstay
from backstay.core import workers
from backstay.core.records import WorkerRow
from backstay.testing.conformance.factories import a_worker
from tests.server.far import reached
from tests.server.routes_stage import staged
from tests.support.eventually import eventually

Make = Callable[..., Backstay]


async def figures(app: Backstay) -> list[tuple[int, int]]:
    return [(each.row.ended, each.row.failed) for each in await app.former_workers()]


async def test_a_worker_that_stops_leaves_the_figures_of_all_its_attempts(app: Backstay) -> None:
    """Also of those since its last heartbeat, which was up to a third of a lease ago."""

    @app.job("works")
    async def works(payload: int) -> None:
        if payload == 2:
            raise ValueError

    async with app:
        async with app.worker(lease=3600) as worker:
            for number in range(3):
                await works.submit(number, max_attempts=1)

            async def all_ended() -> bool:
                return not await app.find(status="pending") and not await app.find(status="processing")

            await eventually(all_ended)
        assert await app.workers() == []
        [former] = await app.former_workers()
        assert (former.row.worker_id, former.row.ended, former.row.failed) == (worker.worker_id, 3, 1)
        assert workers.last_day(former.row, app.clock.now()).average_ms is not None


async def test_a_worker_that_is_killed_leaves_the_figures_of_its_last_heartbeat(make_app: Make) -> None:
    app = make_app()
    async with app:
        process = await asyncio.create_subprocess_exec("sleep", "600")
        key = f"{workers._machine()}:{process.pid}:{workers._started(process.pid)}"
        await app.store.beat(a_worker("gone", process_key=key, ended=7, failed=2, heartbeat_at=app.clock.now()))
        process.kill()
        await process.wait()
        async with app.maintenance("server"):

            async def is_gone() -> bool:
                return await figures(app) == [(7, 2)]

            await eventually(is_gone)


async def test_a_remote_worker_leaves_the_figures_of_all_its_attempts(app: Backstay) -> None:
    async with app, reached(app) as far:
        await far.register("embedding")
        await app.submit("embedding", {})
        job_id, token = await far.one(wait_seconds=5)
        await far.say("complete", job_id, token)
        await far.heartbeat(state="stopped")
        [former] = await app.former_workers()
        assert (former.row.worker_id, former.row.ended) == ("far-1", 1)


async def test_those_that_left_are_listed_over_http_with_their_performance_and_only_to_who_sees_their_queues(
    tmp_path: Path,
) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")
    async with staged(app) as stage:
        now = app.clock.now()

        def made(name: str, *queues: str, **figures: int) -> WorkerRow:
            row = a_worker(name, started_at=now - 60_000_000, heartbeat_at=now, **figures)
            return msgspec.structs.replace(row, queues=queues, running=("01a1f0a0-8cb4-7001-a0ea-c482db1a0f6f",))

        for row in (
            made("mail", "mail", ended=3, failed=1, busy_micros=3_000),
            made("both", "mail", "secret", ended=9),
        ):
            await app.store.beat(row)
            await app.store.forget([row.worker_id], now)
        key = await stage.key("read")
        found = (await stage.ask("GET", "/workers?former=true", headers=key)).json()["items"]
        assert [(each["worker_id"], each["ended"], each["running"]) for each in found] == [
            ("both", 9, []),
            ("mail", 3, []),
        ]
        assert all(each["left_at"] for each in found)
        stats = (await stage.ask("GET", "/stats", headers=key)).json()["workers"]
        assert {each["worker_id"]: (each["completed"], each["failures"]) for each in stats} == {
            "both": (9, 0),
            "mail": (2, 1),
        }
        of_mail = (await app.create_key("mail", ["read"], queues=["mail"])).text
        found = (await stage.ask("GET", "/workers?former=true", headers={"X-API-Key": of_mail})).json()["items"]
        assert {each["worker_id"]: (each["ended"], each["queues"]) for each in found} == {
            "both": (None, ["mail"]),
            "mail": (3, ["mail"]),
        }
        of_other = (await app.create_key("other", ["read"], queues=["other"])).text
        found = (await stage.ask("GET", "/workers?former=true", headers={"X-API-Key": of_other})).json()["items"]
        assert found == []


async def test_the_command_and_the_dashboard_list_them(
    make_app: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    async with app, reached(app) as far:
        await app.store.beat(a_worker("host-9:12:ab", ended=1_234, failed=34, heartbeat_at=app.clock.now()))
        await app.store.forget(["host-9:12:ab"], app.clock.now())
        page = (await far.http.get("/dashboard/workers")).text
        assert "Left in the last 24 h" in page
        assert "1,200" in page.partition("Left in the last 24 h")[2]

    def command(*arguments: str) -> str:
        line = [sys.executable, "-m", "backstay", "workers", *arguments]
        env = {**os.environ, "BACKSTAY_URL": f"sqlite:///{tmp_path}/jobs.db"}
        return subprocess.run(line, capture_output=True, text=True, check=True, env=env).stdout

    assert "host-9" not in await asyncio.to_thread(command)
    assert "host-9:12:ab  1,234      34" in await asyncio.to_thread(command, "--all")
    assert '"left_at"' in await asyncio.to_thread(command, "--all", "--json")
