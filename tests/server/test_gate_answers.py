"""What every answer has, what none has, and what is written about it."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay
from backstay.cli import daemon
from tests.server.gated import served

CANARY = "bs_canary_7f3a"


async def test_every_answer_tells_browsers_to_run_nothing_but_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as server:
        monkeypatch.setattr(Backstay, "queues", broken)
        for path, status in {
            "/healthz": 200,
            "/jobs": 200,
            "/nowhere": 404,
            "/jobs?x=1": 422,
            "/jobs?api_key=1": 400,
            "/queues": 500,
            "/dashboard/login": None,
            "/dashboard/nowhere": 404,
            "/dashboard/static/x/dashboard.css": 200,
        }.items():
            answer = await server.client.get(path)
            assert status is None or answer.status_code == status, path
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy and "require-trusted-types-for 'script'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert "Server" not in answer.headers
            if not path.startswith("/dashboard"):
                assert answer.headers["Content-Type"] in ("application/json", "application/problem+json")


async def test_a_mistake_of_ours_is_told_without_what_it_was_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as server:
        monkeypatch.setattr(Backstay, "queues", broken)
        monkeypatch.setattr(Backstay, "find", broken)
        for path in ("/queues", "/dashboard/jobs"):
            answer = await server.client.get(path)
            assert answer.status_code == 500
            assert CANARY not in answer.text and "Traceback" not in answer.text
        problem = (await server.client.get("/queues", headers={"X-Request-Id": "abc-1"})).json()
        assert problem["detail"].endswith("under abc-1")
    ours = [each for each in caplog.records if each.name.startswith("backstay")]
    assert any(
        "request abc-1 broke: RuntimeError" in each.getMessage() and "broken" in each.getMessage() for each in ours
    )
    formatted = "\n".join(daemon._Text().format(each) for each in ours)
    assert CANARY not in formatted


async def test_the_id_of_a_request_is_the_clients_where_it_is_plain_and_else_ours(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        answer = await server.client.get("/healthz", headers={"X-Request-Id": "deploy.7-a"})
        assert answer.headers["X-Request-Id"] == "deploy.7-a"
        for strange in ("a b", "x" * 65, "<script>", "é", "a\tb"):
            answer = await server.client.get("/healthz", headers={b"X-Request-Id": strange.encode("latin-1")})
            assert re.fullmatch("[0-9a-f]{16}", answer.headers["X-Request-Id"])


async def test_a_request_leaves_one_line_without_query_payload_or_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "backstay")
    async with served(tmp_path) as server:
        key = await server.key("submit", "read")
        await server.client.post("/jobs/anything", json={"payload": CANARY, "subject": CANARY}, headers=key)
        await server.client.get(f"/jobs?subject={CANARY}", headers={**key, "X-Other": CANARY})
        await server.client.post("/jobs/anything", json={"payload": 1, CANARY: CANARY}, headers=key)
        await server.client.post("/jobs/letter", json={"payload": {"to": 7, "copies": CANARY}}, headers=key)
    lines = [each for each in caplog.records if each.name == "backstay.access"]
    assert [each.fields["status"] for each in lines] == [201, 200, 422, 422]  # type: ignore[attr-defined]
    assert all(each.fields["key_id"] in key["X-API-Key"] for each in lines)  # type: ignore[attr-defined]
    everything = "\n".join(each.getMessage() for each in caplog.records if each.name.startswith("backstay"))
    assert CANARY not in everything and key["X-API-Key"].split("_")[3] not in everything
    line = json.loads(daemon._Json().format(lines[0]))
    assert (line["method"], line["path"], line["status"]) == ("POST", "/jobs/anything", 201)


async def test_what_drives_a_terminal_or_ends_a_line_does_not_reach_the_log_or_a_header(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "backstay")
    driving = ("%1b]0;owned%07", "%0d%0aSet-Cookie:%20a=b", "%00", "%7f", "%e2%80%ae", "%c2%9b31m")
    async with served(tmp_path) as server:
        for signs in driving:
            for path in (f"/jobs/{signs}", f"/{signs}", f"/dashboard/{signs}", f"/queues/{signs}/pause"):
                answer = await server.client.get(path)
                assert answer.status_code in (404, 405, 422), path
                assert "set-cookie: a" not in str(answer.headers).lower()
    lines = [each.getMessage() for each in caplog.records if each.name == "backstay.access"]
    assert len(lines) == 4 * len(driving)
    assert all(line.isprintable() and line.isascii() for line in lines)


async def test_ids_are_uuids_and_lead_nowhere_else(tmp_path: Path) -> None:
    strange = (
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e",
        "a" * 4096,
        "%00",
        "．．",
        "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4",
    )
    async with served(tmp_path) as server:
        for each in strange:
            for path in (
                f"/jobs/{each}/history",
                f"/jobs/{each}/artifacts/x",
                f"/jobs/{each}/logs",
                f"/jobs/letter/{each}",
            ):
                answer = await server.client.get(path)
                assert answer.status_code in (404, 422), path
                assert "root:" not in answer.text


async def test_what_stands_in_an_address_is_not_repeated_as_html(tmp_path: Path) -> None:
    vectors = (
        "<script>__p()</script>",
        '"><svg/onload=__p()>',
        "javascript:__p()",
        "{{7*7}}",
        "</title><img src=x onerror=__p()>",
    )
    async with served(tmp_path) as server:
        for each in vectors:
            params = {"next": each, "status": each, "q": each, "sort": each}
            for path in ("/dashboard/nowhere/" + each, "/dashboard/login", "/nowhere/" + each, "/dashboard/jobs"):
                answer = await server.client.get(path, params=params, headers={"Referer": each, "User-Agent": each})
                if "html" in answer.headers.get("Content-Type", ""):
                    assert "<" not in each or each not in answer.text, path
                    assert 'href="javascript:' not in answer.text and not re.search(r"[>\"]\s*49\s*[<\"]", answer.text)
                elif answer.content:
                    assert answer.headers["Content-Type"].endswith("json"), path
                assert answer.headers.get("location", "/").startswith("/")


async def test_a_method_that_a_path_does_not_take_is_told_which_it_takes(tmp_path: Path) -> None:
    some_id = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"
    allowed = {
        "/jobs": "GET",
        "/jobs/letter": "GET, POST",
        "/jobs/batch": "POST",
        "/jobs/nobodys": "DELETE, GET, PATCH, POST",  # by the document it may be an id or a type
        f"/jobs/{some_id}": "DELETE, GET, PATCH, POST",
        "/schedules/nightly": "DELETE, GET, PUT",
        "/queues/mail/pause": "POST",
    }
    async with served(tmp_path) as server:
        for path, methods in allowed.items():
            answer = await server.client.options(path)
            assert (answer.status_code, answer.headers["Allow"]) == (405, methods), path
            assert answer.json()["type"] == "/problems/method-not-allowed"


async def broken(*_: Any, **__: Any) -> None:
    raise RuntimeError(f"payload was {CANARY}")
