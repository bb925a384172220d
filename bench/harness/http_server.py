"""The servers that are measured over HTTP, each in a process of its own, and how they are asked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.http_client import Asked
from bench.harness.processes import ROOT, check_alive, cpu_seconds, worker_process
from bench.harness.stores import PostgresDatabase, SqliteFile

SERVE = (sys.executable, "-m", "backstay", "serve", "--port=0", "--rate=1000000")
BARE = (sys.executable, "-m", "bench.limits.http")
WARM_UP = 200
START_SECONDS = 30.0
CLIENT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Server:
    """A listening server."""

    address: str
    pid: int


@contextmanager
def backstay(app: str, url: str, log: Path) -> Iterator[Server]:
    with _running([*SERVE, f"--app={app}"], log, {"BACKSTAY_URL": url}) as server:
        yield server


@contextmanager
def bare(store: SqliteFile | PostgresDatabase, log: Path) -> Iterator[Server]:
    where = store.url if isinstance(store, PostgresDatabase) else str(store.file)
    with _running([*BARE, where], log, {}) as server:
        yield server


def rates(server: Server, **asked: Any) -> dict[str, Any]:
    """Return what the client found, with the CPU time that the server's process took for a request."""
    before = cpu_seconds(server.pid)
    found = ask(Asked(server.address, warm_up=WARM_UP, **asked))
    used = cpu_seconds(server.pid) - before
    return found | {"server_cpu_ms": 1000 * used / found["answers"]}


def ask(asked: Asked) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.harness.http_client"]
    done = subprocess.run(
        command, cwd=ROOT, input=asked.in_json(), capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the client failed: {done.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def _running(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[Server]:
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    with worker_process(command, log, {**environment, **path}) as process:
        deadline = time.monotonic() + START_SECONDS
        while (address := re.search(r"API +(http://\S+)\n", log.read_text())) is None:
            check_alive(process)
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.02)
        yield Server(address[1], process.pid)
