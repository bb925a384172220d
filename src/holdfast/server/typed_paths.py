"""Paths below /jobs in the document: one for each registered job type, with the schema of its payload. Pure.

OpenAPI knows no two templates in the same place, so that what `/jobs/{job_id}` and `/jobs/{job_type}` answer stands
under one, `/jobs/{id_or_type}`. A schema may have been announced by a remote worker. Nothing of it is believed: one
that is no object, or that refers to something outside of itself, is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast import schemas
from holdfast.server import fields
from holdfast.server.problems import documented
from holdfast.store.types import JobType

BY_ID, BY_TYPE, BOTH = "/jobs/{job_id}", "/jobs/{job_type}", "/jobs/{id_or_type}"
TYPES_MAX = 500  # a document that nobody can load helps nobody


def join_paths(paths: dict[str, Any]) -> None:
    by_id, by_type = paths.pop(BY_ID, None), paths.pop(BY_TYPE, None)
    if by_id is None or by_type is None:
        return
    found = {method: _renamed(operation, "job_id") for method, operation in by_id.items()}
    found["post"] = _renamed(by_type["post"], "job_type")
    _join_reads(found["get"], by_type["get"])
    for method in ("delete", "patch", "post"):  # a type has no such method, or an id has not
        found[method]["responses"] |= {"405": documented(405)[405]}
    paths[BOTH] = found
    paths[BY_TYPE] = by_type  # what the paths of types are made from; they take it away


def _renamed(operation: dict[str, Any], name: str) -> dict[str, Any]:
    found = copy.deepcopy(operation)
    for parameter in found["parameters"]:
        if parameter["in"] == "path" and parameter["name"] == name:
            parameter["name"] = "id_or_type"
    return found


def _join_reads(one: dict[str, Any], many: dict[str, Any]) -> None:
    """A job by its id, or the newest of a type by its name."""
    one["summary"] = "Read a job, or list those of a type"
    one["description"] += (
        "\n\nWith the name of a type, its jobs, newest first: `GET /jobs?job_type=…` takes filters too."
    )
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
    """A name that components may have; a colon is the only sign of a type that they may not."""
    return job_type.replace(":", "-colon-")


def payload_schema(text: str | None, name: str) -> dict[str, Any]:
    """With its references led to where it now stands."""
    try:
        schema = None if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError:
        schema = None
    moved = _moved(schema, f"#/components/schemas/{name}/") if isinstance(schema, dict) else None
    return moved if isinstance(moved, dict) else {"description": "Anything: this type has announced no schema."}


def _moved(part: Any, place: str) -> Any:
    """None where something refers to the outside."""
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
    """The options of a submit, as far as this type has a use for them."""
    found = copy.deepcopy(body)
    options = found["properties"]
    options["payload"] = {"$ref": f"#/components/schemas/{payload}"}
    if job_type.payload_schema is not None and schemas.misfits(job_type.payload_schema, None):
        found["required"] = [*found.get("required", ()), "payload"]  # left out, it is null
    if job_type.concurrency_limit is None:
        options["concurrency_key"] = {"type": "null", "description": "This type has no global_concurrency."}
    if job_type.rate is None:
        options["rate_key"] = {"type": "null", "description": "This type has no rate."}
    if not job_type.reuse_by:
        found["allOf"] = [*found.get("allOf", ()), fields.needs("reuse", "content_hash", unless=(None, False))]
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
