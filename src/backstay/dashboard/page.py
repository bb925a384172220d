"""Shared by all pages: rendering, URLs and cookies, assets, template filters, forms, errors, navigation.

A form carries a token derived from a cookie that no other site can read or set: the session, or a random one where no
key is needed. The gate has already checked where the request came from; the token covers browsers that send neither
Sec-Fetch-Site nor Origin. Style sheets and scripts are served from memory, under URLs that change with their content.
Unexpected errors always get the same text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import logging
import math
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape

from backstay.app import Backstay
from backstay.clock import to_datetime
from backstay.core.checks import away, count, span, utc
from backstay.dashboard.search import quoted
from backstay.errors import (
    BackstayError,
    DedupConflict,
    IllegalTransition,
    InvalidOption,
    InvalidSubmission,
    QueueFull,
    VersionConflict,
)
from backstay.job import Job
from backstay.ops import presentation
from backstay.server import gate, problems
from backstay.server.auth import SESSION_COOKIE, Principal, Scope, anyone, found, is_operator, needs
from backstay.server.problems import Problem
from backstay.server.request import DASHBOARD


def path_of(request: Request) -> str:
    """The path of a page: "/", "/jobs". A proxy may or may not have stripped the prefix."""
    path: str = request.scope["path"]
    root = _root(request)
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    return path.removeprefix(DASHBOARD) or "/"


def url(request: Request, path: str = "/", **query: object) -> str:
    """The URL of a page: `url(request, "/jobs", status="failed")`. None and empty values are left out."""
    given = {name: value for name, value in query.items() if value is not None and value != ""}
    address = _root(request) + quote(DASHBOARD + path.rstrip("/"), safe="/:@!$&'()*+,;=~")
    return f"{address}?{urlencode(given)}" if given else address


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def cookie_path(request: Request) -> str:
    return _root(request) + DASHBOARD


def set_cookie(request: Request, response: Response, name: str, value: str, seconds: int | None) -> None:
    """A cookie that scripts and other sites cannot use."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=cookie_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def drop_cookie(request: Request, response: Response, name: str) -> None:
    response.delete_cookie(name, path=cookie_path(request), httponly=True, samesite="strict")


class PageRoute(APIRoute):
    """A route whose errors are pages."""

    @staticmethod
    def answer_error(request: Request, error: Exception) -> Response:
        return answer(request, error)


def pages() -> APIRouter:
    """A router for the pages of a module."""
    return APIRouter(prefix=DASHBOARD, route_class=PageRoute, include_in_schema=False)


_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}

assets_router = pages()


@functools.cache
def _read() -> dict[str, tuple[bytes, str]]:
    """Every file with the hash of its content: a few small files that ship with the release."""
    folder = resources.files("backstay.dashboard") / "static"
    found = {}
    for file in folder.iterdir():
        if file.name.rpartition(".")[2] in _TYPES:
            content = file.read_bytes()
            found[file.name] = (content, hashlib.sha256(content).hexdigest()[:12])
    return found


@functools.cache
def _assets_hash() -> str:
    """One hash for all files: a script that imports another must not get an old version of it."""
    return hashlib.sha256("".join(digest for _, (_, digest) in sorted(_read().items())).encode()).hexdigest()[:12]


def address(request: Request, name: str) -> str:
    return url(request, f"/static/{_assets_hash()}/{name}")


@assets_router.get("/static/{release}/{name}", dependencies=[Depends(anyone)])
async def asset(request: Request, release: str, name: str) -> Response:
    content, digest = _read().get(name, (None, ""))
    if content is None:
        return Response(status_code=404)
    forever = "public, max-age=31536000, immutable" if release == _assets_hash() else "no-cache"
    headers = {"ETag": f'"{digest}"', "Cache-Control": forever}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)


SHOWN_BYTES_MAX = 64 * 1024  # of a payload, result or traceback: more than anyone reads on a page


def install(templates: Environment) -> None:
    templates.filters.update(
        away=away, count=count, span=span, utc=utc, iso=iso, number=number, percent=percent, document=document,
        short=short, millis=millis, note=note, since=since, compact=compact, size=size, quoted=quoted, pace=pace,
        without_type=without_type,
    )  # fmt: skip


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def number(value: float) -> str:
    """1,204; fractions get three significant digits."""
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def pace(number: int, seconds: float) -> str:
    """How many in a minute; where that is less than one, in an hour."""
    unit, each = ("minute", 60) if number * 60 >= seconds else ("hour", 3600)
    rate = number * each / seconds
    return f"{rate:,.0f} per {unit}" if rate >= 10 else f"{round(rate, 1):g} per {unit}"


def without_type(message: str, error_type: str) -> str:
    """The message of an error whose type is shown next to it."""
    return message.removeprefix(f"{error_type}: ")


def size(count: int) -> str:
    """A file size: 640 bytes, 12 kB, 3.4 MB."""
    if count < 1000:
        return f"{count} {'byte' if count == 1 else 'bytes'}"
    for unit, whole in (("kB", 10**3), ("MB", 10**6), ("GB", 10**9)):
        if count < whole * 1000 or unit == "GB":
            return f"{count / whole:.3g} {unit}" if count < whole * 999.5 else f"{count / whole:,.0f} {unit}"
    raise AssertionError("there is a unit for every size")


def percent(share: float) -> str:
    return f"{share * 100:.0f}%"


def millis(value: float | None) -> str:
    """A duration given in milliseconds."""
    return "–" if value is None else span(value / 1000)


def short(job_id: str) -> str:
    """The end of an id: ids created at about the same time differ there."""
    return f"…{job_id[-8:]}" if len(job_id) > 12 else job_id


def compact(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def since(moment: datetime, now: datetime) -> str:
    return span(max(0.0, (now - moment).total_seconds()))


def note(job: Job, now: datetime) -> str:
    """Return the details of a job, without its progress, which the page shows as a bar."""
    return presentation.note(job, now, percent=False, named=short)


def document(value: Any) -> tuple[str, bool]:
    """Indented JSON, and whether it is complete."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return (text, True) if len(text) <= SHOWN_BYTES_MAX else (text[:SHOWN_BYTES_MAX], False)


FORM_COOKIE = "backstay_form"
FIELD = "form_token"
FIELDS_MAX = 5_000  # a page of selected jobs and the fields of a payload; far below what the body limit allows
_OURS = re.compile(r"/(?![/\\])[^\x00-\x1f\\]*")


class FormRefused(BackstayError):
    """The form did not come from a page of this session."""


class Form(dict[str, str]):
    """The fields of a form. A repeated field has its last value; `all` returns every value."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def text(self, name: str) -> str | None:
        """The value of a field; None if it is blank."""
        return self.get(name, "").strip() or None


def moment_of(name: str, text: str | None) -> datetime | None:
    """Parse the value of a datetime-local input as UTC."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        raise InvalidOption(
            f"{name}={text!r:.60}: use a date and time, such as 2026-11-16T09:30", option=name
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    fresh: str | None  # the cookie to set, if the request had none

    @classmethod
    def of(cls, request: Request) -> Token:
        source = request.cookies.get(SESSION_COOKIE) or request.cookies.get(FORM_COOKIE)
        fresh = None if source else secrets.token_urlsafe(32)
        return cls(_token(source or fresh or ""), fresh)

    def keep(self, response: Response, request: Request) -> None:
        if self.fresh is not None:
            set_cookie(request, response, FORM_COOKIE, self.fresh, None)


def _token(source: str) -> str:
    return hmac.new(source.encode(), b"a form of the dashboard", hashlib.sha256).hexdigest()


async def read(request: Request) -> Form:
    """The fields of a submitted form, after checking its token."""
    body = await request.body()
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise FormRefused("this form could not be read: reload the page and try again") from None
    form = Form(pairs)
    sources = (request.cookies.get(SESSION_COOKIE), request.cookies.get(FORM_COOKIE))
    given = form.get(FIELD, "")
    if not any(source and hmac.compare_digest(given.encode(), _token(source).encode()) for source in sources):
        raise FormRefused("this form belongs to another session: reload the page and try again")
    return form


def back(request: Request, form: Form, otherwise: str) -> str:
    """The page that a form came from, if it names one of ours; else the page `otherwise`."""
    named = form.get("next", "")
    ours = url(request, "/")
    if _OURS.fullmatch(named) and (named == ours or named.startswith((f"{ours}/", f"{ours}?"))):
        return named
    return url(request, otherwise)


T = TypeVar("T")

THEMES = ("auto", "light", "dark")
THEME_COOKIE = "backstay_theme"
NOTICE_COOKIE = "backstay_notice"
LIVE_HEADER = "x-backstay-live"  # sent by live updates, which must not consume the notice meant for the next page
NOTICE_SECONDS = 60  # the next page shows it; if none follows, it must not turn up tomorrow

templates = Environment(
    loader=PackageLoader("backstay.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
install(templates)

# Path, name, the key to press after g, and the required scope.
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
    """Compile at start, so that the first request is as fast as the rest."""
    for name in templates.list_templates():
        templates.get_template(name)


def app_of(request: Request) -> Backstay:
    app: Backstay = request.app.state.backstay
    return app


def principal_of(request: Request) -> Principal | None:
    return found(request)


def reader_of(request: Request) -> Principal:
    """The principal of a request, on a route that requires a scope."""
    principal = found(request)
    if principal is None:
        raise problems.unauthenticated()
    return principal


def now_of(request: Request) -> datetime:
    return to_datetime(app_of(request).clock.now())


def shared(request: Request, make: Callable[[Backstay], T]) -> T:
    """The server's single instance of something: `shared(request, History)`."""
    state = request.app.state
    if not hasattr(state, "shared"):
        state.shared = {}
    of_server: dict[Any, Any] = state.shared
    if make not in of_server:
        of_server[make] = make(app_of(request))
    one: T = of_server[make]
    return one


class PageOf:
    """Available to every template as `page`."""

    def __init__(self, request: Request, live: str | None) -> None:
        self.request = request
        self.principal = principal_of(request)
        self.now = now_of(request)
        self.path = path_of(request)
        self.live = live
        self.navigation = [(path, name, key) for path, name, key, scope in NAVIGATION if self._leads(scope)]
        self.notice = _notice(request)
        self.form = Token.of(request)

    @property
    def theme(self) -> str:
        chosen = self.request.cookies.get(THEME_COOKIE, "auto")
        return chosen if chosen in THEMES else "auto"

    @property
    def search(self) -> str:
        """The text in the search box: the current search, on the jobs page."""
        return self.request.query_params.get("q", "") if self.path == "/jobs" else ""

    @property
    def here(self) -> str:
        """The address of this page, to return to."""
        query = self.request.url.query
        return url(self.request, self.path) + (f"?{query}" if query else "")

    def url(self, path: str = "/", **query: object) -> str:
        return url(self.request, path, **query)

    def asset(self, name: str) -> str:
        return address(self.request, name)

    def may(self, scope: str) -> bool:
        return self.principal is not None and self.principal.may(scope)

    def _leads(self, scope: str) -> bool:
        return self.may(scope) and (scope != "admin" or self.principal is None or self.principal.sees_all)

    def is_at(self, path: str) -> bool:
        """Whether this page belongs to a navigation entry."""
        return self.path == path or (path != "/" and self.path.startswith(f"{path}/"))


def render(request: Request, template: str, *, status: int = 200, live: str | None = None, **values: Any) -> Response:
    """A page. `live` names what it follows: "all", "job:<id>" or "tree:<id>"; None: it does not update."""
    page = PageOf(request, live)
    text = templates.get_template(template).render(page=page, **values)
    response = HTMLResponse(text, status, headers={"Cache-Control": "no-store"})
    page.form.keep(response, request)
    if page.notice is not None:
        drop_cookie(request, response, NOTICE_COOKIE)
    return response


def again_ms(*seconds: float) -> int | None:
    """For `data-soon`: when a page with outdated figures should refresh without a signal; None: no need."""
    soonest = min((each for each in seconds if each > 0), default=None)
    return None if soonest is None else math.ceil(soonest * 1000)


def redirect(request: Request, path: str, notice: str | None = None, *, kind: str = "ok", **query: object) -> Response:
    """Redirect to a page after a form; that page shows the notice. `kind` is "ok" or "bad"."""
    return redirect_to(request, url(request, path, **query), notice, kind=kind)


def redirect_to(request: Request, address: str, notice: str | None = None, *, kind: str = "ok") -> Response:
    """Redirect to one of our addresses, such as where a form came from: `forms.back(request, form, "/queues")`."""
    response = RedirectResponse(address, 303)
    if notice is not None:
        words = base64.urlsafe_b64encode(f"{kind}:{notice[:1000]}".encode()).decode()
        set_cookie(request, response, NOTICE_COOKIE, words, NOTICE_SECONDS)
    return response


def _notice(request: Request) -> tuple[str, str] | None:
    if LIVE_HEADER in request.headers:
        return None
    try:
        kind, _, words = base64.urlsafe_b64decode(request.cookies[NOTICE_COOKIE]).decode().partition(":")
    except (KeyError, ValueError):
        return None
    return ("bad" if kind == "bad" else "ok"), words


def of_all_queues(request: Request) -> None:
    """A dependency in addition to `needs("admin")`: a key limited to some queues must not see what was done to others,
    nor create a key with access to more."""
    if not reader_of(request).sees_all:
        raise Problem(403, "foreign-queue", "this page requires a key with access to all queues")


log = logging.getLogger("backstay")

_PAGES = {
    404: ("Page not found", "It may have been removed, or it belongs to a queue that this key cannot see."),
    405: ("Method not allowed", "Go back and use the form on the page."),
    413: ("Request too large", "Send less at once."),
    422: ("Invalid address or form", "Go back and check what you entered."),
}

_BROKEN = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Something went wrong · Backstay</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{style}">
<main>
  <h1>Something went wrong</h1>
  <p class="lead">Reload the page. If the problem persists, check the server log.</p>
  <p><a class="button" href="{home}">Go to overview</a></p>
</main>
"""

fallback_router = pages()


def answer(request: Request, error: Exception) -> Response:
    """The page for an error that a route raised."""
    problem = _problem(request, error)
    if problem.status == 401:
        return _log_in(request)
    if problem.status == 500:
        return _broken(request)
    title, advice = _PAGES.get(problem.status, (problem.title, ""))
    if isinstance(error, BackstayError | Problem) and problem.slug not in ("invalid-request", "http"):
        title, advice = problem.title, problem.detail or advice
    page = render(request, "error.html", status=problem.status, heading=title, advice=_sentence(advice))
    page.headers.update(problem.headers)
    return page


def _broken(request: Request) -> Response:
    """Return the page for an unexpected error. The cause may be in a template, so this page uses none."""
    page = _BROKEN.format(style=escape(address(request, "dashboard.css")), home=escape(url(request, "/")))
    return HTMLResponse(page, 500, headers={"Cache-Control": "no-store"})


def _problem(request: Request, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case FormRefused():
            return Problem(403, "form-refused", str(error), title="Form not accepted")
        case BackstayError():
            found = problems.of_error(error, to_operator=is_operator(principal_of(request)))
            if found.status == 500:
                log.error("a dashboard page failed: %s", error)
            return found
        case _:
            gate.tell("a dashboard page", error)
            return Problem(500, "internal")


def _log_in(request: Request) -> Response:
    """Redirect to the login page, and from there back here; after a form, whose content is lost, to the start page."""
    wanted = PageOf(request, None).here if request.method == "GET" else None
    return redirect(request, "/login", next=wanted if wanted != url(request, "/") else None)


def _sentence(text: str) -> str:
    if not text:
        return text
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?', '…')) else '.'}"


@fallback_router.get("/{path:path}", dependencies=[Depends(needs("read"))])
async def unknown(request: Request, path: str) -> Response:
    """Answer every other path. Without a login it does not reveal which pages exist."""
    raise Problem(404, "http")


# Errors that the user can resolve on the spot.
REFUSALS = (IllegalTransition, VersionConflict, DedupConflict, InvalidSubmission, QueueFull)


def creator(who: Principal) -> str:
    """The creator of a job submitted from a form: the key, or "dashboard" where there are no keys."""
    return who.name if who.key_id is not None else "dashboard"


def refused(request: Request, form: Form, error: Exception, otherwise: str) -> Response:
    """Redirect to the page of the form, with the error."""
    words = str(error)
    return redirect_to(request, back(request, form, otherwise), f"{words[:1].upper()}{words[1:]}.", kind="bad")
