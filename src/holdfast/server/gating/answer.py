"""The way back: every answer gets the headers that all have, and is known by its status."""

from __future__ import annotations

import html
from collections.abc import Callable

from starlette.types import Message, Receive, Send

from holdfast import codec
from holdfast.server.gating import security_headers
from holdfast.server.gating.body import linger
from holdfast.server.gating.incoming import DASHBOARD, Incoming
from holdfast.server.problems import MEDIA_TYPE, Problem

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{0} · Holdfast</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{2}">
<main><h1>{0}</h1><p class="lead">{1}</p></main>
</html>
"""


class Answer:
    def __init__(self, request: Incoming, send: Send) -> None:
        self.request = request
        self.status: int | None = None
        self.is_stream = False  # of a length that is not known before
        self.is_over = False
        self.began: Callable[[], None] = lambda: None
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = security_headers.added(message.get("headers", ()), self.request.request_id)
            self.is_stream = not any(name == b"content-length" for name, _ in headers)
            message = {**message, "headers": headers}
            self.began()
        elif message["type"] == "http.response.body":
            self.is_over = not message.get("more_body", False)
        await self._send(message)

    async def end(self) -> None:
        """Of a stream: what was sent is all."""
        if self.is_stream and not self.is_over:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, problem: Problem, receive: Receive | None) -> None:
        """With a problem, in the form that the asker reads. `receive`: what is still to come of the request is let go,
        and the connection with it."""
        body, media_type = _written(problem, self.request)
        headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", str(len(body)).encode()),
            *((name.lower().encode(), value.encode()) for name, value in problem.headers.items()),
            *(() if receive is None else ((b"connection", b"close"),)),
        ]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": receive is not None})
        if receive is not None:
            await linger(receive)
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})


def _written(problem: Problem, request: Incoming) -> tuple[bytes, str]:
    if problem.status in (301, 302, 303, 307, 308):
        return b"", "text/plain; charset=utf-8"
    if request.is_dashboard:
        style = f"{request.root}{DASHBOARD}/static/-/dashboard.css"
        detail = problem.detail or ""
        said = [html.escape(each) for each in (problem.title, f"{detail[:1].upper()}{detail[1:]}", style)]
        return _PAGE.format(*said).encode(), "text/html; charset=utf-8"
    return codec.encode(problem.document(None if request.has_key_in_url else request.scope["path"])), MEDIA_TYPE
