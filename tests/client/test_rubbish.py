"""A remote worker between handlers that report rubbish, and a server or a proxy that answers it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay import Backstay, Cancel, JobFailed, Snooze
from backstay.client import BlockingRemoteContext, Client, RemoteContext, RemoteWorker, link
from backstay.errors import ConfigurationError, StoreUnavailable
from tests.server.far import Served, listening
from tests.support.eventually import eventually
from tests.support.hostile_jobs import HOSTILE


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db", lease=3)
    async with app:
        yield app


@pytest.fixture
async def url(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(link, "AGAIN_SECONDS", 0.02)
    monkeypatch.setattr("backstay.client.http.PAUSE_SECONDS", 0.001)
    async with listening(app) as url:
        yield url


class Odd(httpx.AsyncHTTPTransport):
    """Answers the first requests of a path itself, each with what is next in line."""

    answers: dict[str, list[httpx.Response]]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for end, waiting in self.answers.items():
            if waiting and request.url.path.endswith(end):
                return waiting.pop(0)
        return await super().handle_async_request(request)


def odd(answers: dict[str, list[httpx.Response]]) -> Callable[[], httpx.AsyncClient]:
    class Made(Odd):
        pass

    Made.answers = answers
    return lambda: httpx.AsyncClient(transport=Made())


def page(status: int) -> httpx.Response:
    """As a proxy answers whose server is away."""
    return httpx.Response(status, headers={"content-type": "text/html"}, text="<h1>Not here</h1>")


def problem(status: int, slug: str) -> httpx.Response:
    document = {"type": f"/problems/{slug}", "title": "No", "status": status, "detail": "not now"}
    return httpx.Response(status, headers={"content-type": "application/problem+json"}, json=document)


async def test_what_a_handler_reports_never_costs_it_its_result(app: Backstay, url: Served) -> None:
    async with Client(url) as client:
        worker = RemoteWorker(client)

        def reports(ctx: Any) -> None:
            ctx.log.info("x" * 1_000_000)
            ctx.log.info("nul \0")
            for _ in range(500):
                ctx.log.warning("y" * 10_000)
            ctx.log.log(25, "a level of its own")
            ctx.metric("loss", float("nan"))
            ctx.metric("nul \0, half a pair \ud800 and " + "z" * 1_000, 1e308)
            ctx.metric("m" * 10, 2)

        @worker.job("async")
        async def coroutine(payload: None, ctx: RemoteContext) -> str:
            reports(ctx)
            await ctx.progress(float("inf"), stage="\0\udfff" + "s" * 10_000)
            return "done"

        @worker.job("thread")
        def in_thread(payload: None, ctx: BlockingRemoteContext) -> str:
            reports(ctx)
            ctx.progress(-7, stage="s" * 10_000)
            return "done"

        async with worker:
            jobs = [await app.submit(name) for name in ("async", "thread")]
            assert [await job.result(timeout=20) for job in jobs] == ["done", "done"]
    for job in [await app.get(each.job_id) for each in jobs]:
        assert job.metrics["m" * 10] == 2
        assert job.logs["entries"][-1]["message"].startswith("metric loss is nan")


async def test_reasons_and_errors_of_any_length_and_kind_arrive(app: Backstay, url: Served) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    raised: dict[str, BaseException] = {
        "snooze": Snooze(60, reason="r\0" * 5_000),
        "cancel": Cancel("r\ud800" * 5_000),
        "error": ValueError("e\0" * 100_000),
        "unspeakable": Unspeakable(),
        "nameless": type("", (Exception,), {})("x"),
        "exit": SystemExit(3),
    }
    async with Client(url) as client:
        worker = RemoteWorker(client)

        @worker.job("raises")
        async def raises(payload: str) -> None:
            raise raised[payload]

        async with worker:
            jobs = {name: await app.submit("raises", name) for name in raised}

            async def all_ended() -> bool:
                counts = await app.counts()  # of one moment: between two reads they may all be claimed
                return not counts["processing"] and not counts["pending"]

            await eventually(all_ended)
    found = {name: await app.get(job.job_id) for name, job in jobs.items()}
    assert {name: (job.status.value, job.failures) for name, job in found.items()} == {
        "snooze": ("scheduled", 0),
        "cancel": ("cancelled", 0),
        "error": ("retrying", 1),
        "unspeakable": ("retrying", 1),
        "nameless": ("retrying", 1),
        "exit": ("retrying", 1),
    }


async def test_a_remote_job_ends_whatever_its_handler_raises(app: Backstay, url: Served) -> None:
    async with Client(url) as client:
        worker = RemoteWorker(client)

        @worker.job("coroutine")
        async def coroutine(payload: str) -> None:
            raise HOSTILE[payload]()

        @worker.job("thread")
        def in_thread(payload: str) -> None:
            raise HOSTILE[payload]()

        async with worker:
            jobs = [
                await app.submit(kind, name, max_attempts=1) for kind in ("coroutine", "thread") for name in HOSTILE
            ]
            for job in jobs:
                with pytest.raises(JobFailed):
                    await job.result(timeout=30)


async def test_a_result_without_end_is_refused_and_holds_nobody(app: Backstay, url: Served) -> None:
    async with Client(url) as client:
        worker = RemoteWorker(client)

        @worker.job("endless")
        async def endless(payload: None) -> Iterator[int]:
            return itertools.count()

        @worker.job("quick")
        async def quick(payload: None) -> str:
            return "done"

        async with worker:
            job = await app.submit("endless", max_attempts=1)
            assert await (await app.submit("quick")).result(timeout=20) == "done"

            async def has_failed() -> bool:
                return (await app.get(job.job_id)).status == "failed"

            await eventually(has_failed)
    assert (await app.get(job.job_id)).errors[-1]["type"] == "InvalidResult"


@pytest.mark.parametrize(
    "answer",
    [
        lambda: page(404),
        lambda: page(200),
        lambda: page(302),
        lambda: page(400),
        lambda: problem(507, "store-full"),
        lambda: problem(503, "store-moved"),
        lambda: problem(503, "schema-mismatch"),
        lambda: problem(408, "too-slow"),
        lambda: problem(500, "internal"),
        lambda: httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip")),
    ],
    ids=["404 page", "200 page", "302", "400 page", "disk full", "moved", "schema", "too slow", "internal", "no gzip"],
)
async def test_a_server_that_is_not_ready_costs_a_remote_worker_neither_its_claims_nor_a_result(
    app: Backstay, url: Served, answer: Callable[[], httpx.Response]
) -> None:
    answers = {end: [answer() for _ in range(8)] for end in ("/claim", "/complete", "/heartbeat")}
    async with Client(url, make_http=odd(answers)) as client:
        worker = RemoteWorker(client)

        @worker.job("quick")
        async def quick(payload: None) -> str:
            return "done"

        async with worker:
            job = await app.submit("quick")
            assert await job.result(timeout=20) == "done"
            assert worker.failure is None
    found = await app.get(job.job_id)
    assert (found.attempt, found.failures) == (1, 0)
    assert not answers["/claim"]
    assert not answers["/complete"]


async def test_a_foreign_answer_is_never_taken_for_one_of_the_server(url: Served) -> None:
    """A proxy that says 404 does not mean that there is no such job."""
    async with Client(url, make_http=odd({"/jobs": [page(404), page(200)]})) as client:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="not as Backstay does"):
                await client.find()
        assert await client.find() == []
    async with Client(url, make_http=odd({"/jobs": [page(403)]})) as client:
        with pytest.raises(ConfigurationError, match="status 403"):
            await client.find()


async def test_a_worker_whose_name_was_taken_meanwhile_stops_and_says_why(app: Backstay, url: Served) -> None:
    answers = {"/claim": [problem(404, "worker-not-found")], "/register": []}
    async with Client(url, make_http=odd(answers)) as client:
        worker = RemoteWorker(client)

        @worker.job("quick")
        async def quick(payload: None) -> None: ...

        async with worker:
            answers["/register"].append(problem(409, "worker-id-taken"))
            answers["/claim"].append(problem(404, "worker-not-found"))
            await app.submit("quick")  # wakes its claim
            async with asyncio.timeout(20):
                await worker.join()
    assert worker.failure is not None


def test_more_jobs_at_a_time_than_a_heartbeat_can_name_are_refused() -> None:
    client = Client("http://127.0.0.1:1")
    for concurrency in (0, -1, 1_001):
        with pytest.raises(ConfigurationError, match="1 to 1,000 jobs"):
            RemoteWorker(client, concurrency=concurrency)
