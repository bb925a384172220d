"""A local replacement for S3: moto, one request at a time, because it does not lock its buckets.

moto takes any signature. Here each request is checked before it is passed on, and refused as S3 does if its signature
is wrong.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.servers.parent import dies_with_parent
from tests.support.servers.ports import free_port
from tests.support.servers.signatures import fault

READY_SECONDS = 60.0
SET_UP = "set-up"
ROOT = Path(__file__).parents[3]
SECRETS = {"backstay": "backstay", "someone": "secret"}  # of local servers, and of tests
SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from tests.support.servers.s3 import signed
from werkzeug.serving import make_server
app = DomainDispatcherApplication(create_backend_app)
make_server("127.0.0.1", int(sys.argv[1]), signed(app), threaded=False).serve_forever()
"""


def signed(app: Any) -> Any:
    """Return an application that lets only signed requests through, and those of the tests' own set-up."""

    def checked(environ: dict[str, Any], start_response: Any) -> Any:
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        }
        target = environ["RAW_URI"]
        if not target.startswith("/moto-api/") and headers.get("user-agent") != SET_UP:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(body)
            if why := fault(SECRETS, "s3", environ["REQUEST_METHOD"], target, headers, body):
                start_response("403 Forbidden", [("Content-Type", "application/xml")])
                return [f"<Error><Code>SignatureDoesNotMatch</Code><Message>{why}</Message></Error>".encode()]
        return app(environ, start_response)

    return checked


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
            cwd=ROOT,
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
        connection.request("PUT", f"/{name}", headers={"User-Agent": SET_UP})
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
