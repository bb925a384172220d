"""`backstay queues`: list queues with their depths; pause, resume and limit one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from backstay.app import Backstay
from backstay.cli import app_loader, options, output
from backstay.cli.options import AppName, AsJson, Url
from backstay.cli.output import Column
from backstay.core.checks import count, span
from backstay.core.queues import Queue

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the queue.")]


def queues(context: typer.Context, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List the queues; pause, resume or limit one."""
    if not options.handed_on(context, as_json, url, app):
        none = "no queues yet: the first job, handler or worker creates one"
        app_loader.show(Backstay.queues, _columns, none, as_json=as_json, url=url, app=app)


def pause(
    name: Name,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help='Reason, shown by "explain" and "queues".')] = None,
    until: options.Until = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Pause a queue: running jobs finish, no others start."""
    queue = app_loader.run(
        url, app, lambda each: each.pause_queue(name, until=until, by=options.actor(by), reason=reason)
    )
    _report(queue, f"queue {name} paused{options.until_text(queue.paused_until)}; {_held(queue)}", as_json)


def resume(name: Name, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Resume a paused queue."""
    queue = app_loader.run(url, app, lambda each: each.resume_queue(name, by=options.actor(by)))
    _report(queue, f"queue {name} resumed; {_held(queue)}", as_json)


def limit(
    name: Name,
    most: Annotated[str, typer.Argument(metavar="N", help="Maximum number of pending jobs, or none for no limit.")],
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Limit the pending jobs of a queue; more are rejected."""
    if most != "none" and not most.isdecimal():
        raise typer.BadParameter(f"{most!r} is not a number: give 1 or more, or none", param_hint="N")
    number = None if most == "none" else int(most)
    queue = app_loader.run(url, app, lambda each: each.limit_queue(name, number, by=options.actor(by)))
    said = "has no limit" if number is None else f"accepts at most {count(number, 'pending job')}"
    _report(queue, f"queue {name} {said}; {_held(queue)}", as_json)


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
            lambda queue: "paused" if queue.paused else "active",
            style=lambda queue: "yellow" if queue.paused else "",
        ),
        Column("PENDING", lambda queue: _pending(queue), right=True),
        Column("OLDEST", lambda queue: _age(queue.oldest_pending_at, now), right=True),
        Column("RUNNING", lambda queue: f"{queue.processing:,}", right=True),
        Column("UPCOMING", lambda queue: f"{queue.scheduled + queue.retrying + queue.waiting:,}", right=True),
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
        return f"for {_age(queue.paused_at, now)}{options.until_text(queue.paused_until)}{by}{why}"
    return "" if queue.workers or not queue.pending else "no worker serves it"
