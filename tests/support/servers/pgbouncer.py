"""A real PgBouncer in transaction mode, in front of a server: few connections to it, shared by all clients."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.servers.parent import dies_with_parent
from tests.support.servers.ports import free_port
from tests.support.servers.postgres import Postgres, _answers, _as_nobody

READY_SECONDS = 20.0
FETCHED = Path("/var/tmp/backstay-tests-pgbouncer")  # cached: fetched once per machine
SETTINGS = """
[databases]
postgres = host=127.0.0.1 port={target} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
server_lifetime = 5
server_login_retry = 1
"""


class Absent(Exception):
    """There is no PgBouncer, and it cannot be installed."""


def binary() -> list[str]:
    """Return the command: the machine's own, or Debian's package, unpacked into a folder without installing it."""
    if found := shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return [found]
    if not (FETCHED / "done").exists():
        _fetch()
    libraries = ":".join(str(path) for path in (FETCHED / "root/usr/lib").glob("*-linux-gnu"))
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(FETCHED / "root/usr/sbin/pgbouncer")]


def _fetch() -> None:
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise Absent("no pgbouncer: install the package, or run this once as root on Debian")
    (FETCHED / "partial").mkdir(parents=True, exist_ok=True)
    with (FETCHED / "fetching").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # concurrent test processes
        if (FETCHED / "done").exists():
            return
        command = ["apt-get", "install", "-y", "--no-install-recommends", "--download-only"]
        _run(*command, "-o", f"Dir::Cache::archives={FETCHED}", "pgbouncer")
        for package in FETCHED.glob("*.deb"):
            _run("dpkg", "-x", str(package), str(FETCHED / "root"))
        (FETCHED / "done").touch()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise Absent(f"no pgbouncer: {' '.join(command)}: {done.stderr[-500:]}")


class PgBouncer:
    """`with PgBouncer(server) as pooler:`; never more than `size` connections behind it."""

    def __init__(self, server: Postgres, size: int = 2) -> None:
        self._command = binary()
        self._folder = Path(tempfile.mkdtemp(prefix="backstay-pgbouncer-"))
        self._target = server.port
        self._size = size
        self.port = free_port()

    def __enter__(self) -> PgBouncer:
        file = self._folder / "pgbouncer.ini"
        file.write_text(SETTINGS.format(target=self._target, port=self.port, size=self._size))
        self._folder.chmod(0o755)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                preexec_fn=dies_with_parent(signal.SIGQUIT),
                **_as_nobody(),
            )
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"pgbouncer does not answer: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in {"pgbouncer": "true", **options}.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?{query}"
