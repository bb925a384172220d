"""Reads tables of a PostgreSQL database that another system keeps its jobs in. Never writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from backstay.errors import ConfigurationError, StoreUnavailable
from backstay.imports.source import Row, Work, read
from backstay.limits import IMPORT_PAGE

_NAME_OF = "SELECT to_regclass($1)::text"
_COLUMNS_OF = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0"

WorkOf = Callable[[dict[str, Any]], Work]


class PostgresTables:
    """A read-only connection. Parameters of the address that a source knows, `options`, are not the server's."""

    def __init__(self, address: str, what: str, **options: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("postgresql", "postgres"):
            raise ConfigurationError(f"{what} is in PostgreSQL: give its address as postgresql://…")
        given = parse_qsl(parts.query)
        self._what = what
        self.options = {name: dict(given).get(name, usual) for name, usual in options.items()}
        left = urlencode([(name, value) for name, value in given if name not in options])
        self._url = urlunsplit(parts._replace(query=left))
        named = urlencode({name: value for name, value in self.options.items() if value})
        self.location = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{named and f'?{named}'}"
        self._connection: asyncpg.Connection | None = None

    async def open(self) -> None:
        settings = {"default_transaction_read_only": "on", "timezone": "UTC"}
        if schema := self.options.get("schema"):
            settings["search_path"] = f'"{schema}"' if '"' not in schema else schema
        try:
            self._connection = await asyncpg.connect(self._url, server_settings=settings, statement_cache_size=0)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StoreUnavailable(f"{self.location} cannot be reached: {error}") from None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def name_of(self, table: str) -> str | None:
        """Return the name of a table as a statement writes it; None if there is none."""
        found: str | None = await self.connection.fetchval(_NAME_OF, table)
        return found

    async def columns_of(self, table: str, needed: tuple[str, ...]) -> set[str]:
        """Return the columns of a table that must have some of them."""
        found = {row[0] for row in await self.connection.fetch(_COLUMNS_OF, table)}
        if missing := [name for name in needed if name not in found]:
            raise ConfigurationError(
                f"{self.location} is not {self._what}: there is no table {table} with a column {missing[0]}"
            )
        return found

    async def count(self, statement: str) -> int:
        return int(await self.connection.fetchval(f"SELECT count(*) FROM ({statement}) AS each"))  # noqa: S608

    async def pages(self, statement: str, work: WorkOf) -> AsyncIterator[list[Row]]:
        """Yield the rows of a statement as they are at one moment. Each has the columns `id` and `status`, as text."""
        async with self.connection.transaction(isolation="repeatable_read", readonly=True):
            cursor = await self.connection.cursor(statement)
            while rows := await cursor.fetch(IMPORT_PAGE):
                yield [_row(dict(row), work) for row in rows]

    @property
    def connection(self) -> asyncpg.Connection:
        if self._connection is None:
            raise ConfigurationError(f"{self.location} is not open")
        return self._connection


def _row(row: dict[str, Any], work: WorkOf) -> Row:
    return read(row["id"], row["status"], lambda: work(row))
