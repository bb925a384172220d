"""Keys of the HTTP API: made, shown once, and revoked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from fastapi import Depends, Request, Response

from holdfast import audit_json, limits
from holdfast.app import Holdfast
from holdfast.dashboard import forms, frame
from holdfast.dashboard.forms import Form
from holdfast.dashboard.rights import of_all_queues
from holdfast.errors import InvalidOption
from holdfast.keys import SCOPES, KeyInfo
from holdfast.server.changes import audited
from holdfast.server.guarding import needs

# What a scope is for, as the form says it.
MEANINGS = {
    "read": "see jobs, queues, workers and figures",
    "submit": "submit jobs, cancel and retry them",
    "work": "claim jobs and settle them, as a remote worker",
    "admin": "all of it, and pause queues, change schedules, make keys",
}
LAST_ADMIN = (
    "It is the last key that can make others, and without one nobody comes in: make another with the scope admin and"
    " every queue first, and log in with that."
)

router = frame.pages()


@router.get("/keys", dependencies=[Depends(needs("admin")), Depends(of_all_queues)])
async def keys(request: Request) -> Response:
    return await _page(request)


@router.post("/keys", dependencies=[Depends(needs("admin")), Depends(of_all_queues)])
async def create(request: Request) -> Response:
    """The answer is the page itself, with the new key on it, which must not get into a URL or a cookie."""
    form, who = await forms.read(request), frame.reader_of(request)
    app = frame.app_of(request)
    name = form.text("name") or ""
    queues = (form.text("queues") or "").replace(",", " ").split()
    try:
        days = _days(form.text("days"))
        _check_first(await app.api_keys(), form.all("scope"), queues)
        async with audited(app, who, request, "key.create", name) as entry:
            created = await app.create_key(
                name,
                form.all("scope"),
                queues=queues,
                expires_in=None if days is None else timedelta(days=days),
                by=who.name,
            )
            entry.target = created.key.key_id
            entry.after = audit_json.key(created.key)
    except InvalidOption as error:
        return await _page(request, form=form, refused=str(error), status=422)
    request.app.state.keyring.stale()
    return await _page(request, made=created.text, made_name=created.key.name)


@router.post("/keys/{key_id}/revoke", dependencies=[Depends(needs("admin")), Depends(of_all_queues)])
async def revoke(request: Request, key_id: str) -> Response:
    await forms.read(request)
    who, app = frame.reader_of(request), frame.app_of(request)
    if key_id == _last_admin(await app.api_keys()):  # whoever is here can make another first: nobody locks themself out
        return frame.redirect(request, "/keys", f"It was not revoked. {LAST_ADMIN}", kind="bad")
    async with audited(app, who, request, "key.revoke", key_id, await _before(app, key_id)) as entry:
        key = await app.revoke_key(key_id, by=who.name)
        entry.after = audit_json.key(key)
    request.app.state.keyring.stale()
    return frame.redirect(request, "/keys", f"The key {key.name} is revoked. Other servers know within five seconds.")


@router.post("/keys/{key_id}/remove", dependencies=[Depends(needs("admin")), Depends(of_all_queues)])
async def remove(request: Request, key_id: str) -> Response:
    await forms.read(request)
    who, app = frame.reader_of(request), frame.app_of(request)
    async with audited(app, who, request, "key.remove", key_id, await _before(app, key_id)):
        try:
            await app.remove_key(key_id)
        except InvalidOption as error:
            return frame.redirect(request, "/keys", f"It was not removed: {error}.", kind="bad")
    request.app.state.keyring.stale()
    return frame.redirect(request, "/keys", "The key is no longer listed.")


async def _page(
    request: Request,
    *,
    form: Form | None = None,
    refused: str | None = None,
    made: str | None = None,
    made_name: str | None = None,
    status: int = 200,
) -> Response:
    found = await frame.app_of(request).api_keys()
    is_first = not found
    return frame.render(
        request,
        "keys.html",
        status=status,
        keys=found,
        meanings=MEANINGS,
        scopes=SCOPES,
        days_max=limits.KEY_DAYS_MAX,
        name_max=limits.NAME_LENGTH_MAX,
        is_first=is_first,
        last_admin=_last_admin(found),
        why_not=LAST_ADMIN,
        form=form or Form([("scope", "admin" if is_first else "read")]),
        refused=refused,
        made=made,
        made_name=made_name,
    )


def _last_admin(known: Sequence[KeyInfo]) -> str | None:
    """The key without which nobody could make another from here; None while there are several."""
    admins = [key.key_id for key in known if key.state == "live" and "admin" in key.scopes and not key.queues]
    return admins[0] if len(admins) == 1 else None


def _check_first(known: Sequence[KeyInfo], scopes: Sequence[str], queues: Sequence[str]) -> None:
    """From the first key on everyone needs one: it must be one that can make the next."""
    if known or ("admin" in scopes and not queues):
        return
    raise InvalidOption(
        "the first key needs the scope admin and every queue, because from then on nobody comes in without a key, and"
        " no other could make the next one"
    )


async def _before(app: Holdfast, key_id: str) -> dict[str, Any] | None:
    return audit_json.key(next((each for each in await app.api_keys() if each.key_id == key_id), None))


def _days(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 6 or int(text) == 0:
        raise InvalidOption(f"{text!r:.40} is no number of days: write 1 to {limits.KEY_DAYS_MAX:,}, or nothing")
    return int(text)
