"""The dashboard: pages made by the server, which work without JavaScript and come alive with it.

How a page is made. A module of this package has a `router = frame.pages()` with its routes; each says which scope it
needs. A route reads through `frame.app_of(request)`, shows only what `frame.principal_of(request)` sees, and answers
with `frame.render(request, "name.html", …)`. A change is a form that POSTs: `await forms.read(request)` checks its
token, the change goes through the app with an entry in the audit trail, and `frame.redirect(…)` says what was done.

How a page lives. `frame.render(…, live="all")` names what the page follows (see pulse.py): everything, a job or a
tree. The page's module (static/live.js) listens to `GET /dashboard/live?topic=…`, a stream of events that say only
that something changed. It then asks for the page's own URL again, lets the browser parse the answer (XMLHttpRequest
with responseType "document"; no string is ever made into HTML by a script, which the trusted types of our policy would
refuse), and carries what differs over into the elements that have `data-live="name"`, node by node: focus, selections,
ticked boxes and opened details stay as they are. Elements that should be recognised when their order changes have
`data-key`. So there is one template for a thing, whether it is loaded or has changed.

Links are built from the request's root_path, so that all of it works below a prefix.
"""

from __future__ import annotations

from fastapi import APIRouter

from holdfast.app import Holdfast

PREFIX = "/dashboard"


def router(_: Holdfast | None = None) -> APIRouter:
    """Every page, for the API to include."""
    from holdfast.dashboard import (
        artifacts,
        assets,
        audit,
        dead,
        errors,
        frame,
        job,
        jobs,
        keys,
        login,
        overview,
        pulse,
        queues,
        results,
        schedules,
        subjects,
        submit,
        trees,
        workers,
    )

    frame.compile_templates()
    whole = APIRouter(include_in_schema=False)
    # Literal paths come before those with a name in them.
    for module in (assets, login, pulse, overview, submit, jobs, results, artifacts, job, trees, queues, workers):
        whole.include_router(module.router)
    for module in (dead, schedules, subjects, audit, keys):
        whole.include_router(module.router)
    whole.include_router(errors.router)  # last: it answers what no page does
    return whole


__all__ = ["PREFIX", "router"]
