"""Forms: read, and only from pages of ours.

A form carries a token made from a cookie that no other site can read or set: the session, or for those who need no key
a random one. The gate has checked where the request comes from before; this closes what a browser without
Sec-Fetch-Site and Origin would leave open.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from urllib.parse import parse_qsl

from fastapi import Request, Response

from holdfast.dashboard import links
from holdfast.errors import HoldfastError

SESSION_COOKIE = "holdfast_session"
FORM_COOKIE = "holdfast_form"
FIELD = "form_token"
FIELDS_MAX = 5_000  # a page of ticked jobs, and a payload's fields; far below what the size of a body allows
_OURS = re.compile(r"/(?![/\\])[^\x00-\x1f\\]*")


class FormRefused(HoldfastError):
    """A form that did not come from a page of this session."""


class Form(dict[str, str]):
    """The fields of a form; of one that came several times, the last. `all` has them all."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def text(self, name: str) -> str | None:
        """What was filled in; None where nothing was."""
        return self.get(name, "").strip() or None


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    fresh: str | None  # the cookie that it was made from, where there was none

    @classmethod
    def of(cls, request: Request) -> Token:
        source = request.cookies.get(SESSION_COOKIE) or request.cookies.get(FORM_COOKIE)
        fresh = None if source else secrets.token_urlsafe(32)
        return cls(_token(source or fresh or ""), fresh)

    def keep(self, response: Response, request: Request) -> None:
        if self.fresh is not None:
            links.set_cookie(request, response, FORM_COOKIE, self.fresh, None)


def _token(source: str) -> str:
    return hmac.new(source.encode(), b"a form of the dashboard", hashlib.sha256).hexdigest()


async def read(request: Request) -> Form:
    """The fields of a form that was sent, once its token is found to be right."""
    body = await request.body()
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise FormRefused("this form could not be read: load the page again and repeat what you did") from None
    form = Form(pairs)
    sources = (request.cookies.get(SESSION_COOKIE), request.cookies.get(FORM_COOKIE))
    given = form.get(FIELD, "")
    if not any(source and hmac.compare_digest(given.encode(), _token(source).encode()) for source in sources):
        raise FormRefused("this form is of another session: load the page again and repeat what you did")
    return form


def back(request: Request, form: Form, otherwise: str) -> str:
    """The page that a form came from, where it names one of ours; else the page `otherwise`."""
    named = form.get("next", "")
    ours = links.url(request, "/")
    if _OURS.fullmatch(named) and (named == ours or named.startswith((f"{ours}/", f"{ours}?"))):
        return named
    return links.url(request, otherwise)
