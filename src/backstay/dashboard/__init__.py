"""The dashboard: server-rendered pages that work without JavaScript and update live with it.

How to add a page. A module of this package has a `router = page.pages()` with its routes, each of which declares the
scope it needs. A route reads through `page.app_of(request)`, shows only what `page.principal_of(request)` may see, and
answers with `page.render(request, "name.html", …)`. A change is a form that POSTs: `await page.read(request)` checks
its token, the change goes through the app with an entry in the audit trail, and `page.redirect(…)` reports what was
done.

How a page stays current. `page.render(…, live="all")` names what the page follows (see live.py): everything, a job or a
tree. The page's script (static/live.js) listens to `GET /dashboard/live?topic=…`, a stream of events that say only that
something changed. It then requests the page's own URL again, lets the browser parse the answer (XMLHttpRequest with
responseType "document"; no script ever turns a string into HTML, which the Trusted Types of our policy would refuse),
and copies the differences into the elements that have `data-live="name"`, node by node: focus, selections, checked
boxes and open details stay as they are. Elements that must be recognised when their order changes have `data-key`. So
each thing has one template, whether the page is loaded or updated.

Links are built from the request's root_path, so everything works below a prefix.
"""

from __future__ import annotations

from fastapi import APIRouter

from backstay.server.routing import for_every_app


@for_every_app
def router() -> APIRouter:
    """Every page, for the API to include."""
    from backstay.dashboard import (
        access,
        comparison,
        dead,
        job,
        job_content,
        jobs,
        limits,
        live,
        overview,
        page,
        queues,
        schedules,
        subjects,
        submit,
        tree,
        workers,
    )

    page.compile_templates()
    whole = APIRouter(include_in_schema=False)
    # Literal paths come before those with a name in them.
    whole.include_router(page.assets_router)
    for module in (live, overview, submit, jobs, job_content, job, tree, queues, limits, workers):
        whole.include_router(module.router)
    for module in (dead, schedules, comparison, subjects, access):
        whole.include_router(module.router)
    whole.include_router(page.fallback_router)  # last: it answers what no page does
    return whole


__all__ = ["router"]
