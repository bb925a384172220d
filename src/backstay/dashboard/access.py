"""The pages for API keys and the audit trail, login and logout, and the choice of theme."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from fastapi import Depends, Request, Response

from backstay import ids, limits
from backstay.core import access_keys
from backstay.core.access_keys import SCOPES, KeyInfo
from backstay.core.records import ApiKey
from backstay.dashboard import page
from backstay.dashboard.page import Form, compact, of_all_queues
from backstay.errors import InvalidOption
from backstay.server.auth import SESSION_COOKIE, App, By, KeyRing, anyone, incoming, needs

# What each scope allows, as shown in the form.
MEANINGS = {
    "read": "view jobs, queues, workers and statistics",
    "submit": "submit, cancel and retry jobs",
    "work": "claim and settle jobs as a remote worker",
    "admin": "everything above, plus pause queues, change schedules and manage keys",
}
LAST_ADMIN = (
    "This is the last key that can create others, and without one everyone is locked out. First create another key with"
    " the admin scope for all queues, and log in with it."
)

router = page.pages()


@router.get("/keys", dependencies=[Depends(needs("admin")), Depends(of_all_queues)])
async def keys(request: Request) -> Response:
    return await _keys_page(request)


@router.post("/keys", dependencies=[Depends(needs("admin")), Depends(of_all_queues)])
async def create(request: Request, app: App, by: By) -> Response:
    """Answers with the page itself, which shows the new key: it must not end up in a URL or a cookie."""
    form = await page.read(request)
    name = form.text("name") or ""
    queues = (form.text("queues") or "").replace(",", " ").split()
    try:
        days = _days(form.text("days"))
        _check_first(await app.api_keys(), form.all("scope"), queues)
        created = await app.create_key(
            name,
            form.all("scope"),
            queues=queues,
            expires_in=None if days is None else timedelta(days=days),
            by=by,
        )
    except InvalidOption as error:
        return await _keys_page(request, form=form, refused=str(error), status=422)
    request.app.state.keyring.stale()
    return await _keys_page(request, made=created.text, made_name=created.key.name)


@router.post("/keys/{key_id}/revoke", dependencies=[Depends(needs("admin")), Depends(of_all_queues)])
async def revoke(request: Request, app: App, by: By, key_id: str) -> Response:
    await page.read(request)
    if key_id == _last_admin(await app.api_keys()):  # without it everyone would be locked out
        return page.redirect(request, "/keys", f"Key not revoked. {LAST_ADMIN}", kind="bad")
    key = await app.revoke_key(key_id, by=by)
    request.app.state.keyring.stale()
    return page.redirect(request, "/keys", f"Key {key.name} revoked. Other servers refuse it within five seconds.")


@router.post("/keys/{key_id}/remove", dependencies=[Depends(needs("admin")), Depends(of_all_queues)])
async def remove(request: Request, app: App, by: By, key_id: str) -> Response:
    await page.read(request)
    try:
        await app.remove_key(key_id, by=by)
    except InvalidOption as error:
        return page.redirect(request, "/keys", f"Key not removed: {error}.", kind="bad")
    request.app.state.keyring.stale()
    return page.redirect(request, "/keys", "Key removed from the list.")


async def _keys_page(
    request: Request,
    *,
    form: Form | None = None,
    refused: str | None = None,
    made: str | None = None,
    made_name: str | None = None,
    status: int = 200,
) -> Response:
    found = await page.app_of(request).api_keys()
    is_first = not found
    return page.render(
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
    """The only key that can still create others; None if there are several."""
    admins = [key.key_id for key in known if key.state == "live" and "admin" in key.scopes and not key.queues]
    return admins[0] if len(admins) == 1 else None


def _check_first(known: Sequence[KeyInfo], scopes: Sequence[str], queues: Sequence[str]) -> None:
    """Once there is a key, everyone needs one: the first must be able to create the next."""
    if known or ("admin" in scopes and not queues):
        return
    raise InvalidOption(
        "the first key needs the admin scope for all queues: from then on every request needs a key, and no other key"
        " could create the next one"
    )


def _days(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 6 or int(text) == 0:
        raise InvalidOption(
            f"{text!r:.40} is not a number of days: enter 1 to {limits.KEY_DAYS_MAX:,}, or leave it blank"
        )
    return int(text)


PAGE = 50
LINES_MAX = 4  # changes of one entry shown in the table; more are collapsed
LINE_MAX = 160  # characters of one change
_OMITTED = frozenset({"version"})  # it changes whenever anything else does
_EMPTY: tuple[object, ...] = (None, [], {})
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


@router.get("/audit", dependencies=[Depends(needs("admin")), Depends(of_all_queues)])
async def audit(request: Request, after: str | None = None) -> Response:
    trail = await page.app_of(request).audit_trail(after=after, limit=PAGE)
    return page.render(
        request,
        "audit.html",
        entries=trail,
        first=page.url(request, "/audit") if after else None,
        next=page.url(request, "/audit", after=trail.next) if trail.next else None,
        job_url=lambda target: page.url(request, f"/jobs/{target}") if _is_id(target) else None,
        changed=changed,
        is_long=is_long,
        moment=moment,
    )


class Change(msgspec.Struct, frozen=True):
    """A field that differs. The name is empty where the values are not objects."""

    name: str
    was: Any
    now: Any


def changed(before: object, after: object) -> list[Change]:
    """The fields that differ. `after` may hold fewer fields than `before`: a field that only `before` has did not
    change, unless the two sides share no fields at all; then both are shown in full."""
    if not isinstance(before, dict | None) or not isinstance(after, dict | None):
        return [Change("", before, after)]
    was, now = before or {}, after or {}
    apart = now and not was.keys() & now.keys()
    return [Change(name, None, was[name]) for name in was if apart] + [
        Change(name, was.get(name), value)
        for name, value in now.items()
        if name not in _OMITTED and (was[name] != value if name in was else value not in _EMPTY)
    ]


def is_long(changes: Sequence[Change]) -> bool:
    """Whether the changes would take more than a few lines of the table."""
    return len(changes) > LINES_MAX or any(len(compact(each.was) + compact(each.now)) > LINE_MAX for each in changes)


def moment(value: object) -> datetime | None:
    """The time that a JSON string holds, if any."""
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def _is_id(target: str) -> bool:
    try:
        return ids.canonical(target) == target
    except InvalidOption:
        return False


THEME_SECONDS = 365 * 86_400


@router.get("/login", dependencies=[Depends(anyone)])
async def show(request: Request) -> Response:
    if _is_in(request):
        return page.redirect(request, "/")
    return _login_page(request, Form([("next", request.query_params.get("next", ""))]))


@router.post("/login", dependencies=[Depends(anyone)])
async def log_in(request: Request) -> Response:
    form = await page.read(request)
    key = await _known(request, form.get("key", "").strip())
    if key is None:
        message = "This key is unknown, revoked or expired."
        return _login_page(request, form, refused=message, status=401)
    if not access_keys.allows(key, "read"):
        message = "This key cannot read: the dashboard needs a key with the read or admin scope."
        return _login_page(request, form, refused=message, status=403)
    app = page.app_of(request)
    await _close(request)
    opened = await app.open_session(key)
    request.app.state.keyring.stale()
    response = page.redirect_to(request, page.back(request, form, "/"))
    page.set_cookie(request, response, SESSION_COOKIE, opened.text, limits.SESSION_SECONDS)
    return response


@router.post("/logout", dependencies=[Depends(anyone)])
async def log_out(request: Request) -> Response:
    await page.read(request)
    await _close(request)
    response = page.redirect(request, "/login")
    page.drop_cookie(request, response, SESSION_COOKIE)
    return response


@router.post("/theme", dependencies=[Depends(anyone)])
async def theme(request: Request) -> Response:
    form = await page.read(request)
    response = page.redirect_to(request, page.back(request, form, "/"))
    if form.get("theme") in page.THEMES:
        page.set_cookie(request, response, page.THEME_COOKIE, form["theme"], THEME_SECONDS)
    return response


def _login_page(request: Request, form: Form, *, refused: str | None = None, status: int = 200) -> Response:
    wanted = page.back(request, form, "/")
    return page.render(request, "login.html", status=status, refused=refused, wanted=wanted)


def _is_in(request: Request) -> bool:
    principal = page.principal_of(request)
    return principal is not None and principal.may("read")


async def _known(request: Request, text: str) -> ApiKey | None:
    """The key that was entered, if it is an API key: a session cannot open another session. A known key is accepted
    even if others fail from the same address; lookups of unknown keys are limited."""
    parsed = access_keys.parse(text)
    if parsed is None:
        request.state.check_failures(incoming(request))
        return None
    ring: KeyRing = request.app.state.keyring
    now = page.app_of(request).clock.now()
    key = access_keys.check(parsed, (await ring.known()).by_id, now)
    if key is None:
        request.state.check_failures(incoming(request))
        key = access_keys.check(parsed, await ring.with_one(parsed.key_id), now)
    return key if key is not None and access_keys.is_listed(key) else None


async def _close(request: Request) -> None:
    """End this browser's session, if any: none survives a login or logout."""
    parsed = access_keys.parse(request.cookies.get(SESSION_COOKIE, ""))
    if parsed is not None:
        app = page.app_of(request)
        known = {key.key_id: key for key in await app.key_records()}
        if access_keys.check(parsed, known, app.clock.now()) is not None:
            await app.close_session(parsed.key_id)
            request.app.state.keyring.stale()
