"""holdfast keys: who may come in over HTTP."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from holdfast import audit_json
from holdfast.app import Holdfast
from holdfast.cli import apps, listing, options, output
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.output import Column
from holdfast.cli.text import away
from holdfast.keys import SCOPES, CreatedKey, KeyInfo

VIA = "cli"
_STYLES = {"revoked": "dim", "expired": "dim"}
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id, as “keys” lists it.")]


def keys(context: typer.Context, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List the keys of the HTTP API; create, revoke or remove one."""
    if not options.handed_on(context, as_json, url, app):
        none = 'no keys: make one with "holdfast keys create NAME --scope admin"'
        listing.show(Holdfast.api_keys, _columns, none, as_json=as_json, url=url, app=app)


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who is going to use it; histories say it.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help=f"What it may do: {', '.join(SCOPES)}; may be repeated. admin may all."),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help='Only jobs of these queues: mail, "mail*"; may be repeated.'),
    ] = None,
    expires: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=options.length, help="It ends after 12h, 90d, …; default: never."),
    ] = None,
    by: options.By = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Make a key, and print it: this once."""
    if not scope:
        raise typer.BadParameter(f"say what it may do: {', '.join(SCOPES)}", param_hint="--scope")
    who = options.who(by)

    async def work(app: Holdfast) -> CreatedKey:
        async with app.audited("key.create", name, by=who, via=VIA) as entry:
            made = await app.create_key(name, scope, queues=queue or (), expires_in=expires, by=who)
            entry.target, entry.after = made.key.key_id, audit_json.key(made.key)
            return made

    made = apps.run(url, app, work, makes=True)
    if as_json:
        output.emit_json({"key": made.text, **_document(made.key)})
        return
    output.say(f"{made.key.key_id} ({name}) may {_rights(made.key)}. It is shown this once: keep it as a secret")
    print(made.text)


def revoke(key_id: KeyId, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """End a key, and the sessions that were opened with it."""
    who = options.who(by)

    async def work(app: Holdfast) -> KeyInfo:
        async with app.audited("key.revoke", key_id, by=who, via=VIA, before=await _before(app, key_id)) as entry:
            found = await app.revoke_key(key_id, by=who)
            entry.after = audit_json.key(found)
            return found

    found = apps.run(url, app, work)
    if as_json:
        output.emit_json(found)
    else:
        print(f"{found.key_id} ({found.name}) is revoked; servers refuse it within five seconds")


def remove(key_id: KeyId, by: options.By = None, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Forget a key that is revoked or has expired."""
    who = options.who(by)

    async def work(app: Holdfast) -> None:
        async with app.audited("key.remove", key_id, by=who, via=VIA, before=await _before(app, key_id)):
            await app.remove_key(key_id)

    apps.run(url, app, work)
    if as_json:
        output.emit_json({"removed": key_id})
    else:
        print(f"{key_id} is removed")


async def _before(app: Holdfast, key_id: str) -> dict[str, Any] | None:
    return audit_json.key(next((each for each in await app.api_keys() if each.key_id == key_id), None))


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
