"""Where a request comes from: `X-Forwarded-For` is believed only from proxies that were named."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay import ConfigurationError
from backstay.core import access_keys
from backstay.server.gate import Bounds
from backstay.server.proxies import Proxies
from tests.server.gated import Served, listening, served

PROXY, CLIENT = "10.0.0.7", "203.0.113.9"


def seen(proxies: list[str] | None, peer: str | None, *lists: str, proto: str | None = None) -> dict[str, Any]:
    headers = [(b"x-forwarded-for", each.encode()) for each in lists]
    if proto is not None:
        headers.append((b"x-forwarded-proto", proto.encode()))
    scope = {"client": None if peer is None else (peer, 4711), "scheme": "http", "headers": headers}
    return dict(Proxies(proxies).applied(scope))


def client(proxies: list[str], peer: str, *lists: str) -> str:
    return str(seen(proxies, peer, *lists)["client"][0])


def test_without_named_proxies_the_header_says_nothing() -> None:
    for peer in ("127.0.0.1", "::1", PROXY, "fe80::1%eth0"):
        assert client([], peer, CLIENT) == peer
    assert seen([], None, CLIENT)["client"] is None
    assert seen([], PROXY, proto="https")["scheme"] == "http"


@pytest.mark.parametrize(
    ("named", "peer"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("10.0.0.0/8", "10.0.0.7"),
        ("10.0.0.9/8", "10.0.0.7"),  # an address with the length of its network
        ("0.0.0.0/0", "10.0.0.7"),
        ("10.0.0.7", "::ffff:10.0.0.7"),  # as a socket for both kinds says it
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.0/104", "10.0.0.7"),
        ("::1", "::1"),
        ("[::1]", "0:0:0:0:0:0:0:1"),
        ("2001:db8::/32", "2001:db8:1::5"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("fe80::1", "fe80::1%eth0"),  # on any interface
        ("fe80::/10", "fe80::1%eth0"),
        ("fe80::%eth0/10", "fe80::1%eth0"),
        ("192.0.2.1, 10.0.0.7", "10.0.0.7"),
    ],
)
def test_a_named_proxy_is_believed(named: str, peer: str) -> None:
    assert client([named], peer, CLIENT) == CLIENT


@pytest.mark.parametrize(
    ("named", "peer"),
    [
        ("10.0.0.7", "10.0.0.8"),
        ("10.0.0.0/24", "10.0.1.7"),
        ("::1", "127.0.0.1"),
        ("fe80::1%eth0", "fe80::1%eth1"),
        ("fe80::1%eth0", "fe80::1"),
        ("fe80::%eth0/10", "fe80::1%eth1"),
        ("::7", "0.0.0.7"),
        ("::/0", "10.0.0.7"),
        ("10.0.0.7", "testclient"),
    ],
)
def test_others_are_not(named: str, peer: str) -> None:
    assert client([named], peer, CLIENT) == peer


@pytest.mark.parametrize(
    ("lists", "found"),
    [
        ((CLIENT,), CLIENT),
        ((f"198.51.100.1, {CLIENT}",), CLIENT),  # what the client sent itself is on the left
        ((f"127.0.0.1,{CLIENT}, 10.0.0.8",), CLIENT),  # two proxies in a row
        (("198.51.100.1", CLIENT), CLIENT),  # the header twice is one list
        ((CLIENT, "10.0.0.8"), CLIENT),
        ((f"{CLIENT},10.0.0.8,,", " 10.0.0.9 "), CLIENT),  # empty elements do not count
        (("10.0.0.9, 10.0.0.8",), "10.0.0.9"),  # nobody but proxies: the one that is furthest away
        (("unknown",), PROXY),
        ((f"{CLIENT}, unknown",), PROXY),
        ((f"{CLIENT}, _hidden, 10.0.0.8",), "10.0.0.8"),
        (("<script>",), PROXY),
        (("",), PROXY),
        ((), PROXY),
        ((f"{CLIENT}:55000",), CLIENT),
        (("[2001:db8::9]:55000",), "2001:db8::9"),
        (("2001:db8::9",), "2001:db8::9"),
        (("[2001:db8::9]",), "2001:db8::9"),
        (("::ffff:203.0.113.9",), CLIENT),
        (("fe80::9%eth0",), "fe80::9%eth0"),
        (("127.0.0.1",), "127.0.0.1"),
    ],
)
def test_the_right_most_address_that_is_no_proxy_is_the_client(lists: tuple[str, ...], found: str) -> None:
    assert client(["10.0.0.0/24"], PROXY, *lists) == found


@pytest.mark.parametrize(
    ("proto", "scheme"), [("https", "https"), ("HTTPS", "https"), ("http, https", "https"), ("javascript", "http")]
)
def test_a_named_proxy_says_the_scheme(proto: str, scheme: str) -> None:
    assert seen([PROXY], PROXY, proto=proto)["scheme"] == scheme


@pytest.mark.parametrize("text", ["nginx", "10.0.0.0/33", "10.0.0", "::1/129", "::ffff:10.0.0.0/24", "10.0.0.7/x", "*"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not an address or a network of a proxy: give 10\.0\.0\.7"):
        Proxies([text])


def test_a_mounted_server_leaves_it_to_the_one_around_it(caplog: pytest.LogCaptureFixture) -> None:
    assert seen(None, "127.0.0.1", CLIENT)["client"][0] == "127.0.0.1"
    assert not caplog.records


def test_a_proxy_that_was_not_named_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    proxies = Proxies(["::1"])
    for _ in range(2):
        proxies.applied({"client": (PROXY, 1), "headers": [(b"x-forwarded-for", CLIENT.encode())]})

    [record] = caplog.records
    assert record.getMessage().startswith(f"X-Forwarded-For from {PROXY} is ignored")
    assert "name it with --proxy or BACKSTAY_PROXIES" in record.getMessage()


async def through(server: Served, peer: str, forwarded: str, key: dict[str, str]) -> int:
    async with server.client_at(peer) as proxy:
        return (await proxy.get("/jobs", headers={**key, "X-Forwarded-For": forwarded})).status_code


async def test_failures_are_counted_by_client_behind_a_named_proxy_and_by_proxy_behind_others(tmp_path: Path) -> None:
    wrong = {"X-API-Key": access_keys.make("x", ["read"], now=0)[0]}
    async with served(tmp_path, bounds=Bounds(failures_burst=2), proxies=[PROXY]) as server:
        await server.key("read")
        for sent in ("1.1.1.1", "2.2.2.2"):  # a client cannot get a new bucket by claiming to be someone else
            assert await through(server, PROXY, f"{sent}, {CLIENT}", wrong) == 401
        assert await through(server, PROXY, f"3.3.3.3, {CLIENT}", wrong) == 429
        assert await through(server, PROXY, "203.0.113.10", wrong) == 401
        for sent in ("1.1.1.1", "2.2.2.2"):
            assert await through(server, "10.0.0.8", sent, wrong) == 401
        assert await through(server, "10.0.0.8", "3.3.3.3", wrong) == 429


async def test_the_audit_trail_and_the_access_log_name_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "backstay.access")
    async with served(tmp_path, proxies=["10.0.0.0/24"]) as server:
        key = await server.key()
        for peer in (PROXY, "192.0.2.1"):
            async with server.client_at(peer) as proxy:
                headers = {**key, "X-Forwarded-For": f"9.9.9.9, {CLIENT}, 10.0.0.8"}
                assert (await proxy.post("/queues/mail/pause", headers=headers)).status_code == 200
        trail = [each.remote for each in await server.app.audit_trail() if each.action == "queue.pause"]
    assert sorted(map(str, trail)) == sorted([CLIENT, "192.0.2.1"])
    lines = [each.fields["client"] for each in caplog.records if each.name == "backstay.access"]  # type: ignore[attr-defined]
    assert lines == [CLIENT, "192.0.2.1"]


async def test_over_a_socket_a_process_of_this_machine_is_not_believed_either(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "backstay.access")
    async with (
        served(tmp_path) as server,
        listening(server.gate) as address,
        httpx.AsyncClient(base_url=address) as local,
    ):
        await local.get("/healthz", headers={"X-Forwarded-For": CLIENT})
    [line] = [each for each in caplog.records if each.name == "backstay.access"]
    assert line.fields["client"] == "127.0.0.1"  # type: ignore[attr-defined]


async def test_a_request_through_a_named_proxy_is_not_a_local_one(tmp_path: Path) -> None:
    async with served(tmp_path, proxies=["127.0.0.1"]) as server:
        assert await through(server, "127.0.0.1", "127.0.0.1", {}) in (401, 403)
