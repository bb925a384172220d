"""One operation per registered job type: POST /jobs/{type} with the schema of that type's payload. Pure.

A schema may have been announced by a remote worker. Nothing of it is believed: one that is no object, or that refers to
something outside of itself, is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.store.types import JobType

GENERIC = "/jobs/{job_type}"
TYPES_MAX = 500  # a document that nobody can load helps nobody


def add_types(document: dict[str, Any], types: Iterable[JobType]) -> dict[str, Any]:
    generic = document["paths"].get(GENERIC, {}).get("post")
    body = document["components"]["schemas"].get("SubmitBody")
    if generic is None or body is None:
        return document
    for each in sorted(types, key=lambda each: each.job_type)[:TYPES_MAX]:
        payload = f"Payload.{component(each.job_type)}"
        submit = f"Submit.{component(each.job_type)}"
        document["components"]["schemas"][payload] = payload_schema(each.payload_schema, payload)
        document["components"]["schemas"][submit] = _with_payload(body, payload)
        path = document["paths"].setdefault(f"/jobs/{each.job_type}", {})
        path["post"] = _of_type(generic, each, submit)
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


def _with_payload(body: dict[str, Any], payload: str) -> dict[str, Any]:
    found = copy.deepcopy(body)
    found["properties"]["payload"] = {"$ref": f"#/components/schemas/{payload}"}
    found.pop("examples", None)
    return found


def _of_type(generic: dict[str, Any], job_type: JobType, submit: str) -> dict[str, Any]:
    found = copy.deepcopy(generic)
    found["operationId"] = f"submit_{component(job_type.job_type)}"
    found["summary"] = f"Submit a job of type {job_type.job_type}"
    found["parameters"] = [each for each in found.get("parameters", ()) if each["in"] != "path"]
    found["requestBody"]["content"]["application/json"] = {"schema": {"$ref": f"#/components/schemas/{submit}"}}
    return found
