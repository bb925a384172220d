"""Where the jobs of a run are kept: a file, a schema of a server, or two tables. What no verb tells is read from it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg
import msgspec

from holdfast.lifecycle import TERMINAL, Status
from holdfast.store.types import JobRecord
from holdfast.stores.dynamodb import DynamoStore, items
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.postgres.address import parse
from holdfast.stores.sqlite import archiving
from holdfast.testing.history import Edge
from tests.servers.dynamo_proxy import DynamoProxy
from tests.servers.dynamodb import DynamoDB
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy


class Place(Protocol):
    @property
    def url(self) -> str: ...

    async def edges(self) -> list[Edge]: ...

    async def archive(self) -> list[JobRecord]:
        """`get` answers from the archive only for jobs that are nowhere else: this is all of it."""


@dataclass(frozen=True)
class File:
    """Of SQLite."""

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
            return list(archiving.get(connection, job_ids).values())

        return self._read(read)

    def _read(self, read: Any) -> Any:
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return read(connection)
        finally:
            connection.close()


@dataclass(frozen=True)
class Schema:
    """Of PostgreSQL. What is under test may come through a proxy; what judges does not."""

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
    """Of DynamoDB. What is under test may come through a proxy; what judges does not."""

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
        """Each job is looked at once, and one that has ended stays so: what is found is true of all of them."""
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
