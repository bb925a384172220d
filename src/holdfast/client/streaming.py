"""Server-sent events: read line by line, and gone on with where a connection broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec

from holdfast import codec
from holdfast.client.requesting import PAUSE_SECONDS, TRIES, Requests, error_of

_GONE = 204  # the stream was told to its end before


class JobEvent(msgspec.Struct, frozen=True):
    """What happened: `state`, `progress`, `log`, or `end`, which is the last."""

    name: str
    event_id: str
    said: dict[str, Any]


async def events(requests: Requests, path: str, after: str | None) -> AsyncIterator[JobEvent]:
    """To the end of the stream. A connection that breaks is made again, and the stream goes on after its last event."""
    failures = 0
    while True:
        headers = {} if after is None else {"Last-Event-ID": after}
        try:
            async with requests.stream(path, headers) as response:
                if response.status_code == _GONE:
                    return
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                async for event in _read(response):
                    failures, after = 0, event.event_id
                    yield event
                    if event.name == "end":
                        return
        except httpx.TransportError as error:
            failures += 1
            if failures >= TRIES:
                raise requests.unreachable(error) from error
        await asyncio.sleep(PAUSE_SECONDS * 2 ** min(failures, 5))  # the server has ended it: it stops, or starts again


async def _read(response: httpx.Response) -> AsyncIterator[JobEvent]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "event" in fields:
            yield JobEvent(fields["event"], fields.get("id", ""), codec.decode(fields.get("data", "{}")))
        fields = {}
