"""A worker far away, as tests play it: plain HTTP requests to a server that is there, or to the application itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from backstay import Backstay
from backstay.server import asgi
from backstay.server.application import assemble
from backstay.server.listen import Server, bind
from tests.support.eventually import eventually

Answer = httpx.Response


class Far:
    """One remote worker, by hand."""

    def __init__(self, http: httpx.AsyncClient, worker_id: str = "far-1") -> None:
        self.http = http
        self.worker_id = worker_id

    async def register(self, *job_types: str, **fields: Any) -> Any:
        body = {"worker_id": self.worker_id, "job_types": list(job_types), "version": "1.0", **fields}
        return (await self.http.post("/workers/register", json=body)).raise_for_status().json()

    async def claim(self, **fields: Any) -> Any:
        return (await self.http.post(f"/workers/{self.worker_id}/claim", json=fields)).raise_for_status().json()

    async def one(self, **fields: Any) -> tuple[str, str]:
        """A job's id and the token of its claim."""
        [taken] = await self.claim(**fields)
        return taken["job"]["job_id"], taken["token"]

    async def heartbeat(self, *held: tuple[str, str], **fields: Any) -> Any:
        body = {"jobs": [{"job_id": job_id, "token": token} for job_id, token in held], **fields}
        answer = await self.http.post(f"/workers/{self.worker_id}/heartbeat", json=body)
        return answer.raise_for_status().json()

    async def say(self, verb: str, job_id: str, token: str, **fields: Any) -> Answer:
        return await self.http.post(f"/jobs/{job_id}/{verb}", json={"token": token, **fields})


@asynccontextmanager
async def reached(app: Backstay, key: str | None = None, serving: ASGIApp | None = None) -> AsyncIterator[Far]:
    """The application without a server: nothing is between the test and the routes but the gate."""
    transport = httpx.ASGITransport(serving or asgi(app))
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
        yield Far(http)


class Served(str):
    """The address of a real server."""

    server: uvicorn.Server

    async def is_left(self) -> bool:
        """Whether nobody is connected."""
        return not self.server.server_state.connections


@asynccontextmanager
async def listening(app: Backstay) -> AsyncIterator[Served]:
    server = Server(assemble(app))
    bound = bind("127.0.0.1", 0)
    task = asyncio.create_task(server.serve([bound]))

    async def has_started() -> bool:
        return server.started or task.done()

    await eventually(has_started)
    port = bound.getsockname()[1]
    try:
        served = Served(f"http://127.0.0.1:{port}")
        served.server = server
        yield served
    finally:
        server.stop()
        await task
        bound.close()
