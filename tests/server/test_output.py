"""The output of a job over HTTP: read in pages, streamed live, continued after a break, appended to from afar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay import Backoff, Backstay, Context, OutputTooLarge
from backstay.client import BlockingRemoteContext, Client, RemoteContext, RemoteWorker
from backstay.core import output as core_output
from backstay.server import remote_settle
from tests.server.far import Far, Served, listening
from tests.server.test_streams import Heard, events

STREAM = {"Accept": "text/event-stream"}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("tell", backoff=Backoff(base=0.01, jitter=0))
    async def tell(payload: list[Any], ctx: Context) -> None:
        for value in payload:
            await ctx.stream(value)
        if ctx.attempt == 1 and payload[0] == "again":
            raise ValueError("once more")

    async with app:
        yield app


@pytest.fixture
async def url(app: Backstay) -> AsyncIterator[Served]:
    async with listening(app) as url:
        yield url


@pytest.fixture
async def http(url: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        yield http


async def heard(http: httpx.AsyncClient, job_id: str, after: str | None = None) -> list[Heard]:
    headers = STREAM if after is None else {**STREAM, "Last-Event-ID": after}
    async with http.stream("GET", f"/jobs/{job_id}/output", headers=headers) as answer:
        answer.raise_for_status()
        return [each async for each in events(answer)]


async def test_a_page_of_output_is_json_and_continues_behind_its_cursor(app: Backstay, http: httpx.AsyncClient) -> None:
    async with app.worker():
        job = await app.submit("tell", ["a", {"b": 1}, "c"])
        await job.wait(timeout=20)
    path = f"/jobs/{job.job_id}/output"
    page = (await http.get(path, params={"limit": 2})).raise_for_status().json()
    assert [item["value"] for item in page["items"]] == ["a", {"b": 1}]
    assert (page["job_id"], page["more"], page["next"]) == (job.job_id, True, page["items"][1]["cursor"])
    rest = (await http.get(path, params={"after": page["next"]})).json()
    assert [(item["value"], item["number"], item["attempt"]) for item in rest["items"]] == [("c", 3, 1)]
    assert rest["more"] is False

    refused = await http.get(path, params={"after": "1.0.x"})
    assert (refused.status_code, "is not a place in an output" in refused.json()["detail"]) == (422, True)


async def test_a_stream_of_output_is_live_and_ends_with_the_job(app: Backstay, http: httpx.AsyncClient) -> None:
    far = Far(http)
    await far.register("write")
    job = await app.submit("write", None)
    async with http.stream("GET", f"/jobs/{job.job_id}/output", headers=STREAM) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = events(answer)
        held = await far.one()
        (await far.say("output", *held, first=1, entries=["Once ", "upon "])).raise_for_status()
        assert [(await anext(told)).said["value"] for _ in range(2)] == ["Once ", "upon "]
        (await far.say("output", *held, first=3, entries=["a time"])).raise_for_status()
        last = await anext(told)
        assert (last.name, last.said["value"], last.said["number"]) == ("output", "a time", 3)
        await far.say("complete", *held)
        end = await anext(told)
        assert (end.name, end.said["status"]) == ("end", "completed")

    assert [each.said.get("value") for each in await heard(http, job.job_id, last.event_id)] == [None]
    assert [each.name for each in await heard(http, job.job_id)] == ["output", "output", "output", "end"]
    gone = await http.get(f"/jobs/{job.job_id}/output", headers={**STREAM, "Last-Event-ID": end.event_id})
    assert gone.status_code == 204


async def test_two_streams_of_one_job_each_get_everything(app: Backstay, http: httpx.AsyncClient) -> None:
    async with app.worker():
        job = await app.submit("tell", list(range(500)))
        found = await asyncio.gather(*(heard(http, job.job_id) for _ in range(3)))
    for each in found:
        assert [event.said["value"] for event in each if event.name == "output"] == list(range(500))


async def test_a_reader_of_a_run_that_was_replaced_is_told_to_begin_again(
    app: Backstay, http: httpx.AsyncClient
) -> None:
    async with app.worker():
        job = await app.submit("tell", ["again", "b"])
        await job.wait(timeout=20)
    told = await heard(http, job.job_id, after="1.0.2")
    assert [each.name for each in told] == ["restarted", "output", "output", "end"]
    assert (told[0].said["attempt"], told[0].event_id) == (2, "1.0.2")
    assert [each.said["value"] for each in told[1:3]] == ["again", "b"]


async def test_a_job_without_output_streams_its_end(app: Backstay, http: httpx.AsyncClient) -> None:
    job = await app.submit("tell", [])
    await app.cancel(job.job_id)
    assert [(each.name, each.said["status"]) for each in await heard(http, job.job_id)] == [("end", "cancelled")]
    assert (await http.get(f"/jobs/{job.job_id}/output")).json() == {
        "job_id": job.job_id,
        "items": [],
        "next": None,
        "more": False,
    }


async def test_entries_from_afar_are_numbered_repeated_and_bounded(
    app: Backstay, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far(http)
    await far.register("write")
    job = await app.submit("write", None)
    held = await far.one()
    for _ in range(2):  # the second one is a repeat
        answer = await far.say("output", *held, first=1, entries=["a", "b"])
        assert (answer.status_code, answer.json()) == (200, {"job_id": job.job_id, "attempt": 1, "last": 2})
    gap = await far.say("output", *held, first=5, entries=["e"])
    assert (gap.status_code, gap.json()["detail"].endswith("is number 3")) == (409, True)
    forged = await far.say("output", held[0], "x" * len(held[1]), first=3, entries=["c"])
    assert forged.status_code in (403, 409)

    monkeypatch.setattr(remote_settle, "OUTPUT_ENTRIES_MAX", 2)
    full = await far.say("output", *held, first=3, entries=["c"])
    assert (full.status_code, full.json()["type"].rpartition("/")[2]) == (413, "output-too-large")

    await far.say("complete", *held)
    late = await far.say("output", *held, first=3, entries=["c"])
    assert late.status_code == 409
    assert [entry.value for entry in await app.output(job.job_id)] == ["a", "b"]


async def test_a_remote_worker_streams_from_coroutines_and_threads(app: Backstay, url: Served) -> None:
    async with Client(url) as client:
        worker = RemoteWorker(client)

        @worker.job("write")
        async def write(payload: list[Any], ctx: RemoteContext) -> int:
            for value in payload:
                await ctx.stream(value)
            return len(payload)

        @worker.job("block")
        def block(payload: list[Any], ctx: BlockingRemoteContext) -> int:
            for value in payload:
                ctx.stream(value)
            return len(payload)

        async with worker:
            for name in ("write", "block"):
                values = list(range(3_000))  # more than one request takes
                job = await client.submit(name, values)
                async with asyncio.timeout(20):
                    assert [entry["value"] async for entry in job.stream()] == values
                    assert [entry["value"] async for entry in client.output(job.job_id)] == values
                    assert await job.result() == len(values)


async def test_a_remote_handler_that_streams_too_much_fails_with_advice(
    app: Backstay, url: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_output, "OUTPUT_ENTRIES_MAX", 3)
    async with Client(url) as client:
        worker = RemoteWorker(client)

        @worker.job("write")
        async def write(payload: None, ctx: RemoteContext) -> None:
            for _ in range(4):
                await ctx.stream("x")

        async with worker:
            job = await client.submit("write", max_attempts=1)
            ended = await app.wait(job.job_id, timeout=20)
    assert (ended.status, ended.row.error_type) == ("failed", OutputTooLarge.__name__)
    assert len(await app.output(job.job_id)) == 3
