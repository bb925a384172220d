"""Check that the server is up, and whether it can work: cheap, honest, and nothing besides."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from backstay import limits
from backstay.errors import SchemaMismatch, StoreFull, StoreUnavailable
from backstay.testing import ManualClock
from tests.server.gated import served


async def test_health_says_nothing_but_that(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await server.key("admin")
        async with server.client_at("10.0.0.7") as stranger:
            for path in ("/healthz", "/readyz"):
                answer = await stranger.get(path)
                assert (answer.status_code, answer.content) == (200, b'{"status":"ok"}')
                assert answer.headers["Cache-Control"] == "no-store"
                assert (await stranger.head(path)).status_code == 200


@pytest.mark.parametrize("error", [StoreUnavailable("at db.internal:5432"), SchemaMismatch("schema is at 3")])
async def test_a_server_whose_store_is_away_is_up_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock=clock) as server:
        assert (await server.client.get("/readyz")).status_code == 200

        async def away() -> Any:
            raise error

        monkeypatch.setattr(server.app.store, "queues", away)
        clock.advance(1)
        answer = await server.client.get("/readyz")
        assert (answer.status_code, answer.content) == (503, b'{"status":"unavailable"}')
        assert (await server.client.get("/healthz")).status_code == 200


async def test_a_store_that_takes_no_write_is_ready_and_a_submit_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any) -> Any:
        raise StoreFull("the disk is full")

    async with served(tmp_path) as server:
        monkeypatch.setattr(server.app.store, "insert", full)
        assert (await server.client.post("/jobs/anything", json={})).status_code == 507
        assert (await server.client.get("/readyz")).status_code == 200


async def test_a_store_that_does_not_answer_in_time_is_not_ready_and_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READY_SECONDS", 0.05)
    async with served(tmp_path) as server:
        asked = 0

        async def hang() -> Any:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()

        monkeypatch.setattr(server.app.store, "queues", hang)
        answers = await asyncio.gather(*(server.client.get("/readyz") for _ in range(10)))
        assert {answer.status_code for answer in answers} == {503}
        assert asked == 1  # however many ask


async def test_an_app_that_is_not_open_is_not_ready(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await server.app.__aexit__()
        assert (await server.client.get("/readyz")).status_code == 503
        assert (await server.client.get("/healthz")).status_code == 200
        await server.app.__aenter__()
