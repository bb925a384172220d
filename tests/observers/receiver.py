"""A stand-in for Sentry on this machine: it takes envelopes as they come over the wire, with the key of its DSN."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """`with Receiver() as sentry:`; clients report to sentry.dsn."""

    def __init__(self) -> None:
        self.raw = b""  # all that came, as it was sent
        self.events: list[dict[str, Any]] = []
        self._came = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                known = self.path == "/api/1/envelope/" and "sentry_key=public" in self.headers["X-Sentry-Auth"]
                self.send_response(200 if known else 403)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")
                if known:
                    receiver._take(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def dsn(self) -> str:
        return f"http://public@127.0.0.1:{self._server.server_address[1]}/1"

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def wait_for(self, count: int, seconds: float = 20) -> list[dict[str, Any]]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.events) >= count, seconds), f"{len(self.events)} events came"
            return list(self.events)

    def _take(self, body: bytes) -> None:
        """An envelope: a line of its own, then for each item a line that says what it is and how long, and the item."""
        _, _, rest = body.partition(b"\n")
        with self._came:
            self.raw += body
            while rest.strip():
                head, _, rest = rest.partition(b"\n")
                said = json.loads(head)
                item, rest = rest[: said["length"]], rest[said["length"] + 1 :]
                if said["type"] == "event":
                    self.events.append(json.loads(item))
            self._came.notify_all()
