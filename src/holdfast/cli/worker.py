"""holdfast worker: runs jobs until it is told to stop.

The first SIGTERM or SIGINT stops claiming; what runs may finish within the grace and is given back after it. The second
stops the handlers at once, the third ends the process as it stands.
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

from holdfast import settings
from holdfast.app import Holdfast
from holdfast.cli import apps, lasting, options, supervisor, worker_logs
from holdfast.cli.exits import Exit
from holdfast.cli.options import AppName, Url
from holdfast.cli.stopping import Stop, first_of
from holdfast.cli.text import without_password
from holdfast.errors import ConfigurationError
from holdfast.worker import Worker

log = logging.getLogger("holdfast.worker")


@dataclass(frozen=True, slots=True)
class _Settings:
    concurrency: int
    queues: tuple[str, ...]
    grace_seconds: float


def worker(
    concurrency: Annotated[int | None, typer.Option(min=1, metavar="N", help="Jobs at a time; default 10.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Worker processes; default 1.")] = None,
    queues: Annotated[
        str | None, typer.Option(metavar="A,B", help="Queues to serve; default: `default` and those of the handlers.")
    ] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=options.length, help="How long running jobs may finish; default 30s."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug (a line per job), info (default), warning or error.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="text (default) or json.")] = None,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Run jobs until SIGTERM or Ctrl-C; once more stops them now."""
    level, style = worker_logs.level(log_level), worker_logs.style(log_format)
    if settings.setting("processes", processes, settings.count_above_zero, 1) > 1 and not supervisor.is_child():
        worker_logs.configure(level, style)
        count = settings.setting("processes", processes, settings.count_above_zero, 1)
        return supervisor.supervise(count, _arguments(concurrency, queues, grace, level, style, url, app))
    mine = apps.load(url, app)
    if not mine.handlers:
        raise ConfigurationError(
            "a worker needs handlers: name your app with --app module:app (or HOLDFAST_APP), and register"
            " handlers on it with @app.job"
        )
    chosen = _Settings(
        settings.concurrency(concurrency),
        _queues(queues, mine),
        settings.grace(None if grace is None else grace.total_seconds()),
    )
    worker_logs.configure(level, style)
    _warn_of_another_url(mine)
    return lasting.run(lambda: _work(mine, chosen), style, log)


def _warn_of_another_url(app: Holdfast) -> None:
    meant = os.environ.get("HOLDFAST_URL")
    if meant and meant != app.url:
        log.warning(
            "HOLDFAST_URL is %s, but the app has %s in its code, and that counts: write Holdfast() there or use --url",
            without_password(meant),
            without_password(app.url),
        )


async def _work(app: Holdfast, chosen: _Settings) -> Exit:
    stop = Stop(chosen.grace_seconds)
    async with AsyncExitStack() as opened:
        worker = await lasting.begun(lambda tried: _start(app, chosen, tried), opened, stop, log)
        if worker is None:
            return Exit.OK
        worker_logs.name_worker(worker.worker_id)
        ended = asyncio.ensure_future(worker.join())
        minutes = asyncio.ensure_future(worker_logs.sum_up_minutes(app, worker.worker_id))
        await first_of(ended, stop.asked)
        minutes.cancel()
        stopping = asyncio.ensure_future(worker.stop())
        await first_of(stopping, stop.hurried)
        if not stopping.done():
            worker.hurry()
        await stopping
        return Exit.FAILED if worker.failure is not None or stop.hurried.is_set() else Exit.OK


async def _start(app: Holdfast, chosen: _Settings, opened: AsyncExitStack) -> Worker:
    await opened.enter_async_context(app)
    return await opened.enter_async_context(
        app.worker(concurrency=chosen.concurrency, queues=chosen.queues, grace=chosen.grace_seconds)
    )


# Settings


def _queues(given: str | list[str] | None, app: Holdfast) -> tuple[str, ...]:
    found: Any = settings.setting("queues", given, lambda value: value, None)
    if found is None:
        return tuple(dict.fromkeys(["default", *(handler.queue for handler in app.handlers.values())]))
    listed = found.split(",") if isinstance(found, str) else found
    names = tuple(name.strip() for name in listed if name.strip())
    if not names:
        raise ConfigurationError("--queues names no queue: write --queues emails,reports")
    return names


def _arguments(
    concurrency: int | None,
    queues: str | None,
    grace: timedelta | None,
    level: str,
    style: str,
    url: str | None,
    app: str | None,
) -> list[str]:
    """The same command for a child, with one process."""
    given = {
        "--concurrency": concurrency,
        "--queues": queues,
        "--grace": None if grace is None else grace.total_seconds(),
        "--log-level": level,
        "--log-format": style,
        "--url": url,
        "--app": app,
    }
    chosen = [f"{name}={value}" for name, value in given.items() if value is not None]
    return ["worker", "--processes=1", *chosen]
