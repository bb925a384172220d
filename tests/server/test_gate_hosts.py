"""Who a request is addressed to, and from where it comes."""

from pathlib import Path

import pytest

from backstay.errors import ConfigurationError
from backstay.server.request import Hosts, network
from tests.server.gated import served


async def test_a_request_to_a_name_that_is_not_ours_is_refused_before_anything_else(tmp_path: Path) -> None:
    strangers = ("evil.test", "evil.test:8000", "localhost.evil.test", "127.0.0.1.evil.test", "a b", "")
    async with served(tmp_path) as server:
        for host in strangers:
            for path in ("/healthz", "/jobs", "/dashboard", "/nowhere"):
                answer = await server.client.get(path, headers={"Host": host})
                assert answer.status_code == 421, (host, path)


async def test_this_machine_always_goes_by_its_own_names(tmp_path: Path) -> None:
    own = ("localhost", "LOCALHOST:80", "app.localhost", "127.0.0.1", "127.9.9.9:1", "[::1]:8000", "localhost.")
    async with served(tmp_path) as server:
        for host in own:
            assert (await server.client.get("/jobs", headers={"Host": host})).status_code == 200, host


def test_names_that_were_given_are_allowed_with_all_below_a_star() -> None:
    allowed = Hosts(["jobs.example.com", "*.internal"])
    assert (
        allowed.allows("jobs.example.com:443") and allowed.allows("JOBS.example.com") and allowed.allows("a.b.internal")
    )
    assert allowed.allows("10.1.2.3:8000") and allowed.allows("[2001:db8::1]")  # nobody's to point elsewhere
    assert not any(map(allowed.allows, ("example.com", "xjobs.example.com", "internal", "evil.test", "[::1", "", None)))
    assert Hosts(["*"]).allows("evil.test") and Hosts(None).allows("evil.test")


def test_a_list_of_names_is_not_one_text() -> None:
    with pytest.raises(ConfigurationError, match="give a list"):
        Hosts("jobs.example.com")


async def test_without_keys_other_machines_are_told_to_have_one_made(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for client in ("10.0.0.7", "192.168.1.9", "2001:db8::7", "::ffff:10.0.0.7", "somewhere"):
            async with server.client_at(client) as elsewhere:
                answer = await elsewhere.get("/jobs")
                assert answer.status_code == 403, client
                assert "backstay keys create" in answer.json()["detail"]
                assert (await elsewhere.get("/healthz")).status_code == 200


async def test_without_keys_this_machine_may_do_everything(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        for client in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
            async with server.client_at(client) as here:
                made = await here.post("/jobs/letter", json={"payload": {"to": "ann"}})
                assert (made.status_code, made.json()["created_by"]) == (201, "local"), client


async def test_without_keys_a_proxy_on_this_machine_lets_nobody_in(tmp_path: Path) -> None:
    says = ["Forwarded", "X-Real-IP", "Via", "CF-Connecting-IP", "True-Client-IP", "X-Client-IP"]
    says += [f"X-Forwarded-{what}" for what in ("For", "Host", "Proto", "Port", "Server", "Anything")]
    async with served(tmp_path) as server:
        for name in says:
            answer = await server.client.get("/jobs", headers={name: "127.0.0.1"})
            assert answer.status_code == 403, name


async def test_a_name_that_others_call_the_server_by_does_not_make_a_request_one_of_this_machine(
    tmp_path: Path,
) -> None:
    there = {"Host": "jobs.example.com"}
    async with served(tmp_path, hosts=["jobs.example.com"]) as server:
        assert (await server.client.get("/jobs", headers=there)).status_code == 403
        assert (await server.client.get("/metrics", headers=there)).status_code == 403
        assert (await server.client.get("/metrics")).status_code == 200
        key = await server.key("read")
        assert (await server.client.get("/metrics", headers=there)).status_code == 401
        assert (await server.client.get("/metrics", headers={"X-Forwarded-Proto": "https"})).status_code == 401
        assert (await server.client.get("/metrics", headers=there | key)).status_code == 200


async def test_without_keys_and_inside_another_app_only_a_name_of_this_machine_will_do(tmp_path: Path) -> None:
    async with served(tmp_path, hosts=None) as server:
        assert (await server.client.get("/jobs", headers={"Host": "evil.test"})).status_code == 403
        assert (await server.client.get("/jobs")).status_code == 200


async def test_no_other_origin_is_ever_allowed_to_read(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        asks = {"Origin": "http://evil.test", "Access-Control-Request-Method": "POST"}
        for method, path in (("OPTIONS", "/jobs/letter"), ("GET", "/jobs"), ("GET", "/healthz"), ("GET", "/nowhere")):
            answer = await server.client.request(method, path, headers=asks)
            assert [name for name in answer.headers if name.startswith("access-control")] == []
            assert method == "GET" or answer.status_code == 405


def test_failures_of_a_network_of_version_6_are_counted_together() -> None:
    assert network("2001:db8::1") == network("2001:db8::2") != network("2001:db8:1::1")
    assert network("10.0.0.1") == network("::ffff:10.0.0.1") != network("10.0.0.2")
    assert network(None) == "unknown"
