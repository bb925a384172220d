"""What a request does belongs to the trace that it comes with. Only where the app is observed."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.observing import Observers


class Continuing:
    def __init__(self, inner: ASGIApp, observers: Observers) -> None:
        self._inner = inner
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = [value for name, value in scope.get("headers", ()) if name == b"traceparent"]
        with self._observers.continuing(found[0].decode("latin-1") if len(found) == 1 else None):
            await self._inner(scope, receive, send)
