"""Streams of events: what happens to a job is told as it happens, once, to the end, also to those who come again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from backstay import Backstay, Context
from backstay.server import watch
from backstay.server.routes import streams
from tests.server.far import Far, Served, listening
from tests.support.eventually import eventually


class Heard(NamedTuple):
    name: str
    event_id: str
    said: dict[str, Any]


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    async with Backstay(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


@pytest.fixture
async def url(app: Backstay) -> AsyncIterator[Served]:
    async with listening(app) as url:
        yield url


@pytest.fixture
async def http(url: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        yield http


async def events(answer: httpx.Response) -> AsyncIterator[Heard]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield Heard(fields["event"], fields["id"], json.loads(fields["data"]))
            fields = {}


async def heard(http: httpx.AsyncClient, path: str, after: str | None = None) -> list[Heard]:
    """All of a stream, to its end."""
    headers = {} if after is None else {"Last-Event-ID": after}
    async with http.stream("GET", path, headers=headers) as answer:
        answer.raise_for_status()
        return [each async for each in events(answer)]


async def test_a_stream_tells_of_states_progress_and_lines_to_the_end(app: Backstay, http: httpx.AsyncClient) -> None:
    far = Far(http)
    await far.register("embedding")
    job = await app.submit("embedding", {})
    async with http.stream("GET", f"/jobs/{job.job_id}/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no", "a proxy that collects a stream delays every event"
        told = events(answer)
        first = await anext(told)
        assert (first.name, first.said["status"]) == ("state", "pending")
        held = await far.one()
        await far.say("progress", *held, progress=0.5, stage="half", logs=[{"message": "half way"}])
        await far.say("complete", *held, logs=[{"message": "done"}])
        rest = [each async for each in told]

    states = [each.said["status"] for each in rest if each.name == "state"]
    assert states == ["processing", "completed"]
    assert [each.said["message"] for each in rest if each.name == "log"] == ["half way", "done"]
    assert (rest[-1].name, rest[-1].said["status"]) == ("end", "completed")
    assert rest[-2].said == {"job_id": job.job_id, "progress": 1.0, "stage": "complete"}


async def test_a_stream_goes_on_after_the_last_event_that_was_heard(app: Backstay, http: httpx.AsyncClient) -> None:
    far = Far(http)
    await far.register("embedding")
    job = await app.submit("embedding", {})
    held = await far.one()
    await far.say("progress", *held, logs=[{"message": "one"}, {"message": "two"}])
    async with http.stream("GET", f"/jobs/{job.job_id}/stream") as answer:
        told = events(answer)
        before = [await anext(told) for _ in range(2)]
    assert [(each.name, each.said.get("message")) for each in before] == [("state", None), ("log", "one")]
    await far.say("fail", *held, retry=False, logs=[{"message": "three"}])

    after = await heard(http, f"/jobs/{job.job_id}/stream", before[-1].event_id)

    assert [each.said["status"] for each in after if each.name == "state"] == ["failed"]
    assert [each.said["message"] for each in after if each.name == "log"] == ["two", "three"]
    ended = await http.get(f"/jobs/{job.job_id}/stream", headers={"Last-Event-ID": after[-1].event_id})
    assert ended.status_code == 204, "a browser comes again and again, until it is told not to"


async def test_an_id_that_no_stream_gave_begins_at_the_beginning(app: Backstay, http: httpx.AsyncClient) -> None:
    await Far(http).register("embedding")
    job = await app.submit("embedding", {})
    await app.cancel(job.job_id)
    for nonsense in ("0", "x.y.z.1", "9" * 90, "1..1.2", "-1.0.0.0"):
        told = await heard(http, f"/jobs/{job.job_id}/stream", nonsense)
        assert [each.name for each in told] == ["state", "progress", "end"]


async def test_live_progress_comes_from_memory(
    app: Backstay, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durable progress is written once a second; a stream beside the worker does not wait for that."""
    monkeypatch.setattr(type(app.store), "record_seconds", 3600.0)
    monkeypatch.setattr(watch, "LIVE_SECONDS", 0.01)
    started, seen = asyncio.Event(), asyncio.Event()

    @app.job("painting")
    async def painting(payload: dict[str, str], ctx: Context) -> None:
        started.set()
        await ctx.progress(0.25, stage="sky")
        await seen.wait()

    async with app.worker(poll_interval=0.05):
        job = await app.submit("painting", {})
        await started.wait()  # a stream that found it pending would look again in an hour
        async with http.stream("GET", f"/jobs/{job.job_id}/stream") as answer:
            async for each in events(answer):
                if each.name == "progress" and each.said["progress"] == 0.25:
                    assert each.said["stage"] == "sky"
                    seen.set()
                if each.name == "end":
                    break
    assert seen.is_set()


async def test_all_streams_of_a_job_share_one_look(
    app: Backstay, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Far(http).register("embedding")
    job = await app.submit("embedding", {})
    monkeypatch.setattr(type(app.store), "record_seconds", 3600.0)
    looks = 0
    get = app.get

    async def counted(job_id: str) -> Any:
        nonlocal looks
        looks += 1
        return await get(job_id)

    async def end_of(answer: httpx.Response) -> str:
        return [each.name async for each in events(answer)][-1]

    async with asyncio.timeout(20):
        opened = [http.stream("GET", f"/jobs/{job.job_id}/stream") for _ in range(20)]
        answers = [await each.__aenter__() for each in opened]
        ends = [asyncio.create_task(end_of(answer)) for answer in answers]
        monkeypatch.setattr(app, "get", counted)
        await app.cancel(job.job_id)
        assert await asyncio.gather(*ends) == ["end"] * 20
        for each in opened:
            await each.__aexit__(None, None, None)
    assert looks <= 3, "the one that cancelled, and one or two of the watch"


async def test_a_tree_is_told_of_as_a_whole(app: Backstay, http: httpx.AsyncClient) -> None:
    @app.job("leaf")
    async def leaf(payload: dict[str, int]) -> None: ...

    @app.job("root")
    async def root(payload: dict[str, int], ctx: Context) -> None:
        if not ctx.children:
            for number in range(3):
                await ctx.submit(leaf, {"number": number}, stage=f"part {number}")
            await ctx.wait_for_children()

    job = await app.submit("root", {})
    async with http.stream("GET", f"/jobs/{job.job_id}/tree/stream") as answer, app.worker(poll_interval=0.05):
        told = [each async for each in events(answer)]

    last = {each.said["job_id"]: each.said for each in told if each.name == "state"}
    assert {each["status"] for each in last.values()} == {"completed"}
    assert sorted(str(each["job_stage"]) for each in last.values()) == ["None", "part 0", "part 1", "part 2"]
    assert told[-1].name == "end"
    progress = [each.said for each in told if each.name == "progress"]
    assert progress[-1] == {"job_id": job.job_id, "jobs": 4, "ended": 4, "progress": 1.0}
    again = await http.get(f"/jobs/{job.job_id}/tree/stream", headers={"Last-Event-ID": told[-1].event_id})
    assert again.status_code == 204


async def test_a_silent_stream_says_that_it_lives(
    app: Backstay, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(watch, "CHECK_SECONDS", 0.02)
    await Far(http).register("embedding")
    job = await app.submit("embedding", {})
    async with http.stream("GET", f"/jobs/{job.job_id}/stream") as answer, asyncio.timeout(10):
        async for line in answer.aiter_lines():
            if line == ":":
                break


async def test_one_stream_too_many_is_refused_in_words(
    app: Backstay, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STREAMS_MAX", 1)
    await Far(http).register("embedding")
    job = await app.submit("embedding", {})
    async with http.stream("GET", f"/jobs/{job.job_id}/stream") as answer:
        told = events(answer)  # kept: a connection ends with whoever reads from it
        await anext(told)
        refused = await http.get(f"/jobs/{job.job_id}/stream")
    assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many-streams")
    assert int(refused.headers["retry-after"]) > 0


async def test_one_key_gets_its_share_of_streams_and_leaves_the_others_theirs(
    app: Backstay, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEY_STREAMS_MAX", 1)
    await Far(http).register("embedding")
    job = await app.submit("embedding", {})
    greedy, other = [{"X-API-Key": (await app.create_key(name, ["read"])).text} for name in ("greedy", "other")]
    path = f"/jobs/{job.job_id}/stream"
    async with http.stream("GET", path, headers=greedy) as answer:
        told = events(answer)
        await anext(told)
        refused = await http.get(path, headers=greedy)
        assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many-streams")
        assert "this key has 1 streams" in refused.json()["detail"]
        async with http.stream("GET", path, headers=other) as others:
            assert others.status_code == 200
    await answer.aclose()

    async def has_a_place_again() -> bool:
        async with http.stream("GET", path, headers=greedy) as answer:
            return answer.status_code == 200

    await eventually(has_a_place_again)


async def test_a_stream_that_came_without_a_key_ends_when_keys_are_needed(
    app: Backstay, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr("backstay.server.auth.SECONDS", 0.05)
    await Far(http).register("embedding")
    job = await app.submit("embedding", {})
    async with http.stream("GET", f"/jobs/{job.job_id}/stream") as answer, asyncio.timeout(10):
        told = events(answer)
        await anext(told)
        await app.create_key("first", ["admin"])
        assert [each.name async for each in told] in ([], ["progress"])


async def test_a_stream_ends_when_its_key_is_revoked(
    app: Backstay, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr("backstay.server.auth.SECONDS", 0.05)
    await Far(http).register("embedding")
    job = await app.submit("embedding", {})
    key = await app.create_key("eyes", ["read"])
    headers = {"Authorization": f"Bearer {key.text}"}
    async with http.stream("GET", f"/jobs/{job.job_id}/stream", headers=headers) as answer, asyncio.timeout(10):
        told = events(answer)
        await anext(told)
        await app.revoke_key(key.key.key_id)
        assert [each.name async for each in told] in ([], ["progress"])


async def test_a_stream_of_anothers_job_is_one_of_no_job(app: Backstay, http: httpx.AsyncClient) -> None:
    await Far(http).register("embedding")
    job = await app.submit("embedding", {})
    key = await app.create_key("mail", ["read"], queues=["mail"])
    headers = {"Authorization": f"Bearer {key.text}"}
    for path in (f"/jobs/{job.job_id}/stream", f"/jobs/{job.job_id}/tree/stream"):
        assert (await http.get(path, headers=headers)).status_code == 404


async def test_nobody_looks_once_the_last_stream_has_gone(app: Backstay, http: httpx.AsyncClient) -> None:
    await Far(http).register("embedding")
    job = await app.submit("embedding", {})
    before = asyncio.all_tasks()

    async def is_quiet() -> bool:
        return not any("Watches" in repr(task) for task in asyncio.all_tasks() - before)

    async with http.stream("GET", f"/jobs/{job.job_id}/stream") as answer:
        told = events(answer)  # kept: a connection ends with whoever reads from it
        await anext(told)
        assert not await is_quiet()
    await eventually(is_quiet)
