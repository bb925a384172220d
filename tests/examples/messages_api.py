"""A language model's server on this machine: it speaks the Messages API, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    looks_needed: int = 2  # how often a batch is asked for until it is done
    has_batches: bool = True
    answer: str = "People wrote about [3]. <script>__p(1)</script>"
    refuse: set[str] = field(default_factory=set)  # requests of a batch that end without an answer
    batches: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    looks: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    asked: threading.Event = field(default_factory=threading.Event)  # the first message has come
    may_answer: threading.Event = field(default_factory=threading.Event)  # messages wait for this

    def __post_init__(self) -> None:
        self.may_answer.set()

    def answer_to(self, method: str, path: str, body: Any) -> tuple[int, str]:
        if (method, path) == ("POST", "/v1/messages"):
            self.messages.append(body)
            self.asked.set()
            self.may_answer.wait(60)
            return 200, json.dumps(self._message("Streets and squares"))
        if not self.has_batches:
            return 404, '{"type": "error"}'
        if (method, path) == ("POST", "/v1/messages/batches"):
            batch_id = f"batch_{len(self.batches) + 1}"
            self.batches[batch_id] = body["requests"]
            return 200, json.dumps({"id": batch_id, "processing_status": "in_progress"})
        batch_id, _, rest = path.removeprefix("/v1/messages/batches/").partition("/")
        if batch_id not in self.batches:
            return 404, '{"type": "error"}'
        if rest == "results":
            return 200, "\n".join(json.dumps(self._result(each["custom_id"])) for each in self.batches[batch_id])
        self.looks += 1
        done = self.looks >= self.looks_needed
        return 200, json.dumps({"id": batch_id, "processing_status": "ended" if done else "in_progress"})

    def _message(self, text: str) -> dict[str, Any]:
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}

    def _result(self, name: str) -> dict[str, Any]:
        if name in self.refuse:
            return {"custom_id": name, "result": {"type": "errored"}}
        return {"custom_id": name, "result": {"type": "succeeded", "message": self._message(f"{name}: {self.answer}")}}


@contextmanager
def receiving(receiver: Receiver) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._answer("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_GET(self) -> None:
            self._answer("GET", None)

        def _answer(self, method: str, body: Any) -> None:
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, said = receiver.answer_to(method, self.path, body)
            with suppress(ConnectionError):  # whoever asked may have been killed
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(said.encode())))
                self.end_headers()
                self.wfile.write(said.encode())

        def log_message(self, *_: object) -> None:
            """Nothing on the test's output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
