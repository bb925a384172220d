"""`backstay mcp`: tools for an agent over stdin and stdout, after the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from backstay.app import Backstay
from backstay.cli import app_loader
from backstay.cli.options import AppName, Url
from backstay.core.access_keys import SCOPES


def mcp(
    scopes: Annotated[
        str,
        typer.Option("--scopes", metavar="SCOPES", help=f"What the agent may do: {', '.join(SCOPES)}; default read."),
    ] = "read",
    queues: Annotated[
        str | None,
        typer.Option("--queues", metavar="NAMES", help="Queues that it sees, with * for any text; default all."),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Its name in histories and the audit trail; default agent.")
    ] = "agent",
    url: Url = None,
    app: AppName = None,
) -> None:
    """Serve tools for an AI agent over stdin and stdout (Model Context Protocol)."""
    from backstay import agents  # it needs the extra `mcp`

    who = agents.principal(name, _names(scopes), _names(queues or ""))

    async def work(app: Backstay) -> None:
        await agents.server(app, who).run_stdio_async()

    app_loader.run(url, app, work)


def _names(listed: str) -> list[str]:
    return [name for each in listed.split(",") if (name := each.strip())]
