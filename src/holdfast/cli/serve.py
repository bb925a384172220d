"""holdfast serve: the HTTP API and the dashboard, with workers beside them where that is asked for.

The first SIGTERM or SIGINT takes no more requests and jobs: what is under way may finish, streams end, and the exit
code is 0. The second stops all of it at once.
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

from holdfast import limits, settings
from holdfast.app import Holdfast
from holdfast.cli import apps, lasting, options, worker_logs
from holdfast.cli.exits import Exit
from holdfast.cli.options import AppName, Url
from holdfast.cli.stopping import Stop, first_of
from holdfast.errors import ConfigurationError
from holdfast.server import missing
from holdfast.worker import Worker

if TYPE_CHECKING:
    from holdfast.server.serving import Server

log = logging.getLogger("holdfast.server")
HOST, PORT = "127.0.0.1", 8000
FILES_MAX = 65_536  # every connection is one


@dataclass(frozen=True, slots=True)
class _Settings:
    host: str
    port: int
    workers: int
    hosts: tuple[str, ...]
    rate: float
    grace_seconds: float


def serve(
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Where to listen; default 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="N", help="Default 8000; 0: a free one.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=0, metavar="N", help="Job workers inside; default 0.")] = None,
    hosts: Annotated[
        str | None, typer.Option(metavar="A,B", help="Names that the server goes by, beside this machine's own.")
    ] = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Requests per second and key; default 1000.")] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=options.length, help="How long running jobs may finish; default 30s."),
    ] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info (default), warning, …")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text (default) or json.")] = None,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Serve the HTTP API and the dashboard."""
    level, style = worker_logs.level(log_level), worker_logs.style(log_format)
    _check_installed()
    chosen = _chosen(host, port, workers, hosts, rate, grace)
    mine = apps.load(url, app)
    if chosen.workers and not mine.handlers:
        raise ConfigurationError(
            "workers need handlers: name your app with --app module:app (or HOLDFAST_APP), and register handlers"
            " on it with @app.job; or leave out --workers"
        )
    worker_logs.configure(level, style)
    _allow_files()
    return lasting.run(lambda: _serve(mine, chosen), style, log)


def _check_installed() -> None:
    """Before anything is opened: what the server is made of, each with the package that it stands on."""
    try:
        for name in ("serving", "assembly", "exposition"):
            importlib.import_module(f"holdfast.server.{name}")
        importlib.import_module("holdfast.dashboard.frame")
    except ModuleNotFoundError as error:
        raise missing(error) from None


def _chosen(
    host: str | None,
    port: int | None,
    workers: int | None,
    hosts: str | None,
    rate: float | None,
    grace: timedelta | None,
) -> _Settings:
    found: Any = settings.setting("hosts", hosts, lambda value: value, "")
    listed = found.split(",") if isinstance(found, str) else found
    return _Settings(
        host=settings.setting("host", host, str, HOST),
        port=settings.setting("port", port, _port, PORT),
        workers=settings.setting("serve_workers", workers, _count, 0),
        hosts=tuple(name.strip() for name in listed if name.strip()),
        rate=settings.setting("rate", rate, settings.seconds_above_zero, limits.HTTP_RATE),
        grace_seconds=settings.grace(None if grace is None else grace.total_seconds()),
    )


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


def _allow_files() -> None:
    """As many connections as the system lets us have: the usual 1,024 are few where streams stay open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(app: Holdfast, chosen: _Settings) -> Exit:
    from holdfast.server import serving

    stop = Stop(chosen.grace_seconds)
    async with AsyncExitStack() as opened:
        bound = opened.enter_context(serving.bind(chosen.host, chosen.port))
        workers = await lasting.begun(lambda tried: _start(app, chosen, bound, tried), opened, stop, log)
        if workers is None:
            return Exit.OK
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


async def _start(app: Holdfast, chosen: _Settings, bound: socket.socket, opened: AsyncExitStack) -> list[Worker]:
    """The app, open, and its workers; or upkeep alone, where workers are elsewhere."""
    await opened.enter_async_context(app)
    await _check_who_may_ask(app, bound)
    workers = [await opened.enter_async_context(app.worker(grace=chosen.grace_seconds)) for _ in range(chosen.workers)]
    if not workers:
        await opened.enter_async_context(app.chores("server"))
    return workers


async def _check_who_may_ask(app: Holdfast, bound: socket.socket) -> None:
    from holdfast.server import serving

    if serving.is_loopback(bound):
        return
    if not any(key.state == "live" for key in await app.api_keys()):
        raise ConfigurationError(
            f"{bound.getsockname()[0]} can be reached from other machines, and there is no key yet to tell who may ask:"
            ' make one with "holdfast keys create NAME --scope admin", or serve on 127.0.0.1'
        )


def _server(app: Holdfast, chosen: _Settings, bound: socket.socket) -> Server:
    from holdfast.server import serving
    from holdfast.server.assembly import assemble

    names = (*chosen.hosts, chosen.host, socket.gethostname())
    address = serving.url(bound)
    lines = [f"Holdfast serves {app.location}", f"  API        {address}", f"  Dashboard  {address}/dashboard"]
    if not serving.is_loopback(bound):
        lines.append(f"  Listens on {serving.reach(bound)}")

    def started() -> None:
        print("\n".join(lines), flush=True)

    return serving.Server(assemble(app, hosts=names, rate=chosen.rate), started)
