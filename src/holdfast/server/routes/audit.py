"""GET /audit: who changed what, over HTTP, in the dashboard and on the command line."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from holdfast import limits
from holdfast.app import Holdfast
from holdfast.server import documents, problems
from holdfast.server.guarding import App, Who, needs
from holdfast.server.routing import answer, answers, routes

After = Annotated[str | None, Query(description="`next` of the page before.", json_schema_extra={"format": "uuid"})]
Limit = Annotated[int, Query(ge=1, le=limits.AUDIT_PAGE_MAX)]


def router(_: Holdfast) -> APIRouter:
    api = routes("audit")

    @api.get(
        "/audit",
        summary="Read the audit trail",
        dependencies=[Depends(needs("admin"))],
        **answers(documents.AuditTrail),
    )
    async def read_audit_trail(app: App, who: Who, after: After = None, limit: Limit = 50) -> Response:
        """Newest first. `outcome` is `ok`, what went wrong, or null where nobody heard what became of the change."""
        if not who.sees_all:  # entries do not say of which queue they are
            raise problems.foreign_queue("all queues, of which the trail tells")
        trail = await app.audit_trail(after, limit)
        return answer({"items": trail, "next": trail.next})

    return api
