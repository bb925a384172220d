"""A local replacement for S3: moto, one request at a time, because it does not lock its buckets."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import time

from tests.support.servers.parent import dies_with_parent
from tests.support.servers.ports import free_port

READY_SECONDS = 60.0
SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
app = DomainDispatcherApplication(create_backend_app)
make_server("127.0.0.1", int(sys.argv[1]), app, threaded=False).serve_forever()
"""


class S3:
    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=dies_with_parent(),
        )
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError("the stand-in for S3 does not start")
            time.sleep(0.1)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def bucket(self, name: str) -> str:
        """Create a bucket; return its URI."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == 200
        connection.close()
        return f"s3://{name}/some/where?region=us-east-1&endpoint=http://127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/moto-api/data.json")
            connection.getresponse().read()
            connection.close()
            return True
        return False
