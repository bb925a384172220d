"""Addresses and cookies of the dashboard, wherever a server in front of it has put it."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from fastapi import Request, Response

PREFIX = "/dashboard"


def path_of(request: Request) -> str:
    """Which page it is: "/", "/jobs". A server in front of us may or may not have taken our prefix off the path."""
    path: str = request.scope["path"]
    root = _root(request)
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    return path.removeprefix(PREFIX) or "/"


def url(request: Request, path: str = "/", **query: object) -> str:
    """A page's address: `url(request, "/jobs", status="failed")`. What is None or empty is left out."""
    return _address(request, PREFIX + path.rstrip("/"), query)


def api_url(request: Request, path: str, **query: object) -> str:
    """The address of a route of the API."""
    return _address(request, path, query)


def _address(request: Request, path: str, query: dict[str, object]) -> str:
    given = {name: value for name, value in query.items() if value is not None and value != ""}
    address = _root(request) + quote(path, safe="/:@!$&'()*+,;=~")
    return f"{address}?{urlencode(given)}" if given else address


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def cookie_path(request: Request) -> str:
    return _root(request) + PREFIX


def set_cookie(request: Request, response: Response, name: str, value: str, seconds: int | None) -> None:
    """One that no script and no other site gets to use."""
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
