"""`backstay serve`: the HTTP API and the dashboard, optionally with workers in the same process.

The first SIGTERM or SIGINT accepts no more requests and jobs: running ones may finish, streams end, and the exit code
is 0. The second stops everything at once.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backstay import limits, posix, settings
from backstay.app import Backstay
from backstay.cli import app_loader, daemon, options
from backstay.cli.daemon import first_of
from backstay.cli.options import AppName, Url
from backstay.cli.output import Exit
from backstay.errors import ConfigurationError
from backstay.server import missing
from backstay.worker import Worker

if TYPE_CHECKING:
    from backstay.server.listen import Server


log = logging.getLogger("backstay.server")
HOST, PORT = "127.0.0.1", 8000
FILES_MAX = 65_536  # every connection is one


@dataclass(frozen=True, slots=True)
class _Settings:
    host: str
    port: int
    workers: int
    hosts: tuple[str, ...]
    proxies: tuple[str, ...]
    rate: float
    grace_seconds: float


def serve(
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on; default 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="N", help="Port; default 8000, 0 for any free one.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Job workers to run in the server; default 0.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(metavar="A,B", help="Host names of the server, besides this machine's own.")
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Proxy or network whose X-Forwarded-For is believed; repeatable."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="Requests per second for each key; default 1000.")
    ] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=options.length, help="How long running jobs get to finish; default 30s."),
    ] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info (default), warning, …")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text (default) or json.")] = None,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Serve the HTTP API and the dashboard."""
    level, style = daemon.level(log_level), daemon.style(log_format)
    _check_installed()
    chosen = _chosen(host, port, workers, hosts, proxy, rate, grace)
    mine = app_loader.load(url, app)
    if chosen.workers and not mine.handlers:
        raise ConfigurationError(
            "workers need handlers: give your app with --app module:app (or BACKSTAY_APP), and register handlers"
            " on it with @app.job; or remove --workers"
        )
    daemon.configure(level, style)
    posix.allow_open_files(FILES_MAX)  # the usual 1,024 are few if streams stay open
    return daemon.run(lambda: _serve(mine, chosen), style, log, daemon.loop_for_sockets())


def _check_installed() -> None:
    """Check before anything is opened that the packages of the server are installed."""
    try:
        for name in ("listen", "application", "metrics"):
            importlib.import_module(f"backstay.server.{name}")
        importlib.import_module("backstay.dashboard.page")
    except ModuleNotFoundError as error:
        raise missing(error) from None


def _chosen(
    host: str | None,
    port: int | None,
    workers: int | None,
    hosts: str | None,
    proxies: list[str] | None,
    rate: float | None,
    grace: timedelta | None,
) -> _Settings:
    return _Settings(
        host=settings.setting("host", host, str, HOST),
        port=settings.setting("port", port, _port, PORT),
        workers=settings.setting("serve_workers", workers, _count, 0),
        hosts=_listed(settings.setting("hosts", hosts, _as_given, "")),
        proxies=_proxies(proxies or None),
        rate=settings.setting("rate", rate, settings.seconds_above_zero, limits.HTTP_RATE),
        grace_seconds=settings.grace(None if grace is None else grace.total_seconds()),
    )


def _as_given(value: Any) -> Any:
    return value


def _listed(found: Any) -> tuple[str, ...]:
    """Split a list of texts, each of which may be a list with commas."""
    texts = [found] if isinstance(found, str) else found
    return tuple(part.strip() for text in texts for part in str(text).split(",") if part.strip())


def _proxies(given: list[str] | None) -> tuple[str, ...]:
    from backstay.server.proxies import Proxies

    found = _listed(settings.setting("proxies", given, _as_given, []))
    settings.used("proxies", given, lambda: Proxies(found))
    return found


def _port(value: Any) -> int:
    """a number from 0 to 65535"""
    number = int(value)
    if not 0 <= number <= 65_535:
        raise ValueError
    return number


def _count(value: Any) -> int:
    """a whole number from 0"""
    number = int(value)
    if number < 0:
        raise ValueError
    return number


async def _serve(app: Backstay, chosen: _Settings) -> Exit:
    from backstay.server import listen

    stop = daemon.hear(chosen.grace_seconds)
    async with AsyncExitStack() as opened:
        bound = opened.enter_context(listen.bind(chosen.host, chosen.port))
        workers = await daemon.begun(lambda tried: _start(app, chosen, bound, tried), opened, stop, log)
        if workers is None:
            return Exit.OK
        stop.watch(workers, max((worker.lease_seconds for worker in workers), default=0.0))
        server = _server(app, chosen, bound)
        serves = asyncio.ensure_future(server.serve([bound]))
        ends = [serves, *(asyncio.ensure_future(worker.join()) for worker in workers)]
        await first_of(asyncio.ensure_future(asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)), stop.asked)
        server.stop()
        stopping = asyncio.ensure_future(
            asyncio.wait([serves, *(asyncio.ensure_future(each.stop()) for each in workers)])
        )
        await first_of(stopping, stop.hurried)
        if not stopping.done():
            server.hurry()
            for worker in workers:
                worker.hurry()
        await stopping
        serves.result()
        failed = stop.hurried.is_set() or any(worker.failure is not None for worker in workers)
        return Exit.FAILED if failed else Exit.OK


async def _start(app: Backstay, chosen: _Settings, bound: socket.socket, opened: AsyncExitStack) -> list[Worker]:
    """Open the app, and start its workers, or only maintenance if the workers are elsewhere."""
    await opened.enter_async_context(app)
    await _check_who_may_ask(app, bound)
    workers = [await opened.enter_async_context(app.worker(grace=chosen.grace_seconds)) for _ in range(chosen.workers)]
    if not workers:
        await opened.enter_async_context(app.maintenance("server"))
    return workers


async def _check_who_may_ask(app: Backstay, bound: socket.socket) -> None:
    from backstay.server import listen

    if listen.is_loopback(bound):
        return
    if not any(key.state == "live" for key in await app.api_keys()):
        raise ConfigurationError(
            f"{bound.getsockname()[0]} is reachable from other machines, but there are no API keys yet:"
            ' create one with "backstay keys create NAME --scope admin", or serve on 127.0.0.1'
        )


def _server(app: Backstay, chosen: _Settings, bound: socket.socket) -> Server:
    from backstay.server import listen
    from backstay.server.application import assemble

    names = (*chosen.hosts, chosen.host, socket.gethostname())
    address = listen.url(bound)
    lines = [f"Backstay is serving {app.location}", f"  API        {address}", f"  Dashboard  {address}/dashboard"]
    if not listen.is_loopback(bound):
        lines.append(f"  Address    {listen.reach(bound)}")

    def started() -> None:
        print("\n".join(lines), flush=True)

    return listen.Server(assemble(app, hosts=names, proxies=chosen.proxies, rate=chosen.rate), started)
