"""Where the samples of a run take place: in files, or in fresh databases of a server that the run starts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg

from bench.harness.stores import execute

DATABASE = "sample"
SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")


class Place(Protocol):
    store: str
    server_pid: int | None  # of the database server, if its CPU time can be read

    def fresh(self, name: str = DATABASE) -> list[str]:
        """Create an empty store for one sample; return the options of `measure.py` that name it."""
        ...

    def describe(self) -> dict[str, Any]: ...


class Files:
    store = "sqlite"
    server_pid: int | None = None

    def fresh(self, name: str = DATABASE) -> list[str]:
        return []  # every sample has an empty folder

    def describe(self) -> dict[str, Any]:
        return {}


class Server:
    store = "postgres"

    def __init__(self, url: str, server_pid: int | None) -> None:
        self._url = url
        self.server_pid = server_pid

    def fresh(self, name: str = DATABASE) -> list[str]:
        execute(self._url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        execute(self._url, f"CREATE DATABASE {name}")
        execute(self._url, "CHECKPOINT")  # the previous sample's checkpoint must not happen during this one
        return [f"--url={self._url.removesuffix('/postgres')}/{name}"]

    def describe(self) -> dict[str, Any]:
        with psycopg.connect(self._url) as connection:
            rows = connection.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s)", (list(SETTINGS),)
            )
            return {"postgres": dict(rows.fetchall())}


class Tables:
    store = "dynamodb"
    server_pid: int | None = None

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def fresh(self, name: str = DATABASE) -> list[str]:
        url = f"dynamodb://bench_{secrets.token_hex(4)}?region=local&endpoint={self._endpoint}&meter=true"
        return [f"--url={url}"]

    def describe(self) -> dict[str, Any]:
        return {"dynamodb": "DynamoDB Local, in memory"}


@contextmanager
def of(store: str, folder: Path) -> Iterator[Place]:
    if store == "sqlite":
        yield Files()
        return
    if store == "dynamodb":
        from tests.support.servers.dynamodb import DynamoDB

        with DynamoDB() as local:
            yield Tables(local.endpoint)
        return
    from tests.support.servers.postgres import Postgres

    folder.chmod(0o755)  # as root we start the server as another user, who needs access
    # Settings of a busy server: the defaults use 128 MB of memory and checkpoint every gigabyte.
    settings = {"shared_buffers": "1GB", "max_wal_size": "8GB"}
    with Postgres(settings=settings, folder=folder / "server") as server:
        yield Server(server.url(), server.pid)
