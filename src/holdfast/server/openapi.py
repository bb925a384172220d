"""The OpenAPI document: every status that can be, who may call what, examples, and one schema per registered job type.

What the gate can say of any request is added here, so that a route lists only its own answers.
"""

from __future__ import annotations

import copy
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from holdfast.server.gating.incoming import SAFE_METHODS
from holdfast.server.guarding import App, Who, needs
from holdfast.server.problems import documented
from holdfast.server.route_table import Row
from holdfast.server.typed_paths import add_types, join_paths

_ALWAYS = (400, 421)
_WITH_KEY = (401, 403, 429, 503)
_CHANGING = (408, 413, 415)  # also where a route takes no body: one that is sent is looked at all the same
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key, as `holdfast keys create` has shown it."},
    "header": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "The same, in its own header.",
    },
}
_DESCRIPTION = """Durable jobs over HTTP.

Errors are problem+json (RFC 9457): `detail` says what to do next. Without keys the server answers its own machine
alone; with keys every request carries one, and each operation says which scope that needs. Lists are paged by `next`.
"""
EVENTS = "text/event-stream"
_EVENT = {
    "type": "object",
    "description": "One event of the stream.",
    "properties": {
        "event": {"type": "string"},
        "id": {"type": "string", "description": "To go on after it: send it as Last-Event-ID."},
        "data": {"type": "string", "description": "JSON."},
    },
}
_PROBLEM = {
    "title": "Problem",
    "type": "object",
    "description": "Why a request was not answered as it was meant, by RFC 9457.",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "description": "Which kind it is; stays the same."},
        "title": {"type": "string", "description": "The kind, in words."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do next."},
        "instance": {"type": "string", "description": "The path that was asked for."},
        "retry_after": {"type": "integer", "description": "Seconds after which a repeat may work."},
        "errors": {
            "type": "array",
            "description": "Of invalid-request and invalid-payload: each place that does not fit, and why.",
            "items": {
                "type": "object",
                "required": ["loc", "msg"],
                "properties": {"loc": {"type": "string"}, "msg": {"type": "string"}},
            },
        },
    },
    "examples": [
        {
            "type": "/problems/job-not-found",
            "title": "No such job",
            "status": 404,
            "detail": "no job 019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c",
            "instance": "/jobs/019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c",
        }
    ],
}


def router(api: FastAPI) -> APIRouter:
    routes = APIRouter(tags=["document"])

    @routes.get(
        "/openapi.json",
        summary="This document",
        description="The API as OpenAPI 3.1, with the job types that the key may submit to.",
        response_model=dict[str, Any],
        dependencies=[Depends(needs("read"))],
    )
    async def document(request: Request, app: App, who: Who) -> JSONResponse:
        types = [each for each in await app.store.job_types() if who.sees(each.queue)]
        found = add_types(_written(api), types)
        found["servers"] = [{"url": str(request.scope.get("root_path", "")).rstrip("/") or "/"}]
        return JSONResponse(found)

    return routes


def _written(api: FastAPI) -> dict[str, Any]:
    """What does not change while the server runs; made when it is first asked for."""
    if api.openapi_schema is None:
        document = get_openapi(
            title=api.title, version=api.version, description=_DESCRIPTION, routes=api.routes, openapi_version="3.1.0"
        )
        _complete(document, api.state.table)
        join_paths(document["paths"])
        api.openapi_schema = document
    return copy.deepcopy(api.openapi_schema)


def _complete(document: dict[str, Any], table: list[Row]) -> None:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = _PROBLEM
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = _SECURITY
    for row in table:
        for method in row.methods if row.in_schema else ():
            operation = document["paths"].get(row.path_format, {}).get(method.lower())
            if operation is not None:
                _complete_operation(operation, row)


def _complete_operation(operation: dict[str, Any], row: Row) -> None:
    changes = not SAFE_METHODS.issuperset(row.methods)
    statuses = [*_ALWAYS, *(_WITH_KEY if row.scopes else ()), *(_CHANGING if changes else ())]
    responses = operation["responses"]
    for status, described in documented(*statuses).items():
        responses.setdefault(str(status), described)
    if "422" in responses:
        responses["422"] = documented(422)[422]
    for status, described in responses.items():
        if EVENTS in described.get("content", {}):
            described["content"][EVENTS] = {"schema": _EVENT}
        described["description"] = described.get("description") or HTTPStatus(int(status)).phrase
    operation["responses"] = dict(sorted(responses.items()))
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _sent(parameter["schema"])
    operation["security"] = [{name: []} for name in _SECURITY] if row.scopes else []
    if row.opening == "local":
        operation["security"].append({})
    operation["x-scopes"] = list(row.scopes)
    operation["description"] = f"{operation.get('description', '').strip()}\n\n{_takes(row)}".strip()


def _sent(schema: dict[str, Any]) -> dict[str, Any]:
    """Of a parameter that may be left out; null is nothing that a URL or a header could say."""
    match schema:
        case {"anyOf": [dict() as kind, {"type": "null"}], **others}:
            return {**kind, **others}
        case _:
            return schema


def _takes(row: Row) -> str:
    if not row.scopes:
        return "Everyone may call it."
    scopes = " or ".join(f"`{each}`" for each in row.scopes)
    return f"Takes a key with the scope {scopes}{', except from this machine' if row.opening == 'local' else ''}."
