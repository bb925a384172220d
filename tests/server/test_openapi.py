"""The document says all that the server answers, and what each job type takes."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from backstay.core.records import JobType
from backstay.server import openapi
from tests.server.gated import Served, served

# Method, path, body and status: rules between fields, and what a model alone would not say.
ASKED: list[tuple[str, str, dict[str, Any], int]] = [
    ("post", "/jobs/anything", {"run_at": "2026-11-15T09:30:00Z", "delay": 5}, 422),
    ("post", "/jobs/anything", {"run_at": "2026-11-15T09:30:00Z", "delay": None}, 201),
    ("post", "/jobs/anything", {"dedup_key": "a", "dedup_by": ["b"]}, 422),
    ("post", "/jobs/anything", {"dedup_for": 5, "dedup_key": "a"}, 201),
    ("post", "/jobs/anything", {"dedup_for": None}, 201),
    ("post", "/jobs/anything", {"fairness_weight": 2}, 422),
    ("post", "/jobs/anything", {"fairness_weight": 1}, 201),
    ("post", "/jobs/anything", {"fairness_weight": 2.0, "fairness_key": "a"}, 201),
    ("post", "/jobs/anything", {"trigger_rule": "all_done", "depends_on": []}, 422),
    ("post", "/jobs/anything", {"trigger_rule": "all_success"}, 201),
    ("post", "/jobs/anything", {"reuse": True}, 422),
    ("post", "/jobs/anything", {"reuse": True, "content_hash": "a"}, 201),
    ("post", "/jobs/anything", {"concurrency_key": "a"}, 422),
    ("post", "/jobs/anything", {"rate_key": "a"}, 422),
    ("post", "/jobs/anything", {"rate_key": None}, 201),
    ("post", "/jobs/anything", {"timeout": 5e-324}, 422),
    ("post", "/jobs/anything", {"delay": 1e10}, 422),
    ("post", "/jobs/anything", {"tags": [""]}, 422),
    ("post", "/jobs/anything", {"subject": "a\0b"}, 400),
    ("post", "/jobs/anything", {}, 201),
    ("post", "/jobs/letter", {}, 422),
    ("post", "/queues/{name}/limit", {"max_pending": 5.0}, 200),
    ("post", "/queues/{name}/limit", {"max_pending": 5.5}, 422),
    ("patch", "/jobs/{id_or_type}", {"run_at": "2026-11-15T09:30:00Z", "delay": 5}, 422),
    ("patch", "/jobs/{id_or_type}", {"priority": None, "reason": "why"}, 422),
    ("patch", "/jobs/{id_or_type}", {"priority": 7.0, "run_at": None}, 404),
    ("put", "/schedules/{name}", {"cron": "* * *", "job_type": "anything"}, 422),
    ("put", "/schedules/{name}", {"cron": "* * * * *", "job_type": "anything"}, 201),
    ("post", "/workers/register", {"worker_id": "w", "job_types": ["batch"]}, 422),
    ("post", "/workers/register", {"worker_id": "w", "job_types": ["a"], "limits": {"a b": 1}}, 422),
    ("post", "/workers/register", {"worker_id": "w", "job_types": ["a"], "limits": {"a": 1.0}}, 200),
]


async def document(server: Served, headers: dict[str, str] | None = None) -> Any:
    answer = await server.client.get("/openapi.json", headers=headers or {})
    assert answer.status_code == 200
    return answer.json()


async def test_every_operation_says_who_may_call_it_and_what_can_go_wrong(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        found = await document(server)
    operations = [(path, method, each) for path, methods in found["paths"].items() for method, each in methods.items()]
    assert len(operations) > 40
    for path, method, each in operations:
        name = f"{method} {path}"
        assert each["summary"] and each["description"], name
        is_open = path in ("/", "/healthz", "/readyz")
        assert bool(each["security"]) is not is_open, name
        wanted = {"400", "421"} | (set() if is_open else {"401", "403", "429", "503"})
        wanted |= set() if method in ("get", "head") else {"408", "413", "415"}
        assert wanted <= set(each["responses"]), name
        for status, response in each["responses"].items():
            if status.startswith("4"):
                assert response["content"]["application/problem+json"]["schema"]["$ref"].endswith("/Problem"), name
        if "requestBody" in each:
            assert "application/json" in each["requestBody"]["content"], name
    ids = [each["operationId"] for _, _, each in operations]
    assert len(ids) == len(set(ids))
    assert not [path for path in found["paths"] if path.startswith("/dashboard")]


async def test_every_reference_leads_somewhere(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        found = await document(server)
    dangling = [name for name in references(found) if not resolves(found, name)]
    assert dangling == []


async def test_a_job_type_has_a_path_with_the_schema_of_its_payload(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        found = await document(server)
        submit = found["paths"]["/jobs/letter"]["post"]
        name = submit["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        schema = {"$ref": f"#/components/schemas/{name}", "components": found["components"]}
        jsonschema.validate({"payload": {"to": "ann"}}, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"payload": {"copies": "many"}}, schema)
        good = await server.client.post("/jobs/letter", json={"payload": {"to": "ann"}})
        bad = await server.client.post("/jobs/letter", json={"payload": {"copies": "many"}})
        assert (good.status_code, bad.status_code) == (201, 422)


async def test_where_an_id_or_a_type_may_stand_the_wrong_one_is_documented(tmp_path: Path) -> None:
    some_id = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"
    async with served(tmp_path) as server:
        operations = (await document(server))["paths"]["/jobs/{id_or_type}"]
        for method, named, status in (
            ("post", some_id, 404),
            ("delete", "nobodys", 404),
            ("patch", "nobodys", 404),
            ("delete", "letter", 405),
            ("patch", "letter", 405),
        ):
            answer = await server.client.request(method.upper(), f"/jobs/{named}", json={})
            assert answer.status_code == status, (method, named)
            assert str(status) in operations[method]["responses"]


async def test_what_is_refused_is_no_part_of_the_schema_and_what_is_taken_is(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        found = await document(server)
        for method, path, body, status in ASKED:
            where = path.replace("{name}", "mail").replace("{id_or_type}", "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c")
            answer = await server.client.request(method, where, json=body)
            schema = found["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
            validator = jsonschema.Draft202012Validator({**schema, "components": found["components"]})
            assert answer.status_code == status, (path, body, answer.text)
            assert validator.is_valid(body) is (status not in (400, 422)), (path, body)


async def test_a_key_is_shown_the_types_of_its_own_queues(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        everything = await document(server)
        of_mail = await document(server, await server.key("read", queues=["mail"]))
    assert "/jobs/anything" in everything["paths"] and "/jobs/letter" in everything["paths"]
    assert "/jobs/anything" not in of_mail["paths"] and "/jobs/letter" in of_mail["paths"]


async def test_below_a_prefix_the_document_says_so(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        assert (await document(server))["servers"] == [{"url": "/"}]


def test_a_schema_of_a_stranger_is_moved_with_its_references_or_left_out() -> None:
    good = '{"$defs": {"A": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"default": null}}}'
    moved = openapi.payload_schema(good, "Payload.x")
    assert moved["properties"]["a"] == {"$ref": "#/components/schemas/Payload.x/$defs/A"}
    assert moved["properties"]["b"] == {"default": None}
    for bad in (None, "[]", "{", "7", '{"properties": {"a": [{"$ref": "http://evil.test/x"}]}}', '{"$ref": "#"}'):
        assert list(openapi.payload_schema(bad, "x")) == ["description"]


def test_names_of_types_are_names_of_components() -> None:
    assert openapi.component("mail:out") == "mail-colon-out"
    document = {"paths": {openapi.BY_TYPE: {}}, "components": {"schemas": {"SubmitBody": {"properties": {}}}}}
    many = [
        JobType(
            job_type=f"t{n:04}",
            queue="q",
            priority=1,
            max_attempts=1,
            timeout_micros=1,
            payload_schema=None,
            version=1,
            last_seen=0,
        )
        for n in range(openapi.TYPES_MAX + 1)
    ]
    assert len(openapi.add_types(document, many)["paths"]) == openapi.TYPES_MAX


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [name for each in part.values() for name in references(each)]
    return [name for each in part for name in references(each)] if isinstance(part, list) else []


def resolves(found: Any, name: str) -> bool:
    for step in name.removeprefix("#/").split("/"):
        if not isinstance(found, dict) or step not in found:
            return False
        found = found[step]
    return name.startswith("#/")
