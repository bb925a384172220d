"""`backstay keys`: list, create, revoke and remove API keys."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer

from backstay.app import Backstay
from backstay.cli import app_loader, options, output
from backstay.cli.options import AppName, AsJson, Url
from backstay.cli.output import Column
from backstay.core.access_keys import SCOPES, CreatedKey, KeyInfo
from backstay.core.checks import away

_STYLES = {"revoked": "dim", "expired": "dim"}
KeyId = Annotated[str, typer.Argument(metavar="ID", help='Key id, as listed by "backstay keys".')]


def keys(context: typer.Context, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List API keys; create, revoke or remove one."""
    if not options.handed_on(context, as_json, url, app):
        none = 'no keys: create one with "backstay keys create NAME --scope admin"'
        app_loader.show(Backstay.api_keys, _columns, none, as_json=as_json, url=url, app=app)


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will use the key; shown in job histories.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help=f"Permission: {', '.join(SCOPES)} (everything); repeatable."),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help='Only these queues: mail, "mail*"; repeatable.'),
    ] = None,
    expires: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=options.length, help="Expire after 12h, 90d, …; default: never."),
    ] = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Create a key and print it; it is shown only once."""
    if not scope:
        raise typer.BadParameter(f"choose one or more of {', '.join(SCOPES)}", param_hint="--scope")

    async def work(app: Backstay) -> CreatedKey:
        return await app.create_key(name, scope, queues=queue or (), expires_in=expires, by=options.actor(by))

    made = app_loader.run(url, app, work, makes=True)
    if as_json:
        output.emit_json({"key": made.text, **_document(made.key)})
        return
    output.say(f"created {made.key.key_id} ({name}): {_rights(made.key)}. It is shown only once: store it as a secret")
    print(made.text)


def revoke(key_id: KeyId, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Revoke a key and end the sessions opened with it."""
    found = app_loader.run(url, app, lambda each: each.revoke_key(key_id, by=options.actor(by)))
    if as_json:
        output.emit_json(found)
    else:
        print(f"revoked {found.key_id} ({found.name}); servers reject it within five seconds")


def remove(key_id: KeyId, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Remove a revoked or expired key from the list."""
    app_loader.run(url, app, lambda each: each.remove_key(key_id, by=options.actor(by)))
    if as_json:
        output.emit_json({"removed": key_id})
    else:
        print(f"removed {key_id}")


def _document(key: KeyInfo) -> dict[str, object]:
    return {name: getattr(key, name) for name in key.__struct_fields__}


def _rights(key: KeyInfo) -> str:
    where = f" in {', '.join(key.queues)}" if key.queues else " in all queues"
    until = "" if key.expires_at is None else f", until {key.expires_at:%Y-%m-%d %H:%M} UTC"
    return f"{', '.join(key.scopes)}{where}{until}"


def _columns(now: datetime) -> list[Column[KeyInfo]]:
    return [
        Column("ID", lambda key: key.key_id),
        Column("NAME", lambda key: key.name, cut=True),
        Column("SCOPES", lambda key: ", ".join(key.scopes), wrap=True),
        Column("QUEUES", lambda key: ", ".join(key.queues) or "all", wrap=True),
        Column("STATE", lambda key: key.state, style=lambda key: _STYLES.get(key.state, "")),
        Column("EXPIRES", lambda key: "never" if key.expires_at is None else away(key.expires_at, now)),
        Column("CREATED", lambda key: away(key.created_at, now), wide=True),
        Column("BY", lambda key: key.created_by or "", wide=True, cut=True),
    ]
