"""A small chat service for the demonstration: users, what they wrote, and the messages sent to them.

Everything is in memory. A message with a known token gets the same response as the first one, and is not stored again.
"""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import ValidationError

from companion.chat import Entry, Message, Receipt, User


class Receiver:
    """`with Receiver() as chat:`; its address is chat.url."""

    def __init__(self, port: int = 0) -> None:
        self.users: dict[str, User] = {}
        self.written: dict[str, list[Entry]] = {}
        self.gone: set[str] = set()  # users whose mailbox refuses every message
        self.messages: dict[str, Message] = {}  # by token, as first received
        self.received_at: dict[str, datetime] = {}
        self.sends: Counter[str] = Counter()  # by token: how often it was received
        self.troubles: deque[tuple[int, dict[str, str]]] = deque()  # responses to the next messages
        # called after a message is stored, before the response
        self.on_kept: Callable[[Message], None] = lambda message: None
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def add(self, user: User, written: list[Entry] | None = None) -> None:
        self.users[user.user_id] = user
        self.written[user.user_id] = written or []

    def wait_until(self, holds: Callable[[], bool], seconds: float = 60) -> bool:
        """Wait until a condition holds; it is checked after every message."""
        with self._changed:
            return self._changed.wait_for(holds, seconds)

    # Responses: a status, a body, and headers

    def get(self, path: str, query: dict[str, str]) -> Answer:
        match path.strip("/").split("/"):
            case ["users"]:
                return 200, list(self.users), {}
            case ["users", user_id] if user_id in self.users:
                return 200, self.users[user_id].model_dump(mode="json"), {}
            case ["users", user_id, "entries"] if user_id in self.users:
                begin, end = (datetime.fromisoformat(query[name]) for name in ("begin", "end"))
                found = [each for each in self.written[user_id] if begin <= each.at < end]
                return 200, [each.model_dump(mode="json") for each in found], {}
        return 404, {"error": f"nothing is at {path}"}, {}

    def post(self, message: Message) -> Answer:
        with self._changed:
            try:
                self.sends[message.token] += 1
                if self.troubles:
                    status, headers = self.troubles.popleft()
                    return status, {"error": "not now"}, headers
                if message.user_id not in self.users or message.user_id in self.gone:
                    return 410, {"error": f"{message.user_id} gets no messages"}, {}
                repeated = message.token in self.messages
                if not repeated:
                    self.messages[message.token] = message
                    self.received_at[message.token] = datetime.now(UTC)
            finally:
                self._changed.notify_all()
        self.on_kept(message)
        receipt = Receipt(received_at=self.received_at[message.token], repeated=repeated)
        return 200, receipt.model_dump(mode="json"), {}


Answer = tuple[int, Any, dict[str, str]]


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            try:
                self._answer(*receiver.get(path, dict(urllib.parse.parse_qsl(query))))
            except (KeyError, ValueError) as error:
                self._answer(400, {"error": f"{path} needs begin and end, two times: {error}"}, {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path != "/messages":
                return self._answer(404, {"error": f"nothing is at {self.path}"}, {})
            try:
                message = Message.model_validate_json(body)
            except ValidationError as error:
                return self._answer(422, {"error": str(error)}, {})
            return self._answer(*receiver.post(message))

        def _answer(self, status: int, body: Any, headers: dict[str, str]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def handle(self) -> None:
            with suppress(ConnectionError):  # the client was killed before the response
                super().handle()

        def log_message(self, format: str, *args: Any) -> None: ...

    return Handler
