"""What is written about the routes: the page of the HTTP API names all, and OpenAPI describes their answers."""

import re
from pathlib import Path
from typing import Annotated

import jsonschema
import msgspec
import pytest

from backstay.core import queues
from backstay.job import FIELDS
from backstay.server import routing
from tests.server.routes_fixtures import stage as stage
from tests.server.routes_stage import Stage

PAGE = Path(__file__).parents[2] / "docs/reference/http.md"


def written() -> set[tuple[str, str]]:
    """Every method and path that the page names; `…/resume` stands for the path before it with another end."""
    found: set[tuple[str, str]] = set()
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        method, path = "", ""
        for each in re.findall(r"`([A-Z]+ /[^`?]*|…/[a-z]+)`", line.split(" | ")[0]):
            if each.startswith("…"):
                path = f"{path.rpartition('/')[0]}/{each.removeprefix('…/')}"
            else:
                method, _, path = each.partition(" ")
            found.add((method, path))
    return found


async def test_the_page_names_every_route_and_no_other(stage: Stage) -> None:
    document = (await stage.http.get("/openapi.json")).json()
    types = {f"/jobs/{name}" for name in stage.app.handlers}
    routes = {
        (method.upper(), re.sub(r"\{(?:job|worker)_", "{", path))
        for path, operations in document["paths"].items()
        for method in operations
        if path not in types and path != "/jobs/{id_or_type}"
    }
    one_or_all = {
        *((method, "/jobs/{id}") for method in ("GET", "DELETE", "PATCH")),
        *((method, "/jobs/{type}") for method in ("GET", "POST")),
    }
    assert written() == routes | one_or_all


async def test_the_record_in_openapi_has_the_fields_of_the_record(stage: Stage) -> None:
    components = (await stage.http.get("/openapi.json")).json()["components"]
    schema = components["schemas"]["Job"]
    assert list(schema["properties"]) == FIELDS
    assert set(schema["required"]) == set(FIELDS)
    [example] = schema["examples"]
    assert list(example) == FIELDS
    jsonschema.Draft202012Validator({**schema, "components": components}).validate(example)
    assert example["status"] == "completed"


def test_a_field_that_is_added_to_a_struct_is_in_openapi_and_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Queue(queues.Queue, frozen=True, kw_only=True):
        shards: Annotated[int, msgspec.Meta(description="How many shards it has.")] = 1

    monkeypatch.setattr(routing, "components", {})
    described = routing.described(Queue, "A queue")
    assert described["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Queue"}
    found = routing.components["Queue"]
    assert found["properties"]["shards"] == {"type": "integer", "description": "How many shards it has."}
    assert set(found["required"]) == set(found["properties"])


def test_two_kinds_of_answer_cannot_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "components", {})
    routing.described(msgspec.defstruct("Same", [("a", int)]), "")
    with pytest.raises(TypeError, match="Same"):
        routing.described(msgspec.defstruct("Same", [("b", int)]), "")


@pytest.mark.parametrize("path", ["/jobs/{id_or_type}", "/jobs/batch", "/schedules/{name}"])
async def test_bodies_have_examples(stage: Stage, path: str) -> None:
    document = (await stage.http.get("/openapi.json")).json()
    [method] = [each for each in ("post", "put") if each in document["paths"][path]]
    content = document["paths"][path][method]["requestBody"]["content"]["application/json"]
    schema = content["schema"]
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    assert "example" in content or "examples" in content or schema.get("examples")
