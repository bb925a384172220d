"""procrastinate: it keeps finished jobs and a row for each of their events, as Backstay does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.harness.payload import note
from bench.peers.postgres import Measurements


class ProcrastinateClient:
    def __init__(self) -> None:
        from bench.peers.procrastinate_app import noop

        self._task = noop

    async def submit(self, number: int) -> object:
        return await self._task.defer_async(**note(number))

    async def submit_many(self, numbers: Sequence[int]) -> object:
        return await self._task.batch_defer_async(*[{**note(number)} for number in numbers])


class ProcrastinatePeer:
    WORKER = "bench.peers.procrastinate_worker"
    UNSETTLED = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

    async def install(self, url: str) -> None:
        from bench.peers.procrastinate_app import app  # reads the address from the environment

        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def client(self, url: str) -> AsyncIterator[ProcrastinateClient]:
        from bench.peers.procrastinate_app import app

        async with app.open_async():
            yield ProcrastinateClient()


MEASURES = Measurements(ProcrastinatePeer()).measures()
