"""Routes whose errors are pages too."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from holdfast.dashboard.links import PREFIX


class PageRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def page(request: Request) -> Response:
            from holdfast.dashboard import errors

            try:
                return await answer(request)
            except Exception as error:
                return errors.answer(request, error)

        return page


def pages() -> APIRouter:
    """A router for the pages of a module."""
    return APIRouter(prefix=PREFIX, route_class=PageRoute, include_in_schema=False)
