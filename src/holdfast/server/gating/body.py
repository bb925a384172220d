"""The body of a request, read whole: within a size, within a time, and JSON that every engine keeps."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message, Receive

from holdfast import codec
from holdfast.errors import InvalidPayload
from holdfast.server.gating.incoming import Incoming
from holdfast.server.problems import Problem

_BESIDE_BYTES = 64 * 1024  # a larger document is inspected in a thread: others should not wait for it
LINGER_SECONDS = 2.0
LINGER_BYTES_MAX = 16 * 1024 * 1024


class Disconnected(Exception):
    """Whoever asked has gone."""


def check_head(request: Incoming, bytes_max: int) -> None:
    """What the head of a request says about its body, before any of it is read."""
    if (request.header(b"content-encoding") or "identity").lower() != "identity":
        raise Problem(415, "encoded-body", "send the body as it is, without Content-Encoding")
    length = request.header(b"content-length")
    if length is not None and request.header(b"transfer-encoding") is not None:
        # a proxy before us may believe the other one, and take what follows for a request of its own
        raise Problem(400, "two-lengths", "send Content-Length or Transfer-Encoding, not both")
    if length is not None and (not length.isascii() or not length.isdigit()):
        raise Problem(400, "bad-length", "Content-Length is no number")
    if length is not None and (len(length) > 18 or int(length) > bytes_max):
        raise too_large(bytes_max)


async def read(receive: Receive, bytes_max: int, seconds: float, reading: set[asyncio.Timeout]) -> bytes:
    """`reading` has the limit while it holds, for a server that stops to shorten."""
    parts: list[bytes] = []
    size = 0
    limit = asyncio.timeout(seconds)
    reading.add(limit)
    try:
        async with limit:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part = message.get("body", b"")
                size += len(part)
                if size > bytes_max:
                    raise too_large(bytes_max)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Problem(408, "too-slow", f"the request did not arrive within {seconds:g} seconds") from None
    finally:
        reading.discard(limit)


async def check(request: Incoming, body: bytes) -> Any:
    """Its type, and of JSON whether it can be read in one way only; then as what, for the route."""
    if not body:
        return None
    wanted = "application/x-www-form-urlencoded" if request.is_dashboard else "application/json"
    if not _is_type(request.header(b"content-type") or "", wanted):
        raise Problem(415, "unsupported-media-type", f"send the body as {wanted}")
    if request.is_dashboard:
        return None
    try:
        if len(body) > _BESIDE_BYTES:
            return await asyncio.to_thread(codec.inspect, body, "body")
        return codec.inspect(body, "body")
    except InvalidPayload as error:
        raise Problem(400, "invalid-json", str(error).replace("cannot be stored", "cannot be read")) from None


def replayed(body: bytes, receive: Receive) -> Receive:
    """The same body for the route; what comes after it, such as the end of the connection, as it comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def linger(receive: Receive) -> None:
    """Let go of what a refused client still sends, for a while: it would not read an answer before it has sent all."""
    size = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while size <= LINGER_BYTES_MAX:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def too_large(bytes_max: int) -> Problem:
    return Problem(413, "body-too-large", f"a body may have {bytes_max:,} bytes: send less at once")


def _is_type(given: str, wanted: str) -> bool:
    media_type, _, parameters = given.partition(";")
    charset = parameters.replace(" ", "").lower()
    return media_type.strip().lower() == wanted and charset in ("", "charset=utf-8", 'charset="utf-8"')
