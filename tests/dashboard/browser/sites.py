"""A server as `backstay serve --workers 1` is one: a store with one of everything, listening on a port of its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel, Field

from backstay import Backstay, Context
from backstay.server.application import assemble
from backstay.server.gate import Gate
from tests.dashboard.staged import Staged, make_app
from tests.server.gated import listening


class Voyage(BaseModel):
    harbour: str = Field(description="Where it goes.")
    legs: int = Field(4, ge=1, le=20)


@dataclass
class Steering:
    """By which a test has a job go on: `voyage` goes one leg for every `go`, and fails while the sea is rough."""

    legs: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    is_rough: bool = False

    def go(self) -> None:
        self.legs.release()

    def add_to(self, app: Backstay) -> None:
        @app.job("voyage", queue="sea", max_attempts=1)
        async def voyage(payload: Voyage, ctx: Context) -> dict[str, str]:
            for leg in range(payload.legs):
                await ctx.progress(leg / payload.legs, f"leg {leg + 1} of {payload.legs}")
                ctx.log.info("leg %d to %s", leg + 1, payload.harbour)
                await self.legs.acquire()
            if self.is_rough:
                raise ConnectionError(f"no way into {payload.harbour}")
            return {"moored": payload.harbour}


@dataclass(frozen=True)
class Site:
    app: Backstay
    gate: Gate
    staged: Staged
    steering: Steering
    address: str  # of the server
    root: str  # of the dashboard

    def url(self, path: str = "") -> str:
        return self.root + path

    async def key(self, name: str, *scopes: str) -> str:
        """A new key, which the server knows already."""
        created = await self.app.create_key(name, scopes or ["admin"])
        self.gate.inner.state.keyring.stale()  # type: ignore[attr-defined]
        return created.text


class Mounted(FastAPI):
    """An application of someone else, with ours below a prefix."""

    def __init__(self, gate: Gate, prefix: str) -> None:
        super().__init__()
        self.mount(prefix, gate)
        self.end_streams = gate.end_streams


@asynccontextmanager
async def served(
    app: Backstay, staged: Staged, steering: Steering, *, worker: bool = True, prefix: str = ""
) -> AsyncIterator[Site]:
    async with AsyncExitStack() as opened:
        await opened.enter_async_context(app)
        gate = assemble(app, hosts=())
        address = await opened.enter_async_context(listening(Mounted(gate, prefix) if prefix else gate))
        if worker:
            await opened.enter_async_context(app.worker(concurrency=4))
        yield Site(app, gate, staged, steering, address, f"{address}{prefix}/dashboard")


@asynccontextmanager
async def staged_site(
    original: tuple[Path, Staged], folder: Path, *, worker: bool = True, prefix: str = ""
) -> AsyncIterator[Site]:
    """A copy of a filled store."""
    place, staged = original
    shutil.copytree(place, folder, dirs_exist_ok=True)
    steering = Steering()
    app = make_app(f"sqlite:///{folder}/jobs.db", artifacts=f"file://{folder}/files")
    steering.add_to(app)
    async with served(app, staged, steering, worker=worker, prefix=prefix) as site:
        yield site
