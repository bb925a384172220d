"""The gate: everything that is decided about a request before it is routed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.app import Holdfast
from holdfast.server.principals import local


class Gate:
    def __init__(
        self, inner: ASGIApp, app: Holdfast, *, hosts: Sequence[str] | None = None, rate: float | None = None
    ) -> None:
        self._inner = inner
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            state: dict[str, Any] = {**scope.get("state", {}), "principal": local("http")}
            scope = {**scope, "state": state}
        await self._inner(scope, receive, send)
