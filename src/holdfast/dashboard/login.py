"""Coming in with a key, going out, and the choice of colours."""

from __future__ import annotations

from fastapi import Depends, Request, Response

from holdfast import keys, limits
from holdfast.dashboard import forms, frame, links
from holdfast.dashboard.forms import SESSION_COOKIE, Form
from holdfast.dashboard.routing import pages
from holdfast.server.gating.keyring import KeyRing
from holdfast.server.guarding import anyone
from holdfast.store.types import ApiKey

THEME_SECONDS = 365 * 86_400

router = pages()


@router.get("/login", dependencies=[Depends(anyone)])
async def show(request: Request) -> Response:
    if _is_in(request):
        return frame.redirect(request, "/")
    return _page(request, Form([("next", request.query_params.get("next", ""))]))


@router.post("/login", dependencies=[Depends(anyone)])
async def log_in(request: Request) -> Response:
    form = await forms.read(request)
    key = await _known(request, form.get("key", "").strip())
    if key is None:
        said = "This is no key of this server, or it has been revoked or has expired."
        return _page(request, form, refused=said, status=401)
    if not keys.allows(key, "read"):
        said = "This key may not read: the dashboard takes one with the scope read or admin."
        return _page(request, form, refused=said, status=403)
    app = frame.app_of(request)
    await _close(request)
    opened = await app.open_session(key)
    request.app.state.keyring.stale()
    response = frame.redirect_to(request, forms.back(request, form, "/"))
    links.set_cookie(request, response, SESSION_COOKIE, opened.text, limits.SESSION_SECONDS)
    return response


@router.post("/logout", dependencies=[Depends(anyone)])
async def log_out(request: Request) -> Response:
    await forms.read(request)
    await _close(request)
    response = frame.redirect(request, "/login")
    links.drop_cookie(request, response, SESSION_COOKIE)
    return response


@router.post("/theme", dependencies=[Depends(anyone)])
async def theme(request: Request) -> Response:
    form = await forms.read(request)
    response = frame.redirect_to(request, forms.back(request, form, "/"))
    if form.get("theme") in frame.THEMES:
        links.set_cookie(request, response, frame.THEME_COOKIE, form["theme"], THEME_SECONDS)
    return response


def _page(request: Request, form: Form, *, refused: str | None = None, status: int = 200) -> Response:
    wanted = forms.back(request, form, "/")
    return frame.render(request, "login.html", status=status, refused=refused, wanted=wanted)


def _is_in(request: Request) -> bool:
    principal = frame.principal_of(request)
    return principal is not None and principal.may("read")


async def _known(request: Request, text: str) -> ApiKey | None:
    """The key that was shown, where it is one that people made: a session is no way to another session. One that is
    known gets in whoever else fails at the same address; what is not is looked for only so often."""
    parsed = keys.parse(text)
    if parsed is None:
        request.state.check_failures()
        return None
    ring: KeyRing = request.app.state.keyring
    now = frame.app_of(request).clock.now()
    key = keys.check(parsed, await ring.known(), now)
    if key is None:
        request.state.check_failures()
        key = keys.check(parsed, await ring.with_one(parsed.key_id), now)
    return key if key is not None and keys.is_listed(key) else None


async def _close(request: Request) -> None:
    """End the session that this browser has, if any: none survives a login or a logout."""
    parsed = keys.parse(request.cookies.get(SESSION_COOKIE, ""))
    if parsed is not None:
        app = frame.app_of(request)
        known = {key.key_id: key for key in await app.store.keys()}
        if keys.check(parsed, known, app.clock.now()) is not None:
            await app.close_session(parsed.key_id)
            request.app.state.keyring.stale()
