"""A whole server in this process: the real app, routes and gate, asked over ASGI or over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel

from backstay import Backstay
from backstay.clock import Clock
from backstay.server import listen
from backstay.server.application import assemble
from backstay.server.gate import Bounds, Gate

HERE = "http://localhost"


class Letter(BaseModel):
    to: str
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Served:
    app: Backstay
    gate: Gate
    client: httpx.AsyncClient  # on this machine

    def client_at(self, address: str, base_url: str = HERE, **options: Any) -> httpx.AsyncClient:
        """Someone elsewhere."""
        transport = httpx.ASGITransport(self.gate, client=(address, 4711))
        return httpx.AsyncClient(transport=transport, base_url=base_url, **options)

    async def key(self, *scopes: str, **options: Any) -> dict[str, str]:
        """The header of a new key, which the server knows already."""
        created = await self.app.create_key("tester", scopes or ["admin"], **options)
        self.gate.inner.state.keyring.stale()  # type: ignore[attr-defined]
        return {"X-API-Key": created.text}


def sample_app(url: str, clock: Clock | None = None) -> Backstay:
    app = Backstay(url, clock=clock)

    @app.job("letter", queue="mail")
    async def letter(payload: Letter) -> dict[str, Any]:
        return {"to": payload.to}

    @app.job("anything")
    async def anything(payload: Any) -> Any:
        return payload

    return app


@asynccontextmanager
async def served(
    place: Path | str,
    *,
    clock: Clock | None = None,
    hosts: Sequence[str] | None = (),
    proxies: Sequence[str] = (),
    bounds: Bounds | None = None,
) -> AsyncIterator[Served]:
    app = sample_app(place if isinstance(place, str) else f"sqlite:///{place}/jobs.db", clock)
    gate = assemble(app, hosts=hosts, proxies=proxies, bounds=bounds)
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url=HERE) as client:
        yield Served(app, gate, client)


@asynccontextmanager
async def listening(gate: Any) -> AsyncIterator[str]:
    """Its address, while it listens on a socket."""
    bound = listen.bind("127.0.0.1", 0)
    address = listen.url(bound)
    started = asyncio.Event()
    server = listen.Server(gate, started.set)
    task = asyncio.create_task(server.serve([bound]))
    try:
        await started.wait()
        yield address
    finally:
        server.stop()
        await task
