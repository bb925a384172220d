"""What every page stands on: templates, links and answers."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from holdfast.app import Holdfast
from holdfast.clock import to_datetime
from holdfast.dashboard import assets, filters, forms, links
from holdfast.dashboard.links import api_url, path_of, url
from holdfast.dashboard.routing import pages
from holdfast.server import problems
from holdfast.server.guarding import found
from holdfast.server.principals import Principal, Scope

T = TypeVar("T")

THEMES = ("auto", "light", "dark")
THEME_COOKIE = "holdfast_theme"
SAID_COOKIE = "holdfast_said"
LIVE_HEADER = "x-holdfast-live"  # of a page that looks again: what is said is for the page that a form leads to
SAID_SECONDS = 60  # the next page takes it; one that never comes should not say it tomorrow

templates = Environment(
    loader=PackageLoader("holdfast.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
filters.install(templates)

# Path, name, the key that leads there after g, and the scope that it takes.
NAVIGATION: tuple[tuple[str, str, str, Scope], ...] = (
    ("/", "Overview", "o", "read"),
    ("/jobs", "Jobs", "j", "read"),
    ("/trees", "Trees", "t", "read"),
    ("/queues", "Queues", "q", "read"),
    ("/workers", "Workers", "w", "read"),
    ("/dead", "Dead letters", "d", "read"),
    ("/schedules", "Schedules", "s", "read"),
    ("/subjects", "Subjects", "u", "read"),
    ("/audit", "Audit", "a", "admin"),
    ("/keys", "Keys", "k", "admin"),
)


def compile_templates() -> None:
    """Before the first page is asked for: it should not take longer than others."""
    for name in templates.list_templates():
        templates.get_template(name)


def app_of(request: Request) -> Holdfast:
    app: Holdfast = request.app.state.holdfast
    return app


def principal_of(request: Request) -> Principal | None:
    return found(request)


def reader_of(request: Request) -> Principal:
    """Whoever reads a page, on a route that needs a scope."""
    principal = found(request)
    if principal is None:
        raise problems.unauthenticated()
    return principal


def now_of(request: Request) -> datetime:
    return to_datetime(app_of(request).clock.now())


def kept(request: Request, make: Callable[[Holdfast], T]) -> T:
    """What a server has one of, for all who ask: `kept(request, History)`."""
    state = request.app.state
    if not hasattr(state, "kept"):
        state.kept = {}
    of_server: dict[Any, Any] = state.kept
    if make not in of_server:
        of_server[make] = make(app_of(request))
    one: T = of_server[make]
    return one


class PageOf:
    """What every template knows as `page`."""

    def __init__(self, request: Request, live: str | None) -> None:
        self.request = request
        self.principal = principal_of(request)
        self.now = now_of(request)
        self.path = path_of(request)
        self.live = live
        self.navigation = [(path, name, key) for path, name, key, scope in NAVIGATION if self._leads(scope)]
        self.said = _said(request)
        self.form = forms.Token.of(request)

    @property
    def theme(self) -> str:
        chosen = self.request.cookies.get(THEME_COOKIE, "auto")
        return chosen if chosen in THEMES else "auto"

    @property
    def search(self) -> str:
        """What stands in the search line: what was asked for, on the page that answers it."""
        return self.request.query_params.get("q", "") if self.path == "/jobs" else ""

    @property
    def here(self) -> str:
        """The address of this page, to come back to."""
        query = self.request.url.query
        return url(self.request, self.path) + (f"?{query}" if query else "")

    def url(self, path: str = "/", **query: object) -> str:
        return url(self.request, path, **query)

    def api_url(self, path: str, **query: object) -> str:
        return api_url(self.request, path, **query)

    def asset(self, name: str) -> str:
        return assets.address(self.request, name)

    def may(self, scope: str) -> bool:
        return self.principal is not None and self.principal.may(scope)

    def _leads(self, scope: str) -> bool:
        return self.may(scope) and (scope != "admin" or self.principal is None or self.principal.sees_all)

    def is_at(self, path: str) -> bool:
        """Whether an entry of the navigation is where this page belongs."""
        return self.path == path or (path != "/" and self.path.startswith(f"{path}/"))


def render(request: Request, template: str, *, status: int = 200, live: str | None = None, **values: Any) -> Response:
    """A page. `live` names what it follows: "all", "job:<id>" or "tree:<id>"; None: it stays as it is."""
    page = PageOf(request, live)
    text = templates.get_template(template).render(page=page, **values)
    response = HTMLResponse(text, status, headers={"Cache-Control": "no-store"})
    page.form.keep(response, request)
    if page.said is not None:
        links.drop_cookie(request, response, SAID_COOKIE)
    return response


def again_ms(*seconds: float) -> int | None:
    """For `data-soon`: when a page should look again although nothing was heard, since it shows what was; None: no."""
    soonest = min((each for each in seconds if each > 0), default=None)
    return None if soonest is None else math.ceil(soonest * 1000)


def redirect(request: Request, path: str, said: str | None = None, *, kind: str = "ok", **query: object) -> Response:
    """To another page, after a form; that one says what was done. `kind` is "ok" or "bad"."""
    return redirect_to(request, url(request, path, **query), said, kind=kind)


def redirect_to(request: Request, address: str, said: str | None = None, *, kind: str = "ok") -> Response:
    """The same to an address of ours, such as where a form came from: `forms.back(request, form, "/queues")`."""
    response = RedirectResponse(address, 303)
    if said is not None:
        words = base64.urlsafe_b64encode(f"{kind}:{said[:1000]}".encode()).decode()
        links.set_cookie(request, response, SAID_COOKIE, words, SAID_SECONDS)
    return response


def _said(request: Request) -> tuple[str, str] | None:
    if LIVE_HEADER in request.headers:
        return None
    try:
        kind, _, words = base64.urlsafe_b64decode(request.cookies[SAID_COOKIE]).decode().partition(":")
    except (KeyError, ValueError):
        return None
    return ("bad" if kind == "bad" else "ok"), words


__all__ = [
    "PageOf",
    "again_ms",
    "api_url",
    "app_of",
    "kept",
    "now_of",
    "pages",
    "path_of",
    "principal_of",
    "reader_of",
    "redirect",
    "redirect_to",
    "render",
    "templates",
    "url",
]
