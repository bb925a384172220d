"""Live pages: a stream says that something changed, to those who may know, and ends with the server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from backstay.dashboard import live
from backstay.errors import StoreUnavailable
from backstay.server.auth import Principal, local
from tests.server.gated import Served, listening, served
from tests.support.eventually import eventually

PATIENCE = 20.0
CHANGED = "event: changed"


@asynccontextmanager
async def stream(address: str, topic: str = "all", **headers: str) -> AsyncIterator[AsyncIterator[str]]:
    async with (
        httpx.AsyncClient(base_url=address, timeout=PATIENCE) as client,
        client.stream("GET", "/dashboard/live", params={"topic": topic}, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-accel-buffering"] == "no", "a proxy that collects a stream delays every hint"
        yield (line async for line in answer.aiter_lines() if line)


async def until_changed(lines: AsyncIterator[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        async for line in lines:
            if line == CHANGED:
                return
    raise AssertionError("the stream ended")


async def test_a_page_of_everything_hears_of_a_job_that_came(tmp_path: Path) -> None:
    async with served(tmp_path) as server, listening(server.gate) as address, stream(address) as lines:
        assert await anext(lines) == "retry: 2000"
        await server.app.submit("letter", {"to": "anna"})
        await until_changed(lines)


async def test_a_page_of_a_job_hears_of_that_job(tmp_path: Path) -> None:
    async with served(tmp_path) as server, listening(server.gate) as address:
        job = await server.app.submit("letter", {"to": "anna"})
        for topic in (f"job:{job.job_id}", f"tree:{job.job_id}"):
            async with stream(address, topic) as lines:
                await anext(lines)
                await watching(server)
                await server.app.reprioritise(job.job_id, 60 if topic.startswith("job") else 70)
                await until_changed(lines)


async def test_streams_end_when_the_server_stops(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        async with listening(server.gate) as address, stream(address) as lines:
            await anext(lines)
            server.gate.end_streams()
            async with asyncio.timeout(PATIENCE):
                assert [line async for line in lines] == []
        assert server.gate.inner.state.shared[live.watches].streams == 0  # type: ignore[attr-defined]


async def test_there_are_so_many_streams_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LIVE_PAGES_MAX", 1)
    async with served(tmp_path) as server, listening(server.gate) as address:
        async with stream(address) as lines, httpx.AsyncClient(base_url=address) as client:
            await anext(lines)
            assert (await client.get("/dashboard/live")).status_code == 429
        await gone(server)
        async with stream(address) as lines:
            await anext(lines)


async def test_one_key_gets_its_share_of_live_pages_and_leaves_the_others_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "KEY_LIVE_PAGES_MAX", 1)
    async with served(tmp_path) as server, listening(server.gate) as address:
        greedy, other = await server.key("read"), await server.key("read")
        async with stream(address, **greedy) as lines, httpx.AsyncClient(base_url=address) as client:
            await anext(lines)
            assert (await client.get("/dashboard/live", headers=greedy)).status_code == 429
            async with stream(address, **other) as others:
                await anext(others)
        await gone(server)


async def test_a_live_page_ends_when_its_key_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.server.watch.CHECK_SECONDS", 0.05)
    async with served(tmp_path) as server, listening(server.gate) as address:
        key = await server.key("read")
        [made] = await server.app.api_keys()
        async with stream(address, **key) as lines:
            await anext(lines)
            await server.app.revoke_key(made.key_id)
            server.gate.inner.state.keyring.stale()  # type: ignore[attr-defined]
            async with asyncio.timeout(PATIENCE):
                assert CHANGED not in [line async for line in lines]
        await gone(server)


async def test_those_who_follow_the_same_share_one_watch_and_it_ends_with_the_last(tmp_path: Path) -> None:
    async with served(tmp_path) as server, listening(server.gate) as address:
        async with stream(address) as one, stream(address) as other:
            await anext(one), await anext(other)
            assert len(server.gate.inner.state.shared[live.watches]._watches) == 1  # type: ignore[attr-defined]
            await server.app.submit("letter", {"to": "anna"})
            await asyncio.gather(until_changed(one), until_changed(other))
        await gone(server)


async def test_a_key_of_some_queues_hears_nothing_of_others(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        app = server.app
        some = Principal("mail", frozenset({"read"}), ("mail*",))
        before = await live._everything(app, some), await live._everything(app, local("dashboard"))
        await app.submit("anything", {})
        await app.pause_queue("default")
        assert await live._everything(app, some) == before[0]
        assert await live._everything(app, local("dashboard")) != before[1]
        await app.submit("letter", {"to": "anna"})
        assert await live._everything(app, some) != before[0]


async def test_a_store_that_is_away_ends_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as server, listening(server.gate) as address, stream(address) as lines:
        await anext(lines)
        counters, asked = server.app.store.counters, asyncio.Event()

        async def away(since: int, until: int, **how: object) -> object:
            asked.set()
            raise StoreUnavailable("the store is away")

        monkeypatch.setattr(server.app.store, "counters", away)
        async with asyncio.timeout(PATIENCE):
            await asked.wait()
        monkeypatch.setattr(server.app.store, "counters", counters)
        await server.app.submit("letter", {"to": "anna"})
        await until_changed(lines)


async def test_the_stream_of_a_job_ends_when_the_job_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as server, listening(server.gate) as address:
        job = await server.app.submit("letter", {"to": "anna"})
        async with stream(address, f"job:{job.job_id}") as lines:
            await anext(lines)

            async def removed(job_ids: object) -> list[None]:
                return [None]

            monkeypatch.setattr(server.app.store, "get", removed)
            async with asyncio.timeout(PATIENCE):
                assert [line async for line in lines] == []


async def test_signals_are_no_change_to_a_key_that_sees_some_queues(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        some, everyone = Principal("mail", frozenset({"read"}), ("mail*",)), local("dashboard")
        looks = [[await live._everything(server.app, who, signals) for signals in (1, 2)] for who in (some, everyone)]
        assert looks[0][0] == looks[0][1]
        assert looks[1][0] != looks[1][1]


async def watching(server: Served) -> None:
    """Until the watch has looked for the first time: what happens after that is a change."""
    watches = server.gate.inner.state.shared[live.watches]._watches  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE):
        for watch in watches.values():
            await watch.wait(0, PATIENCE)


async def gone(server: Served) -> None:
    """Until the server has seen that the browser has left."""
    shared = server.gate.inner.state.shared[live.watches]  # type: ignore[attr-defined]

    async def none_left() -> bool:
        return not shared.streams and not shared._watches

    await eventually(none_left, PATIENCE)
