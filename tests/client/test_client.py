"""The Python client: what an app has, over HTTP, with the errors of Backstay and nothing done twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from backstay import Backstay, Cancel, Context, Discard, ResultRow, Retry, Snooze
from backstay.client import BlockingRemoteContext, Client, RemoteContext, RemoteHandle, RemoteWorker, link
from backstay.errors import (
    BackstayError,
    ClaimLost,
    ConfigurationError,
    DedupConflict,
    InvalidPayload,
    InvalidSubmission,
    JobCancelled,
    JobFailed,
    JobNotFound,
    LifespanFailed,
    ResultTimeout,
    StoreUnavailable,
    UnknownJobType,
    VersionConflict,
)
from backstay.ids import new_id
from tests.server.far import Served, listening
from tests.support.eventually import eventually


def test_without_httpx_the_client_says_what_to_install() -> None:
    code = "import sys; sys.modules['httpx'] = None; import backstay.client"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "ConfigurationError: the client needs httpx: run pip install '.[client]' in a checkout" in ended.stderr


class Point(ResultRow, table="points", key="number"):
    number: int
    x: float


class Text(BaseModel):
    text: str


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db", lease=3)

    @app.job("plot", results=[Point])
    async def plot(payload: dict[str, int], ctx: Context) -> dict[str, int]:
        await ctx.results(Point).put([Point(number=number, x=number / 2) for number in range(payload["points"])])
        await ctx.artifact("plot.txt", b"x" * 100_000)
        return {"points": payload["points"]}

    async with app:
        yield app


@pytest.fixture
async def url(app: Backstay) -> AsyncIterator[Served]:
    async with listening(app) as url:
        yield url


@pytest.fixture
async def client(url: Served) -> AsyncIterator[Client]:
    async with Client(url) as client:
        yield client


@pytest.fixture
async def worker(client: Client, monkeypatch: pytest.MonkeyPatch) -> RemoteWorker:
    monkeypatch.setattr(link, "SAY_SECONDS", 0.02)
    monkeypatch.setattr(link, "AGAIN_SECONDS", 0.02)
    return RemoteWorker(client, worker_id="far-1", version="2.0", concurrency=4)


async def test_what_an_app_does_a_client_does_over_http(app: Backstay, client: Client) -> None:
    async with app.worker(poll_interval=0.05):
        job = await client.submit("plot", {"points": 3}, subject="sky", tags=["blue"], priority="high")
        assert await job.result(timeout=20) == {"points": 3}
    found = await client.get(job.job_id)
    assert (found.status, found.subject, found.tags, found.priority) == ("completed", "sky", ["blue"], 75)
    assert found.completed_at >= found.created_at
    assert [each.job_id for each in await client.find(subject="sky", status="completed")] == [job.job_id]
    assert [row["x"] async for row in client.results(job.job_id, "points")] == [0.0, 0.5, 1.0]
    assert [(each["name"], each["size"]) for each in await client.artifacts(job.job_id)] == [("plot.txt", 100_000)]
    assert await client.artifact(job.job_id, "plot.txt") == b"x" * 100_000
    assert b"".join([piece async for piece in client.open_artifact(job.job_id, "plot.txt")]) == b"x" * 100_000
    assert [each.job_id for each in await client.tree(job.job_id)] == [job.job_id]
    assert "completed" in await client.explain(job.job_id)


async def test_a_job_is_cancelled_and_run_again_by_a_client(app: Backstay, client: Client) -> None:
    job = await client.submit("plot", {"points": 1}, delay=timedelta(hours=1))
    assert (await client.cancel(job.job_id, reason="not today")).status == "cancelled"
    assert (await client.cancel(job.job_id)).status == "cancelled", "which is what was asked for"
    with pytest.raises(JobCancelled):
        await job.result(timeout=5)
    assert (await client.retry(job.job_id, forget_steps=True)).status == "pending"
    with pytest.raises(VersionConflict):
        await client.cancel(job.job_id, expected_version=1)
    assert [event.why for event in await app.history(job.job_id)][1:] == ["not today", "without recorded steps"]


async def test_many_jobs_are_cancelled_and_retried_by_a_client(app: Backstay, client: Client) -> None:
    jobs = [await client.submit("plot", {"points": n}, delay=timedelta(hours=1)) for n in (1, 2)]
    ids = sorted(job.job_id for job in jobs)
    until = jobs[-1].created_at

    planned = await client.cancel_many(job_type="plot", created_until=until, dry_run=True)
    done = await client.cancel_many(job_type="plot", created_until=until, reason="not today")
    again = await client.retry_many(ids, forget_steps=True)
    twice = await client.retry_many(ids)

    assert sorted(planned.changed) == sorted(done.changed) == sorted(again.changed) == ids
    assert (planned.by_status, planned.dry_run, done.dry_run) == ({"scheduled": 2}, True, False)
    assert twice.reasons == {"it is still pending": 2}
    with pytest.raises(InvalidSubmission):
        await client.cancel_many()
    assert [event.why for event in await app.history(ids[0])][1:] == ["not today", "without recorded steps"]


async def test_schedules_are_defined_paused_run_and_filled_in_by_a_client(app: Backstay, client: Client) -> None:
    now = datetime.now(UTC)
    made = await client.schedule("daily", "@daily", "plot", {"points": 1}, overlap="skip", jitter=timedelta(minutes=1))
    assert (made["overlap"], made["jitter_seconds"], len(made["next_ticks"])) == ("skip", 60.0, 5)
    assert (await client.pause_schedule("daily"))["paused"] is True
    assert (await client.resume_schedule("daily"))["paused"] is False
    assert (await client.run_schedule("daily")).schedule == "daily"
    planned = await client.backfill("daily", now - timedelta(days=2), now, dry_run=True)
    assert await client.backfill("daily", now - timedelta(days=2), now) == planned
    assert [each["name"] for each in await client.schedules()] == ["daily"]
    await client.unschedule("daily")
    assert await client.schedules() == []


async def test_problems_are_errors_of_backstay_again(app: Backstay, client: Client, url: Served) -> None:
    with pytest.raises(UnknownJobType):
        await client.submit("nothing", {})
    with pytest.raises(JobNotFound):
        await client.get(new_id(app.clock.now()))
    with pytest.raises(InvalidSubmission):
        await client.submit("plot", {"points": "many"})
    with pytest.raises(InvalidSubmission, match="colour"):
        await client.submit("plot", {"points": 1}, colour="blue")  # type: ignore[call-arg]
    await client.submit("plot", {"points": 1}, dedup_key="one")
    with pytest.raises(DedupConflict):
        await client.submit("plot", {"points": 2}, dedup_key="one", dedup="error")
    job = await client.submit("plot", {"points": 1})
    with pytest.raises(ResultTimeout):
        await job.result(timeout=0.05)
    key = await app.create_key("eyes", ["read"])
    async with Client(url, key=key.text) as reader:
        assert (await reader.get(job.job_id)).status == "pending"
        with pytest.raises(ConfigurationError, match="submit"):
            await reader.submit("plot", {"points": 1})


async def test_a_submit_whose_answer_is_lost_is_one_job(app: Backstay, url: Served) -> None:
    async with Client(url, make_http=losing(answers=2)) as client:
        job = await client.submit("plot", {"points": 1})
        many = await client.submit_many([("plot", {"points": 1}), ("plot", {"points": "x"}), ("nothing", {})])
    assert [each.job_id for each in await app.find()] == [many[0].job_id, job.job_id]  # type: ignore[union-attr]
    assert isinstance(many[0], RemoteHandle)
    assert [type(each) for each in many[1:]] == [InvalidPayload, UnknownJobType]


async def test_a_server_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.client.http.PAUSE_SECONDS", 0.001)
    async with Client("http://127.0.0.1:9") as client:
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9"):
            await client.find()


async def test_a_stream_goes_on_over_a_broken_connection(app: Backstay, url: Served) -> None:
    async with app.worker(poll_interval=0.05):
        job = await app.submit("plot", {"points": 1})
        await job.result(timeout=10)
    async with Client(url, make_http=losing(pieces=1)) as client:
        told = [event async for event in client.stream(job.job_id)]
    assert [event.name for event in told] == ["state", "progress", "end"]


async def test_a_remote_worker_runs_jobs_of_every_kind(app: Backstay, client: Client, worker: RemoteWorker) -> None:
    @worker.job("embedding")
    async def embedding(payload: Text, ctx: RemoteContext) -> list[float]:
        await ctx.progress(0.5, stage="half")
        ctx.log.info("embeds %s", payload.text)
        ctx.metric("tokens", 2)
        return [0.5]

    @worker.job("blocking", limit=1)
    def blocking(payload: Text, ctx: BlockingRemoteContext) -> str:
        ctx.progress(0.25, stage="thread")
        return payload.text.upper()

    async with worker:
        jobs = [await client.submit(name, {"text": "tide"}) for name in ("embedding", "blocking")]
        assert [await job.result(timeout=20) for job in jobs] == [[0.5], "TIDE"]
        with pytest.raises(InvalidPayload):  # by the schema of the model, which the worker has announced
            await client.submit("embedding", {"txt": "tide"})
    found = await app.get(jobs[0].job_id)
    assert (found.worker_id, found.worker_version, found.metrics) == ("far-1", "2.0", {"tokens": 2})
    assert [entry["message"] for entry in found.logs["entries"]] == ["embeds tide"]
    assert await app.workers() == [], "it signed off"


async def test_a_remote_context_is_dead_once_its_handler_has_returned(
    app: Backstay, client: Client, worker: RemoteWorker
) -> None:
    contexts: list[Any] = []

    @worker.job("embedding")
    async def embedding(payload: Text, ctx: RemoteContext) -> str:
        contexts.append(ctx)
        ctx.metric("tokens", 2)
        return "done"

    @worker.job("blocking")
    def blocking(payload: Text, ctx: BlockingRemoteContext) -> str:
        contexts.append(ctx)
        return "done"

    async with worker:
        jobs = [await client.submit(name, {"text": "tide"}) for name in ("embedding", "blocking")]
        assert [await job.result(timeout=20) for job in jobs] == ["done", "done"]
        for ctx in contexts:
            assert ctx.cancelled
            with pytest.raises(ClaimLost):
                ctx.metric("late", 1)
            with pytest.raises(ClaimLost):
                await _progress(ctx)
            ctx.log.info("late")
    found = [await app.get(job.job_id) for job in jobs]
    assert sorted(len(job.metrics) for job in found) == [0, 1]
    assert [job.logs["entries"] for job in found] == [[], []]


async def test_what_a_handler_raises_counts_as_it_does_elsewhere(
    app: Backstay, client: Client, worker: RemoteWorker
) -> None:
    raised = {
        "value": ValueError("no"),
        "retry": Retry("later", after=7),
        "snooze": Snooze(60),
        "cancel": Cancel("done"),
        "discard": Discard("never"),
    }

    @worker.job("raising")
    async def raising(payload: dict[str, str]) -> None:
        raise raised[payload["which"]]

    @worker.job("slow")
    async def slow(payload: dict[str, str]) -> None:
        await asyncio.Event().wait()

    @worker.job("large")
    async def large(payload: dict[str, str]) -> str:
        return "x" * 2_000_000

    async with worker:
        jobs = {which: await client.submit("raising", {"which": which}) for which in raised}
        jobs["slow"] = await client.submit("slow", {}, timeout=0.05)
        jobs["large"] = await client.submit("large", {})

        async def are_settled() -> bool:
            counts = await app.counts()  # of one moment: between two reads they may all be claimed
            return not counts["processing"] and not counts["pending"]

        await eventually(are_settled)
    ended = {which: await app.get(job.job_id) for which, job in jobs.items()}
    assert {which: job.status.value for which, job in ended.items()} == {
        "value": "retrying",
        "retry": "retrying",
        "snooze": "scheduled",
        "cancel": "cancelled",
        "discard": "failed",
        "slow": "retrying",
        "large": "failed",
    }
    assert ended["value"].last_error == "ValueError: no"
    assert "raise raised" in ended["value"].errors[0]["traceback"]
    assert ended["slow"].last_error is not None and "JobTimeout" in ended["slow"].last_error
    assert (ended["retry"].scheduled_for - ended["retry"].updated_at).total_seconds() == pytest.approx(7)
    with pytest.raises(JobFailed, match="never"):
        await jobs["discard"].result(timeout=5)


async def test_a_cancelled_job_is_stopped_at_the_remote_worker(
    app: Backstay, client: Client, worker: RemoteWorker
) -> None:
    entered, stopped = asyncio.Event(), asyncio.Event()

    @worker.job("slow")
    async def slow(payload: dict[str, str]) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with worker:
        job = await client.submit("slow", {})
        await entered.wait()
        await client.cancel(job.job_id)
        await asyncio.wait_for(stopped.wait(), 10)
    assert [event.event for event in await app.history(job.job_id)] == ["submit", "claim", "cancel"]


async def test_a_remote_worker_keeps_its_claim_for_longer_than_a_lease(tmp_path: Path) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db", lease=0.6)
    async with listening(app) as url, Client(url) as client:
        worker = RemoteWorker(client)
        enough = asyncio.Event()

        @worker.job("slow")
        async def slow(payload: dict[str, str]) -> str:
            await enough.wait()
            return "done"

        async with worker:
            job = await client.submit("slow", {})

            async def has_outlived_a_lease() -> bool:
                found = await app.get(job.job_id)
                ends, began = found.lease_expires_at, found.started_at
                return ends is not None and began is not None and ends - began > timedelta(seconds=1.2)

            await eventually(has_outlived_a_lease)
            enough.set()
            assert await job.result(timeout=20) == "done"
        assert (await app.get(job.job_id)).attempt == 1


async def test_a_worker_that_stops_gives_back_what_does_not_end(app: Backstay, client: Client) -> None:
    worker = RemoteWorker(client, grace=0.05)
    entered = asyncio.Event()

    @worker.job("slow")
    async def slow(payload: dict[str, str]) -> None:
        entered.set()
        await asyncio.Event().wait()

    async with worker:
        job = await client.submit("slow", {})
        await entered.wait()
    found = await app.get(job.job_id)
    assert (found.status, found.failures) == ("pending", 0)
    assert found.history[-1].event == "give_back"


async def test_a_remote_worker_survives_a_server_that_drops_every_other_answer(
    app: Backstay, url: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("backstay.client.http.PAUSE_SECONDS", 0.001)
    runs: list[int] = []
    async with Client(url, make_http=losing(every=2)) as far:
        worker = RemoteWorker(far, concurrency=3)

        @worker.job("count")
        async def count(payload: dict[str, int]) -> int:
            runs.append(payload["number"])
            return payload["number"]

        async with worker, Client(url) as client:
            jobs = await client.submit_many([("count", {"number": number}) for number in range(10)])
            assert not [job for job in jobs if isinstance(job, BackstayError)]
            assert [await job.result(timeout=20) for job in jobs if isinstance(job, RemoteHandle)] == list(range(10))
    assert sorted(runs) == list(range(10)), "each ran once, although answers of claims and completions were lost"
    assert {job.attempt for job in await app.find()} == {1}


async def test_a_worker_whose_key_is_revoked_stops_and_says_why(
    app: Backstay, url: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.server.auth.SECONDS", 0.0)
    monkeypatch.setattr(link, "WAIT_SECONDS", 0.05)
    key = await app.create_key("far", ["work"])
    async with Client(url, key=key.text) as client:
        worker = RemoteWorker(client)

        @worker.job("embedding")
        async def embedding(payload: Text) -> None: ...

        running = asyncio.create_task(worker.run())
        await eventually(lambda: _is_registered(app))
        await app.revoke_key(key.key.key_id)
        with pytest.raises(ConfigurationError):
            await asyncio.wait_for(running, 10)


async def _progress(ctx: RemoteContext | BlockingRemoteContext) -> None:
    if isinstance(ctx, RemoteContext):
        await ctx.progress(0.9, stage="late")
    else:
        ctx.progress(0.9, stage="late")


async def _is_registered(app: Backstay) -> bool:
    return bool(await app.workers())


def losing(**how: Any) -> Callable[[], httpx.AsyncClient]:
    return lambda: httpx.AsyncClient(transport=_Losing(**how))


class _Losing(httpx.AsyncHTTPTransport):
    """A way to the server on which requests arrive and answers get lost."""

    def __init__(self, *, answers: int = 0, pieces: int | None = None, every: int = 0) -> None:
        super().__init__()
        self._answers, self._pieces, self._every = answers, pieces, every
        self._sent = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        self._sent += 1
        if self._answers or (self._every and self._sent % self._every == 0):
            self._answers = max(0, self._answers - 1)
            await response.aread()
            await response.aclose()
            raise httpx.ReadError("lost on the way", request=request)
        if self._pieces is not None:
            pieces, self._pieces = self._pieces, None
            response.stream = _Broken(response.stream, pieces)  # type: ignore[arg-type]
        return response


class _Broken(httpx.AsyncByteStream):
    """What is left of a stream that breaks after some pieces."""

    def __init__(self, whole: httpx.AsyncByteStream, pieces: int) -> None:
        self._whole, self._pieces = whole, pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for piece in self._whole:
            yield piece
            count += 1
            if count > self._pieces:
                raise httpx.ReadError("broken")

    async def aclose(self) -> None:
        await self._whole.aclose()


async def test_a_remote_worker_has_a_lifespan_and_middleware(app: Backstay, url: Served) -> None:
    said: list[str] = []
    async with Client(url) as far:
        worker = RemoteWorker(far, worker_id="far-1")

        @worker.lifespan
        async def resources() -> AsyncIterator[str]:
            said.append("begin")
            yield "state"
            said.append("end")

        @worker.middleware
        def around(ctx: RemoteContext | BlockingRemoteContext) -> Iterator[None]:
            said.append(f"before {ctx.job_id}")
            said.append((yield))

        @worker.job("ask")
        async def ask(payload: str, ctx: RemoteContext[str]) -> str:
            return f"{ctx.state} of {payload}"

        @worker.job("ask_plainly")
        def ask_plainly(payload: str, ctx: BlockingRemoteContext[str]) -> str:
            return f"{ctx.state} of {payload}"

        async with worker:
            assert said == ["begin"]
            for name in ("ask", "ask_plainly"):
                job = await far.submit(name, name)
                assert await job.result(timeout=20) == f"state of {name}"
                assert said[-2:] == [f"before {job.job_id}", f"state of {name}"]
        assert said[-1] == "end"

        failing = RemoteWorker(far)
        failing.job("ask")(ask.function)

        @failing.lifespan
        def broken() -> Iterator[None]:
            raise OSError("no GPU")
            yield

        with pytest.raises(LifespanFailed, match="raised OSError: no GPU"):
            await failing.run()
        assert [each.worker_id for each in await app.workers()] in ([], ["far-1"])
