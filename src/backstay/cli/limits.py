"""`backstay limits`: list what was set at run time for job types and keys."""

from __future__ import annotations

from datetime import datetime

from backstay.app import Backstay
from backstay.cli import app_loader, options
from backstay.cli.options import AppName, AsJson, Url
from backstay.cli.output import Column
from backstay.core.checks import span
from backstay.core.run_limits import Limit


def limits(as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List the job types and keys that are paused or limited at run time."""
    none = "no limits: nothing was paused or limited at run time"
    app_loader.show(Backstay.limits, _columns, none, as_json=as_json, url=url, app=app)


def _columns(now: datetime) -> list[Column[Limit]]:
    return [
        Column("OF", lambda limit: "type" if limit.job_type is not None else "key"),
        Column("NAME", lambda limit: limit.job_type or limit.key or "", wrap=True),
        Column(
            "STATE",
            lambda limit: "paused" if limit.paused else "active",
            style=lambda limit: "yellow" if limit.paused else "",
        ),
        Column("NOTE", lambda limit: _note(limit, now), wrap=True),
    ]


def _note(limit: Limit, now: datetime) -> str:
    if limit.paused_at is None:
        return ""
    age = span(max(0.0, (now - limit.paused_at).total_seconds()))
    by = f" by {limit.paused_by}" if limit.paused_by else ""
    why = f": {limit.pause_reason}" if limit.pause_reason else ""
    return f"for {age}{options.until_text(limit.paused_until)}{by}{why}"
