"""The server: the HTTP API, and the dashboard under /dashboard, as one ASGI application.

    request ─▶ Gate (host, size, time, encoding, who) ─▶ route (needs a scope) ─▶ app ─▶ store

* The gate stands before routing, so that no route can be reached without it. It decides who asks; a route says by
  `needs(scope)` what that takes, and one that says nothing is refused at the start.
* Rights come from the key alone. An id, wherever it stands in a request, goes through `visible`: a job of a queue that
  the key does not see does not exist for it.
* Every error is a problem+json document with a sentence that says what to do next.
* Links and redirects begin with the root path, so that the whole can be mounted below a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp

    from holdfast.app import Holdfast


def asgi(
    app: Holdfast,
    *,
    hosts: Sequence[str] | None = None,
    rate: float | None = None,
) -> ASGIApp:
    """The API and the dashboard of an app, to serve or to mount: `api.mount("/holdfast", holdfast.server.asgi(app))`.

    `hosts`: names that requests may be addressed to, beside those of this machine; None leaves that to the application
    around. `rate`: requests per second that one key may make; 1,000 where nothing is said.
    """
    try:
        from holdfast.server.assembly import assemble

        return assemble(app, hosts=hosts, rate=rate)  # which loads the routes and the dashboard
    except ModuleNotFoundError as error:
        raise missing(error) from error


def lifespan(
    app: Holdfast, *, worker: bool = False, **worker_options: Any
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """For FastAPI(lifespan=…): the app is open while the service runs, with a worker inside where that is asked for."""
    try:
        from holdfast.server.embedding import opened
    except ModuleNotFoundError as error:
        raise missing(error) from error
    return opened(app, worker, worker_options)


def missing(error: ModuleNotFoundError) -> Exception:
    """What to install; a module of ours that is not there is a mistake of ours, and stays what it is."""
    if (error.name or "").partition(".")[0] == "holdfast":
        return error
    return ConfigurationError(f'the server needs more packages ({error.name}): pip install "holdfast[server]"')


__all__ = ["asgi", "lifespan"]
