"""The stores of a run: a file, a schema of a server, or two tables. Also reads what no verb returns."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg
import msgspec

from backstay.core.records import JobRecord
from backstay.core.states import TERMINAL, Status
from backstay.engines.dynamodb import items
from backstay.engines.dynamodb.schema import Item, Table
from backstay.engines.dynamodb.store import DynamoStore
from backstay.engines.postgres.connection import parse
from backstay.engines.sqlite import read as sqlite_read
from backstay.testing.history import Edge
from tests.support.servers.dynamo_proxy import DynamoProxy
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.postgres import Postgres
from tests.support.servers.proxy import Proxy


class Place(Protocol):
    @property
    def url(self) -> str: ...

    async def edges(self) -> list[Edge]: ...

    async def archive(self) -> list[JobRecord]:
        """Return the whole archive: `get` reads it only for jobs that are nowhere else."""


@dataclass(frozen=True)
class File:
    """A SQLite file."""

    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    async def edges(self) -> list[Edge]:
        rows = self._read(lambda connection: connection.execute("SELECT parent_id, child_id, met FROM edge").fetchall())
        return [Edge(parent, child, bool(met)) for parent, child, met in rows]

    async def archive(self) -> list[JobRecord]:
        def read(connection: apsw.Connection) -> list[JobRecord]:
            job_ids = [job_id for (job_id,) in connection.execute("SELECT job_id FROM archive").fetchall()]
            return list(sqlite_read.get_archived(connection, job_ids).values())

        return self._read(read)

    def _read(self, read: Any) -> Any:
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return read(connection)
        finally:
            connection.close()


@dataclass(frozen=True)
class Schema:
    """A PostgreSQL schema. Processes under test may use a proxy; the judge does not."""

    url: str
    direct: str

    @classmethod
    def new(cls, server: Postgres, proxy: Proxy | None = None, **options: str) -> Schema:
        direct = server.url(schema=f"crash_{secrets.token_hex(4)}", **options)
        return cls(direct if proxy is None else direct.replace(f":{server.port}/", f":{proxy.port}/"), direct)

    async def edges(self) -> list[Edge]:
        rows = await self._read("SELECT parent_id::text, child_id::text, met FROM {}.edge")
        return [Edge(parent, child, met) for parent, child, met in rows]

    async def archive(self) -> list[JobRecord]:
        return [
            msgspec.structs.replace(
                msgspec.json.decode(details, type=JobRecord), archived_at=archived_at, status=Status(status)
            )
            for archived_at, status, details in await self._read("SELECT archived_at, status, details FROM {}.archive")
        ]

    async def _read(self, statement: str) -> list[Any]:
        address = parse(self.direct)
        connection = await asyncpg.connect(address.dsn)
        try:
            return await connection.fetch(statement.format(f'"{address.schema}"'))
        finally:
            await connection.close()


@dataclass(frozen=True)
class Tables:
    """Two DynamoDB tables. Processes under test may use a proxy; the judge does not."""

    url: str
    direct: str

    @classmethod
    def new(cls, server: DynamoDB, proxy: DynamoProxy | None = None, **options: str) -> Tables:
        direct = server.url(f"crash_{secrets.token_hex(4)}", wake_ceiling="1", **options)
        return cls(direct if proxy is None else direct.replace(f":{server.port}", f":{proxy.port}"), direct)

    async def edges(self) -> list[Edge]:
        rows = await self._scan(Table.RECORDS)
        return [
            Edge(row["pk"].removeprefix("edge|"), row["sk"], "met" in row)
            for row in rows
            if row["pk"].startswith("edge|")
        ]

    async def archive(self) -> list[JobRecord]:
        return [items.record(row, {}) for row in await self._scan(Table.JOBS) if "archived_at" in row]

    async def all_ended(self) -> bool:
        """Return whether all jobs have ended. Each is read once: an ended job stays ended."""
        ended = {status.value for status in TERMINAL}
        return all("archived_at" in row or row["status"] in ended for row in await self._scan(Table.JOBS))

    async def _scan(self, table: Table) -> list[Item]:
        store = DynamoStore(self.direct)
        await store.open()
        try:
            rows: list[Item] = []
            start = None
            while True:
                page, start = await store._open().tables.scan(table, start=start)
                rows += page
                if start is None:
                    return rows
        finally:
            await store.close()
