"""GET /: people go on to the dashboard, programs are told where everything is. Everyone may ask: it says no more."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import BaseModel

from holdfast.app import Holdfast
from holdfast.server.guarding import anyone, link

_PAGE, _JSON = "text/html", "application/json"


class Links(BaseModel):
    dashboard: str
    health: str
    openapi: str
    ready: str


def router(_: Holdfast) -> APIRouter:
    routes = APIRouter(tags=["document"], dependencies=[Depends(anyone)])

    @routes.get(
        "/",
        summary="Where everything is",
        response_model=Links,
        responses={303: {"description": "To the dashboard, for those who would rather have a page"}},
    )
    async def front(request: Request) -> Response:
        """Paths, to be asked for at this server."""
        if _prefers_page(request.headers.get("accept", "")):
            return RedirectResponse(link(request, "/dashboard"), 303, headers={"Vary": "Accept"})
        found = {"dashboard": "/dashboard", "health": "/healthz", "openapi": "/openapi.json", "ready": "/readyz"}
        return JSONResponse({name: link(request, path) for name, path in found.items()}, headers={"Vary": "Accept"})

    return routes


def _prefers_page(accept: str) -> bool:
    """Whether text/html is named, and not below application/json: browsers do that, programs do not."""
    named = dict(map(_weighed, accept.lower().split(",")))
    return named.get(_PAGE, 0.0) > 0.0 and named[_PAGE] >= named.get(_JSON, 0.0)


def _weighed(part: str) -> tuple[str, float]:
    name, *options = (each.strip() for each in part.split(";"))
    weight = next((each[2:] for each in options if each.startswith("q=")), "1")
    try:
        return name, float(weight)
    except ValueError:
        return name, 0.0
