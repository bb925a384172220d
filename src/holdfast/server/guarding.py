"""What a route needs, and the one door that ids go through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Request

from holdfast import ids
from holdfast.app import Holdfast
from holdfast.errors import JobNotFound
from holdfast.job import Job
from holdfast.server import problems
from holdfast.server.gating.opening import Opening
from holdfast.server.principals import Principal, Scope

# Dependencies are coroutines: a plain function would be run in a thread, three of them for every request.
Needed = Callable[[Request], Awaitable[Principal | None]]


def needs(*scopes: Scope) -> Needed:
    """A dependency of a route: `dependencies=[Depends(needs("submit"))]`. One of the scopes is enough."""
    if not scopes:
        raise ValueError("needs() without a scope: use `anyone`")

    async def check(request: Request) -> Principal:
        principal = found(request)
        if principal is None:
            raise problems.unauthenticated()
        if not principal.may(*scopes):
            raise problems.out_of_scope(scopes)
        return principal

    check.holdfast_scopes = scopes  # type: ignore[attr-defined]  # what tests and OpenAPI read
    return check


async def anyone(request: Request) -> Principal | None:
    """A route that everyone may call. The gate gets a list of their paths; this marks it as meant."""
    return found(request)


anyone.holdfast_scopes = ()  # type: ignore[attr-defined]


def unless_local(*scopes: Scope) -> Needed:
    """This machine may call it without a key; others need one with the scope."""
    needed = needs(*scopes)

    async def check(request: Request) -> Principal | None:
        return found(request) if is_local(request) else await needed(request)

    check.holdfast_scopes = scopes  # type: ignore[attr-defined]
    check.holdfast_is_local = True  # type: ignore[attr-defined]
    return check


def is_local(request: Request) -> bool:
    """Whether it comes from this machine, as the gate has found."""
    return bool(request.scope.get("state", {}).get("is_local"))


def opening_of(dependency: Any) -> Opening | None:
    """Whether a dependency lets in those who have no key."""
    if scopes_of(dependency) == ():
        return "anyone"
    return "local" if getattr(dependency, "holdfast_is_local", False) else None


def scopes_of(dependency: Any) -> tuple[Scope, ...] | None:
    """What a dependency asks for; None where it is not one of ours."""
    return getattr(dependency, "holdfast_scopes", None)


def found(request: Request) -> Principal | None:
    """Whoever the gate has found; None: nobody."""
    principal: Principal | None = request.scope.get("state", {}).get("principal")
    return principal


async def _who(request: Request) -> Principal:
    principal = found(request)
    if principal is None:
        raise problems.unauthenticated()
    return principal


async def _app(request: Request) -> Holdfast:
    app: Holdfast = request.app.state.holdfast
    return app


App = Annotated[Holdfast, Depends(_app)]  # in a route: `async def show(app: App, who: Who, …)`
Who = Annotated[Principal, Depends(_who)]


async def visible(app: Holdfast, principal: Principal, job_id: str) -> Job:
    """The job, where the principal may see it. Another's is told apart from none by nothing."""
    job = await app.get(job_id)
    if not principal.sees(job.queue):
        raise JobNotFound(f"no job {ids.canonical(job_id)}")
    return job


def check_queue(principal: Principal, queue: str) -> str:
    """For a submit, a claim, a change of a queue: one that is not the key's is refused by name."""
    if not principal.sees(queue):
        raise problems.foreign_queue(queue)
    return queue


def link(request: Request, path: str) -> str:
    """A path of ours as the client has to write it, below the prefix that we are mounted at."""
    return str(request.scope.get("root_path", "")).rstrip("/") + path
