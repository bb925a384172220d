"""A storm on DynamoDB Local: it throttles, conflicts, loses and cuts responses, serves late indexes, and is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from pathlib import Path
from typing import Any

from tests.campaigns.storm.site import Fault, up_as_long_as_down
from tests.support.servers.dynamo_proxy import DynamoProxy
from tests.support.servers.dynamodb import DynamoDB, folder_of_jar

LASTING_SECONDS = (1.0, 5.0)


class DynamoSite:
    skew_seconds = 0.0
    clock_jumps = 0

    def __init__(self) -> None:
        self.release = f"DynamoDB Local ({folder_of_jar().name})"
        self.faults: dict[str, Fault] = {
            "connections severed": self._sever,
            "replies lost": self._lose,
            "errors after commits": self._error,
            "throttling": self._throttle,
            "conflicts": self._conflict,
            "late indexes": self._stale,
            "network silent": self._silence,
            "server killed": self._kill,
            "server restarted": self._restart,
        }
        self._names = [f"storm_{secrets.token_hex(4)}"]
        self._at = 0
        self._server = asyncio.Lock()
        self._stack = contextlib.ExitStack()

    async def open(self, folder: Path) -> None:
        self._dynamodb = await asyncio.to_thread(self._stack.enter_context, DynamoDB(on_disk=True))
        self._proxy = self._stack.enter_context(DynamoProxy(self._dynamodb.port))

    async def close(self) -> None:
        await asyncio.to_thread(self._stack.close)

    @property
    def url(self) -> str:
        return self._url(self._at)

    @property
    def direct(self) -> str:
        return self._dynamodb.url(self._names[self._at], wake_ceiling="1")

    def _url(self, number: int) -> str:
        direct = self._dynamodb.url(self._names[number], wake_ceiling="1")
        return direct.replace(f":{self._dynamodb.port}", f":{self._proxy.port}")

    def worker_options(self, slot: int) -> dict[str, Any]:
        return {}

    def next_url(self) -> str:
        self._names.append(f"storm_{secrets.token_hex(4)}")
        return self._url(len(self._names) - 1)

    def moved(self) -> None:
        self._at = len(self._names) - 1

    async def calm(self) -> None:
        async with self._server:
            self._proxy.heal()

    # Faults

    async def _sever(self, draw: random.Random) -> None:
        self._proxy.sever(draw.randint(1, 5))

    async def _lose(self, draw: random.Random) -> None:
        self._proxy.lose(draw.randint(1, 5))

    async def _error(self, draw: random.Random) -> None:
        self._proxy.reply_500_after(draw.randint(1, 5))

    async def _throttle(self, draw: random.Random) -> None:
        self._proxy.throttle(draw.uniform(0.1, 0.5))
        await asyncio.sleep(draw.uniform(*LASTING_SECONDS))
        self._proxy.throttle(0)

    async def _conflict(self, draw: random.Random) -> None:
        self._proxy.conflict(draw.uniform(0.1, 0.4))
        await asyncio.sleep(draw.uniform(*LASTING_SECONDS))
        self._proxy.conflict(0)

    async def _stale(self, draw: random.Random) -> None:
        self._proxy.stale(draw.uniform(0.5, 3.0))
        await asyncio.sleep(draw.uniform(*LASTING_SECONDS))
        self._proxy.stale(0)

    async def _silence(self, draw: random.Random) -> None:
        async with self._server:
            self._proxy.blackhole()
            await asyncio.sleep(draw.uniform(0.5, 3.0))
            self._proxy.heal()

    async def _kill(self, draw: random.Random) -> None:
        async with self._server, up_as_long_as_down():
            await asyncio.to_thread(self._dynamodb.restart, "kill")

    async def _restart(self, draw: random.Random) -> None:
        async with self._server, up_as_long_as_down():
            await asyncio.to_thread(self._dynamodb.restart)
