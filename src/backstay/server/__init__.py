"""The server: the HTTP API, and the dashboard under /dashboard, as one ASGI application.

    request ─▶ Gate (host, size, time, encoding, who) ─▶ route (needs a scope) ─▶ app ─▶ store

* The gate comes before routing, so that no route can be reached without it. It establishes who is asking; a route
  declares with `needs(scope)` what is required, and one that declares nothing is refused at startup.
* Permissions come from the key alone. Every id in a request goes through `visible`: a job in a queue that the key does
  not see does not exist for it.
* Every error is a problem+json document with a sentence that says what to do next.
* Links and redirects begin with the root path, so that the application can be mounted below a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from backstay.core.checks import how_to_install
from backstay.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp

    from backstay.app import Backstay


def asgi(
    app: Backstay,
    *,
    hosts: Sequence[str] | None = None,
    proxies: Sequence[str] | None = None,
    rate: float | None = None,
) -> ASGIApp:
    """Return the API and the dashboard of an app, to serve or to mount: `api.mount("/backstay",
    backstay.server.asgi(app))`.

    `hosts`: names by which requests may address the server, in addition to those of this machine; None leaves that
    check to the surrounding application. `proxies`: addresses and networks whose X-Forwarded-For and X-Forwarded-Proto
    are believed; None leaves them to the surrounding server. `rate`: requests per second that one key may make;
    default 1,000.
    """
    try:
        from backstay.server.application import assemble

        return assemble(app, hosts=hosts, proxies=proxies, rate=rate)  # which loads the routes and the dashboard
    except ModuleNotFoundError as error:
        raise missing(error) from error


def lifespan(
    app: Backstay, *, worker: bool = False, **worker_options: Any
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """For FastAPI(lifespan=…): the app is open while the service runs, with a worker inside if requested."""
    try:
        from backstay.server.application import opened
    except ModuleNotFoundError as error:
        raise missing(error) from error
    return opened(app, worker, worker_options)


def missing(error: ModuleNotFoundError) -> Exception:
    """Return what to install; if one of our own modules is missing, that is our bug, and the error is raised
    unchanged."""
    if (error.name or "").partition(".")[0] == "backstay":
        return error
    return ConfigurationError(f"the server needs more packages ({error.name}): {how_to_install('server')}")


__all__ = ["asgi", "lifespan"]
