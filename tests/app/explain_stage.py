"""The stage on which jobs are kept from running, for one reason or another."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

from backstay import Backoff, Backstay, Context, Snooze
from backstay.core.records import ClaimRequest, WorkerRow
from backstay.testing import ManualClock
from backstay.worker import Worker
from tests.support.eventually import eventually

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LEASE = 60.0


class Stage:
    """An app on a clock that stands still, with handlers that do what a scene needs, and workers that it starts."""

    def __init__(self, make_app: Callable[..., Backstay], stack: AsyncExitStack) -> None:
        self.clock = ManualClock(NOON)
        self.make_app, self.stack = make_app, stack
        self.app = make_app(clock=self.clock, lease=LEASE)
        self.begun, self.release = asyncio.Semaphore(0), asyncio.Event()
        self.register(self.app)

    def register(self, app: Backstay, **options: Any) -> None:
        @app.job("work", **options)
        async def work(payload: Any, ctx: Context) -> None:
            await ctx.progress(0.25, stage="halfway")
            self.begun.release()
            await self.release.wait()

        @app.job("other")
        async def other(payload: Any) -> None: ...

        @app.job("limited", concurrency=1)
        async def limited(payload: Any) -> None:
            self.begun.release()
            await self.release.wait()

        @app.job("keyed", global_concurrency=1, queue="keys")
        async def keyed(payload: Any) -> None:
            self.begun.release()
            await self.release.wait()

        @app.job("rated", rate="1/h")
        async def rated(payload: Any) -> None: ...

        @app.job("failing", max_attempts=2, backoff=Backoff(60, jitter=0))
        async def failing(payload: Any) -> None:
            raise ValueError("no such customer")

        @app.job("family")
        async def family(payload: Any, ctx: Context) -> None:
            if payload is None:
                await ctx.submit("other", 1)
            await ctx.submit("other", 2, delay=3600, depends_on=() if payload is None else [payload], key="child")
            await ctx.wait_for_children()

        @app.job("resting")
        async def resting(payload: Any, ctx: Context) -> None:
            await ctx.sleep("cooldown", timedelta(hours=2))

        @app.job("approved")
        async def approved(payload: Any, ctx: Context) -> None:
            await ctx.wait_for_event("approved", key="order:7", timeout=timedelta(hours=2))

        @app.job("sleepy")
        async def sleepy(payload: Any) -> None:
            raise Snooze(timedelta(hours=2), "the shop is closed")

    async def worker(self, app: Backstay | None = None, **options: Any) -> Worker:
        """With a little work for it behind, so that it is known to fetch."""
        return await self.stack.enter_async_context((app or self.app).worker(grace=0, **options))

    async def submit(self, job_type: str, **options: Any) -> str:
        return (await self.app.submit(job_type, None, **options)).job_id

    async def started(self, job_type: str, **options: Any) -> str:
        """A job whose handler runs and does not end."""
        job_id = await self.submit(job_type, **options)
        await self.begun.acquire()
        return job_id

    async def in_state(self, job_id: str, status: str) -> str:
        async def holds() -> bool:
            return (await self.app.get(job_id)).status == status

        await eventually(holds)
        return job_id

    async def claimed_by(self, worker_id: str, job_type: str, lease: float = LEASE, queue: str = "default") -> None:
        """A claim as a worker makes it that lives elsewhere."""
        request = ClaimRequest(worker_id, "1", (queue,), {job_type: 1}, 1, round(lease * 1_000_000), worker_id)
        assert len(await self.app.store.claim(request, self.clock.now())) == 1

    async def heard_of(self, worker_id: str = "elsewhere", **changes: Any) -> None:
        """A worker that lives elsewhere, as it tells of itself."""
        fields: dict[str, Any] = {
            "worker_id": worker_id,
            "host": "there",
            "pid": 1,
            "process_key": "",
            "version": "1",
            "queues": ("default", "keys"),
            "job_types": tuple(self.app.handlers),
            "concurrency": 10,
            "started_at": self.clock.now(),
            "heartbeat_at": self.clock.now(),
        }
        await self.app.store.beat(WorkerRow(**(fields | changes)))
