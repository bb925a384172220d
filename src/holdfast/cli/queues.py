"""holdfast queues: what waits in each, and pausing, resuming and limiting one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, listing, options, output
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.output import Column
from holdfast.cli.text import count, span
from holdfast.queues import Queue

Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue.")]


def queues(context: typer.Context, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List the queues; pause, resume or limit one."""
    if not options.handed_on(context, as_json, url, app):
        none = "no queue is named yet: a job, a handler or a worker names one"
        listing.show(Holdfast.queues, _columns, none, as_json=as_json, url=url, app=app)


def pause(
    name: Name,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; “explain” and “queues” say it.")] = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Start no more jobs of a queue; what runs goes on."""
    queue = _change(name, lambda each: each.pause_queue(name, by=options.who(by), reason=reason), url, app)
    _report(queue, f"{name} is paused; {_held(queue)}", as_json)


def resume(name: Name, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Go on with a paused queue."""
    queue = _change(name, lambda each: each.resume_queue(name), url, app)
    _report(queue, f"{name} goes on; {_held(queue)}", as_json)


def limit(
    name: Name,
    most: Annotated[str, typer.Argument(metavar="N", help="Pending jobs at most, or none for no limit.")],
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Refuse new jobs while so many of a queue are pending."""
    if most != "none" and not most.isdecimal():
        raise typer.BadParameter(f"{most!r} is no number: write 1 or more, or none", param_hint="N")
    number = None if most == "none" else int(most)
    queue = _change(name, lambda each: each.limit_queue(name, number), url, app)
    said = "has no limit" if number is None else f"takes no more than {count(number, 'pending job')}"
    _report(queue, f"{name} {said}; {_held(queue)}", as_json)


def _change(name: str, change: Callable[[Holdfast], Awaitable[Queue]], url: str | None, app: str | None) -> Queue:
    async def work(app: Holdfast) -> Queue:
        known = [queue.name for queue in await app.queues()]
        if name not in known:
            listed = ", ".join(known) or "none"
            output.say(f"no job, handler or worker names the queue {name} so far (known: {listed})")
        return await change(app)

    return apps.run(url, app, work)


def _report(queue: Queue, line: str, as_json: bool) -> None:
    if as_json:
        output.emit_json(queue)
    else:
        print(line)


def _held(queue: Queue) -> str:
    return f"{count(queue.pending, 'job')} pending, {queue.processing:,} running"


def _columns(now: datetime) -> list[Column[Queue]]:
    return [
        Column("QUEUE", lambda queue: queue.name, wrap=True),
        Column(
            "STATE",
            lambda queue: "paused" if queue.paused else "open",
            style=lambda queue: "yellow" if queue.paused else "",
        ),
        Column("PENDING", lambda queue: _pending(queue), right=True),
        Column("OLDEST", lambda queue: _age(queue.oldest_pending_at, now), right=True),
        Column("RUNNING", lambda queue: f"{queue.processing:,}", right=True),
        Column("LATER", lambda queue: f"{queue.scheduled + queue.retrying + queue.waiting:,}", right=True),
        Column("WORKERS", lambda queue: f"{queue.workers:,}", right=True, wide=True),
        Column("NOTE", lambda queue: _note(queue, now), wrap=True),
    ]


def _pending(queue: Queue) -> str:
    return f"{queue.pending:,}" if queue.max_pending is None else f"{queue.pending:,}/{queue.max_pending:,}"


def _age(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else span(max(0.0, (now - moment).total_seconds()))


def _note(queue: Queue, now: datetime) -> str:
    if queue.paused_at is not None:
        by = f" by {queue.paused_by}" if queue.paused_by else ""
        why = f": {queue.pause_reason}" if queue.pause_reason else ""
        return f"for {_age(queue.paused_at, now)}{by}{why}"
    return "" if queue.workers or not queue.pending else "no worker serves it"
