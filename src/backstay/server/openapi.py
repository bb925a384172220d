"""The OpenAPI document: all statuses, scopes and examples, and one path per job type with its schema.

What the gate can answer to any request is added here, so that a route lists only its own answers. OpenAPI does not
allow two templates in the same place, so `/jobs/{job_id}` and `/jobs/{job_type}` are documented as
`/jobs/{id_or_type}`. A schema that a remote worker announced is not trusted: one that is not an object, or refers to
something outside itself, is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from backstay.core import payload_schema as core_payload_schema
from backstay.core.records import JobType
from backstay.server import request_models, response_models, routing
from backstay.server.auth import App, Who, needs
from backstay.server.problems import documented
from backstay.server.request import SAFE_METHODS
from backstay.server.routing import BY_ID, BY_TYPE, Row

BOTH = "/jobs/{id_or_type}"
TYPES_MAX = 500  # a larger document is too large for tools to load


def join_paths(paths: dict[str, Any]) -> None:
    by_id, by_type = paths.pop(BY_ID, None), paths.pop(BY_TYPE, None)
    if by_id is None or by_type is None:
        return
    found = {method: _renamed(operation, "job_id") for method, operation in by_id.items()}
    found["post"] = _renamed(by_type["post"], "job_type")
    _join_reads(found["get"], by_type["get"])
    for method in ("delete", "patch", "post"):  # methods that either a type or an id does not have
        found[method]["responses"] |= {"405": documented(405)[405]}
    paths[BOTH] = found
    paths[BY_TYPE] = by_type  # the template of the paths of types, which remove it


def _renamed(operation: dict[str, Any], name: str) -> dict[str, Any]:
    found = copy.deepcopy(operation)
    for parameter in found["parameters"]:
        if parameter["in"] == "path" and parameter["name"] == name:
            parameter["name"] = "id_or_type"
    return found


def _join_reads(one: dict[str, Any], many: dict[str, Any]) -> None:
    """Combine reading a job by its id with finding jobs of a type by its name."""
    one["summary"] = "Read a job, or list the jobs of a type"
    one["description"] += "\n\nWith a job type, its jobs, newest first: `GET /jobs?job_type=…` also takes filters."
    one["parameters"] = [each for each in one["parameters"] if each["name"] != "id_or_type"] + [
        {"name": "id_or_type", "in": "path", "required": True, "schema": _schema_of(many, "job_type")}
    ]
    schemas = [each["responses"]["200"]["content"]["application/json"]["schema"] for each in (one, many)]
    one["responses"]["200"]["content"]["application/json"]["schema"] = {"anyOf": schemas}


def _schema_of(operation: dict[str, Any], name: str) -> Any:
    return next(each["schema"] for each in operation["parameters"] if each["name"] == name)


def add_types(document: dict[str, Any], types: Iterable[JobType]) -> dict[str, Any]:
    generic = document["paths"].pop(BY_TYPE, None)
    components = document["components"]["schemas"]
    if generic is None:
        return document
    for each in sorted(types, key=lambda each: each.job_type)[:TYPES_MAX]:
        payload, submit = f"Payload.{component(each.job_type)}", f"Submit.{component(each.job_type)}"
        components[payload] = payload_schema(each.payload_schema, payload)
        components[submit] = _submit_schema(components["SubmitBody"], payload, each)
        document["paths"][f"/jobs/{each.job_type}"] = {
            method: _of_type(operation, method, each.job_type, submit) for method, operation in generic.items()
        }
    return document


def component(job_type: str) -> str:
    """Return a name allowed in components: of the characters of a type, only a colon is not."""
    return job_type.replace(":", "-colon-")


def payload_schema(text: str | None, name: str) -> dict[str, Any]:
    """Return the schema with its references adjusted to its new place."""
    try:
        schema = None if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError:
        schema = None
    moved = _moved(schema, f"#/components/schemas/{name}/") if isinstance(schema, dict) else None
    return moved if isinstance(moved, dict) else {"description": "Any JSON: no schema was announced for this type."}


def _moved(part: Any, place: str) -> Any:
    """Return the schema with its references adjusted, or None if one refers to another document."""
    match part:
        case dict():
            found = {}
            for name, value in part.items():
                if name == "$ref" and isinstance(value, str):
                    if not value.startswith("#/$defs/"):
                        return None
                    found[name] = place + value.removeprefix("#/")
                    continue
                found[name] = _moved(value, place)
                if found[name] is None and value is not None:
                    return None
            return found
        case list():
            moved = [_moved(each, place) for each in part]
            lost = any(new is None and old is not None for new, old in zip(moved, part, strict=True))
            return None if lost else moved
        case _:
            return part


def _submit_schema(body: dict[str, Any], payload: str, job_type: JobType) -> dict[str, Any]:
    """Return the submit options that apply to this type."""
    found = copy.deepcopy(body)
    options = found["properties"]
    options["payload"] = {"$ref": f"#/components/schemas/{payload}"}
    if job_type.payload_schema is not None and core_payload_schema.misfits(job_type.payload_schema, None):
        found["required"] = [*found.get("required", ()), "payload"]  # if it is left out, it is null
    if job_type.concurrency_limit is None:
        options["concurrency_key"] = {"type": "null", "description": "This type has no global_concurrency."}
    if job_type.rate is None:
        options["rate_key"] = {"type": "null", "description": "This type has no rate."}
    else:
        [cost] = [each for each in options["rate_cost"]["anyOf"] if each.get("type") == "integer"]
        cost["maximum"] = job_type.rate.count
    derives = job_type.derivation is not None and job_type.derivation.derives("content_hash")
    if not job_type.reuse_by and not derives:
        found["allOf"] = [*found.get("allOf", ()), request_models.needs("reuse", "content_hash", unless=(None, False))]
    found.pop("examples", None)
    return found


def _of_type(generic: dict[str, Any], method: str, job_type: str, submit: str) -> dict[str, Any]:
    found = copy.deepcopy(generic)
    found["operationId"] = f"{method}_{component(job_type)}"
    found["summary"] = f"{'Submit a job' if method == 'post' else 'List jobs'} of type {job_type}"
    found["parameters"] = [each for each in found.get("parameters", ()) if each["in"] != "path"]
    if method == "post":
        found["requestBody"]["content"]["application/json"] = {"schema": {"$ref": f"#/components/schemas/{submit}"}}
    return found


_ALWAYS = (400, 421)
_WITH_KEY = (401, 403, 429, 503)
_CHANGING = (408, 413, 415)  # also for routes without a body: one that is sent is checked nevertheless
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key, as printed by `backstay keys create`."},
    "header": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "The same key in a header of its own.",
    },
}
_DESCRIPTION = """Durable jobs over HTTP.

Errors are problem+json (RFC 9457): `detail` says what to do next. Without keys, the server only answers its
own machine; with keys, every request carries one, and each operation names the scope it needs. Lists are paged by
`next`.
"""
EVENTS = "text/event-stream"
_EVENT = {
    "type": "object",
    "description": "One event of the stream.",
    "properties": {
        "event": {"type": "string"},
        "id": {"type": "string", "description": "To continue after this event, send it as Last-Event-ID."},
        "data": {"type": "string", "description": "JSON."},
    },
}
_PROBLEM = {
    "title": "Problem",
    "type": "object",
    "description": "Why a request failed (RFC 9457).",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "description": "Stable identifier of the kind of problem."},
        "title": {"type": "string", "description": "The kind of problem, in words."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do next."},
        "instance": {"type": "string", "description": "The requested path."},
        "retry_after": {"type": "integer", "description": "Seconds after which a retry may succeed."},
        "errors": {
            "type": "array",
            "description": "For invalid-request and invalid-payload: every invalid field, and why.",
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
        types = [each for each in await app.job_types() if who.sees(each.queue)]
        found = add_types(_written(api), types)
        found["servers"] = [{"url": str(request.scope.get("root_path", "")).rstrip("/") or "/"}]
        return JSONResponse(found)

    return routes


def _written(api: FastAPI) -> dict[str, Any]:
    """Return the part of the document that does not change while the server runs. Built on first use."""
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
    schemas |= copy.deepcopy(routing.components)
    schemas["Job"]["examples"] = [msgspec.json.decode(msgspec.json.encode(response_models.example()))]
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
    """Return the schema of an optional parameter without null, which neither a URL nor a header can express."""
    match schema:
        case {"anyOf": [dict() as kind, {"type": "null"}], **others}:
            return {**kind, **others}
        case _:
            return schema


def _takes(row: Row) -> str:
    if not row.scopes:
        return "No key needed."
    scopes = " or ".join(f"`{each}`" for each in row.scopes)
    return f"Needs a key with the scope {scopes}{', except from this machine' if row.opening == 'local' else ''}."
