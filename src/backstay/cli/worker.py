"""`backstay worker`: runs jobs until it is told to stop.

The first SIGTERM or SIGINT stops claiming; running jobs may finish within the grace period and are given back after it.
The second stops the handlers at once, the third ends the process immediately. A handler that blocks the event loop
delays none of that by more than a few seconds: see worker/stop.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from backstay import settings
from backstay.app import Backstay
from backstay.cli import app_loader, daemon, options
from backstay.cli.daemon import first_of
from backstay.cli.options import AppName, Url
from backstay.cli.output import Exit, without_password
from backstay.core import checks
from backstay.errors import ConfigurationError
from backstay.worker import Worker

log = logging.getLogger("backstay.worker")


@dataclass(frozen=True, slots=True)
class _Settings:
    concurrency: int
    queues: tuple[str, ...]
    grace_seconds: float
    burst: bool
    max_jobs: int | None
    max_memory: int | None
    is_supervised: bool


def worker(
    concurrency: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Jobs to run at a time; default 10.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Worker processes; a parent restarts 2 or more. Default 1.")
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Queues to serve; default: `default` plus the queues of the handlers."),
    ] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=options.length, help="How long running jobs get to finish; default 30s."),
    ] = None,
    burst: Annotated[
        bool, typer.Option("--burst", help="End when nothing is due; what is scheduled for later does not count.")
    ] = False,
    max_jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End after N jobs; with --processes, a new one follows.")
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="End, or replace a handler's process, beyond this; such as 500M."),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: start again when a Python file here changes.")
    ] = False,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug (a line per job), info (default), warning or error.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text (default) or json.")] = None,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Run jobs until SIGTERM or Ctrl-C.

    After the first signal no job starts and running jobs may finish; the second signal stops them.
    """
    level, style = daemon.level(log_level), daemon.style(log_format)
    memory = checks.check_bytes("--max-memory", max_memory)
    is_supervised = daemon.is_child()
    if not is_supervised:
        count = settings.setting("processes", processes, settings.count_above_zero, 1)
        is_replaced = processes is not None and (max_jobs is not None or memory is not None)
        grace_seconds = settings.grace(None if grace is None else grace.total_seconds())
        if reload:
            from backstay.cli import reloader  # here: a worker in production spares itself the memory

            _check_alone(count, burst)
            grace_seconds = grace_seconds if grace is not None else reloader.GRACE_SECONDS
        if reload or count > 1 or is_replaced:
            daemon.configure(level, style)
            arguments = _arguments(
                concurrency, queues, grace_seconds, level, style, url, app, burst, max_jobs, max_memory
            )
            if reload:
                return reloader.run(arguments, grace_seconds)
            return daemon.supervise(count, arguments, grace_seconds, ends_when_done=burst)
    mine = app_loader.load(url, app)
    if not mine.handlers:
        raise ConfigurationError(
            "a worker needs handlers: give your app with --app module:app (or BACKSTAY_APP), and register"
            " handlers on it with @app.job"
        )
    chosen = _Settings(
        settings.concurrency(concurrency),
        _queues(queues, mine),
        settings.grace(None if grace is None else grace.total_seconds()),
        burst,
        max_jobs,
        memory,
        is_supervised,
    )
    daemon.configure(level, style)
    _warn_of_another_url(mine)
    on_a_file = mine.url.startswith("sqlite")
    return daemon.run(lambda: _work(mine, chosen), style, log, None if on_a_file else daemon.loop_for_sockets())


def _warn_of_another_url(app: Backstay) -> None:
    meant = os.environ.get("BACKSTAY_URL")
    if meant and meant != app.url:
        log.warning(
            "BACKSTAY_URL is %s, but the app sets %s in code, which wins: write Backstay() there or use --url",
            without_password(meant),
            without_password(app.url),
        )


def _check_alone(processes: int, burst: bool) -> None:
    if processes > 1 or burst:
        raise ConfigurationError("--reload is for development: leave out --processes and --burst")


async def _work(app: Backstay, chosen: _Settings) -> int:
    stop = daemon.hear(chosen.grace_seconds)
    async with AsyncExitStack() as opened:
        worker = await daemon.begun(lambda tried: _start(app, chosen, tried), opened, stop, log)
        if worker is None:
            return Exit.OK
        daemon.name_worker(worker.worker_id)
        stop.watch([worker], worker.lease_seconds)
        ended = asyncio.ensure_future(worker.join())
        await first_of(ended, stop.asked)
        stopping = asyncio.ensure_future(worker.stop())
        await first_of(stopping, stop.hurried)
        if not stopping.done():
            worker.hurry()
        await stopping
        if worker.failure is not None or stop.hurried.is_set():
            return Exit.FAILED
        reason = worker.ended_for
        return daemon.REPLACE if reason is not None and reason.is_for_another and chosen.is_supervised else Exit.OK


async def _start(app: Backstay, chosen: _Settings, opened: AsyncExitStack) -> Worker:
    await opened.enter_async_context(app)
    return await opened.enter_async_context(
        app.worker(
            concurrency=chosen.concurrency,
            queues=chosen.queues,
            grace=chosen.grace_seconds,
            burst=chosen.burst,
            max_jobs=chosen.max_jobs,
            max_memory=chosen.max_memory,
        )
    )


# Settings


def _queues(given: str | list[str] | None, app: Backstay) -> tuple[str, ...]:
    found: Any = settings.setting("queues", given, lambda value: value, None)
    if found is None:
        return tuple(dict.fromkeys(["default", *(handler.queue for handler in app.handlers.values())]))
    listed = found.split(",") if isinstance(found, str) else found
    names = tuple(name.strip() for name in listed if name.strip())
    if not names:
        raise ConfigurationError("--queues is empty: write --queues emails,reports")
    return names


def _arguments(
    concurrency: int | None,
    queues: str | None,
    grace_seconds: float,
    level: str,
    style: str,
    url: str | None,
    app: str | None,
    burst: bool,
    max_jobs: int | None,
    max_memory: str | None,
) -> list[str]:
    """Return the arguments of the same command for a child, with one process."""
    given = {
        "--concurrency": concurrency,
        "--queues": queues,
        "--grace": grace_seconds,
        "--log-level": level,
        "--log-format": style,
        "--url": url,
        "--app": app,
        "--max-jobs": max_jobs,
        "--max-memory": max_memory,
    }
    chosen = [f"{name}={value}" for name, value in given.items() if value is not None]
    return ["worker", "--processes=1", *chosen, *(["--burst"] if burst else [])]
