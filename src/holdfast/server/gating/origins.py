"""Where a change comes from: a page of ours, or one that uses the browser of someone who is logged in. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.server.gating.incoming import Incoming
from holdfast.server.problems import Problem

_OURS = ("same-origin", "none")  # none: typed or opened by the user himself


def check_dashboard(request: Incoming) -> None:
    """A change by cookie has to be known to come from a page of ours."""
    if request.is_safe:
        return
    if not (_says_ours(request) if request.header(b"sec-fetch-site") is not None else _is_own_origin(request)):
        raise _foreign()


def check_without_key(request: Incoming) -> None:
    """Where nobody needs a key, any page that this machine's browser shows could ask; programs send no such headers."""
    if request.is_safe:
        return
    if request.header(b"sec-fetch-site") is not None and not _says_ours(request):
        raise _foreign()
    if _says_ours(request) and request.header(b"origin") == "null":
        return  # a form of ours: our Referrer-Policy keeps its origin back
    if request.header(b"origin") is not None and not _is_own_origin(request):
        raise _foreign()


def _says_ours(request: Incoming) -> bool:
    return request.header(b"sec-fetch-site") in _OURS


def _is_own_origin(request: Incoming) -> bool:
    origin, host = request.header(b"origin"), request.header(b"host")
    if not origin or not host or origin == "null":
        return False
    return urlsplit(origin).netloc.lower() == host.lower()


def _foreign() -> Problem:
    return Problem(403, "foreign-origin", "this came from a page of another site: use a page of this dashboard")
