"""Sockets and connections of `backstay serve`, on top of uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Generator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from backstay import limits
from backstay.core import open_files
from backstay.errors import ConfigurationError
from backstay.server import request
from backstay.server.gate import Gate
from backstay.server.request import address

log = logging.getLogger("backstay.server")
KEPT_ALIVE_SECONDS = 30
_JOINED_BYTES_MAX = 64 * limits.KIB
_TICKS = 10  # per second
_FULL_SECONDS = 60.0  # between two warnings of too many open files


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet: it does once it is decided who may connect."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
        except BaseException:
            found.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {why}; choose others with --host and --port"
        ) from None
    return found


def is_loopback(bound: socket.socket) -> bool:
    return request.is_loopback(str(bound.getsockname()[0]))


def url(bound: socket.socket) -> str:
    """Return the URL for a browser on this machine."""
    name, port = bound.getsockname()[:2]
    found = address(name)
    if found is not None and found.is_unspecified:
        name = "127.0.0.1"
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def reach(bound: socket.socket) -> str:
    """Return the URL for other machines."""
    name, port = bound.getsockname()[:2]
    found = address(name)
    which = " (every address of this machine)" if found is not None and found.is_unspecified else ""
    return f"[{name}]:{port}{which}" if ":" in name else f"{name}:{port}{which}"


class Server(uvicorn.Server):
    """Serves until `stop`. The command handles signals, because it has workers to stop as well."""

    def __init__(self, gate: Gate, started: Callable[[], None] = lambda: None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # errors of clients are not worth a line
        super().__init__(
            uvicorn.Config(
                gate,
                http=Connection,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # the gate reads them: uvicorn would believe every process of this machine
                timeout_keep_alive=KEPT_ALIVE_SECONDS,
                timeout_graceful_shutdown=round(limits.HTTP_STOP_SECONDS),
            )
        )
        self._gate = gate
        self._started = started
        self._warned_at = float("-inf")

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self._warn_if_full()
        return await super().on_tick(counter)

    def _warn_if_full(self) -> None:
        """Warn that new connections wait, or are closed at once: event loops differ in that, and none reports it."""
        now = asyncio.get_running_loop().time()
        if now - self._warned_at > _FULL_SECONDS and open_files.exhausted():
            self._warned_at = now
            log.error("new connections cannot be accepted: %s", open_files.what_to_do())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    def stop(self) -> None:
        """Accept no more requests. Those under way may finish, and streams end now."""
        self._gate.end_streams()
        self.should_exit = True

    def hurry(self) -> None:
        self.force_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Joined:
    """A transport that sends together what is written in one turn of the event loop: the head of a response and its
    body, which would be two packets and two system calls."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._held:
            self._loop.call_soon(self._send)
        self._held.append(data)
        self._size += len(data)
        if self._size > _JOINED_BYTES_MAX:  # a long body: the transport says when its client cannot keep up
            self._send()

    def _send(self) -> None:
        held, self._held, self._size = self._held, [], 0
        if held:
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def close(self) -> None:
        self._send()
        self._transport.close()


class Connection(H11Protocol):
    """A connection that must send its request in time: a head that never ends would occupy it for ever."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Joined(transport, self.loop))  # type: ignore[arg-type]
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()
        else:
            self._wait_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waits is None:
            self._waits = self.loop.call_later(limits.HTTP_READ_SECONDS, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
