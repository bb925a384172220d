"""pgqueuer with asyncpg. It deletes a job when it is done and writes a line of its log table for each step."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.harness.payload import note
from bench.peers.postgres import Measurements


class PgQueuerClient:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def submit(self, number: int) -> object:
        return await self._queries.enqueue("noop", _payload(number))

    async def submit_many(self, numbers: Sequence[int]) -> object:
        count = len(numbers)
        return await self._queries.enqueue(["noop"] * count, [_payload(number) for number in numbers], [0] * count)


class PgQueuerPeer:
    WORKER = "bench.peers.pgqueuer_worker"
    UNSETTLED = "SELECT count(*) FROM pgqueuer"

    async def install(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    @asynccontextmanager
    async def client(self, url: str) -> AsyncIterator[PgQueuerClient]:
        connection = await asyncpg.connect(url)
        try:
            yield PgQueuerClient(Queries(AsyncpgDriver(connection)))
        finally:
            await connection.close()


def _payload(number: int) -> bytes:
    return json.dumps(note(number)).encode()


MEASURES = Measurements(PgQueuerPeer()).measures()
