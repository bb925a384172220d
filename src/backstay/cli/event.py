"""`backstay event NAME JSON`: sends an event to a job, or to a correlation key."""

from __future__ import annotations

from typing import Annotated

import typer

from backstay.app import Backstay
from backstay.cli import app_loader, options, output
from backstay.cli.options import AppName, AsJson, Url
from backstay.core.waits import Delivery
from backstay.errors import InvalidOption
from backstay.ops.events import SentEvent


def event(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the event, as in ctx.wait_for_event.")],
    payload: options.Payload = "null",
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="The job to send it to.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Instead: the correlation key that a job waits for.")
    ] = None,
    event_id: Annotated[
        str | None, typer.Option("--event-id", metavar="ID", help="Sending again with this id has no further effect.")
    ] = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Send an event that a job waits for, or will wait for."""
    if (job is None) == (key is None):
        raise InvalidOption("name the job with --job ID, or a correlation key with --key KEY")
    body = options.read(payload)

    async def work(app: Backstay) -> SentEvent:
        whole = None if job is None else await app_loader.job_id(app, job)
        return await app.send_event(whole, name, body, key=key, event_id=event_id, by=options.actor(by))

    sent = app_loader.run(url, app, work)
    if as_json:
        output.emit_json(sent)
    else:
        print(f"{sent.event_id} {_says(sent)}")


def _says(sent: SentEvent) -> str:
    match sent.delivery:
        case Delivery.KEPT:
            return f"is kept for the key {sent.key}: no job waits for it yet"
        case Delivery.REPEATED:
            return "was sent before: nothing has changed"
        case _:
            return "was recorded" + ("" if sent.job_id is None else f" with job {sent.job_id}")
