"""holdfast migrate"""

from __future__ import annotations

import asyncio

from holdfast.cli import apps, output
from holdfast.cli.options import AppName, AsJson, Url


def migrate(as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Make the queue, or bring its schema to this release."""
    target = apps.load(url, app)
    applied = asyncio.run(target.migrate())
    if as_json:
        output.emit_json({"url": target.url, "applied": applied})
    elif applied:
        print(f"{target.url}: applied {', '.join(applied)}")
    else:
        print(f"{target.url} is up to date")
