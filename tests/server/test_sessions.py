"""Sessions of the dashboard: made at a login, ended with the key, and good for nothing else."""

import re
from pathlib import Path

import httpx

from backstay.core import access_keys
from backstay.dashboard.page import SESSION_COOKIE
from backstay.server.gate import Bounds
from backstay.testing import ManualClock
from tests.server.gated import HERE, Served, served

FORM = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}


async def log_in(browser: httpx.AsyncClient, key: str) -> httpx.Response:
    page = await browser.get("/dashboard/login")
    found = re.search(r'name="form_token" value="([^"]+)"', page.text)
    assert found is not None
    return await browser.post("/dashboard/login", data={"key": key, "form_token": found[1]}, headers=FORM)


async def log_out(browser: httpx.AsyncClient) -> httpx.Response:
    page = await browser.get("/dashboard/queues")
    found = re.search(r'name="form_token" value="([^"]+)"', page.text)
    assert found is not None
    return await browser.post("/dashboard/logout", data={"form_token": found[1]}, headers=FORM)


def browser_of(server: Served) -> httpx.AsyncClient:
    return server.client_at("10.0.0.7")


async def test_a_login_opens_the_dashboard_and_nothing_else(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browser_of(server) as browser:
        key = (await server.key("read"))["X-API-Key"]
        assert (await browser.get("/dashboard/queues")).headers["Location"].startswith("/dashboard/login?next=")
        answer = await log_in(browser, key)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/dashboard")
        cookie = next(each for each in answer.headers.get_list("set-cookie") if each.startswith(SESSION_COOKIE))
        assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower() and "Path=/dashboard" in cookie
        assert key.split("_")[3] not in cookie
        assert (await browser.get("/dashboard/queues")).status_code == 200
        session = browser.cookies[SESSION_COOKIE]
        for headers in (
            {"Cookie": f"{SESSION_COOKIE}={session}"},
            {"X-API-Key": session},
            {"Authorization": f"Bearer {session}"},
        ):
            assert (await server.client.get("/jobs", headers=headers)).status_code == 401


async def test_on_an_encrypted_connection_the_session_stays_on_encrypted_ones(tmp_path: Path) -> None:
    async with served(tmp_path) as server, server.client_at("10.0.0.7", HERE.replace("http", "https")) as browser:
        answer = await log_in(browser, (await server.key("read"))["X-API-Key"])
        assert all("secure" in each.lower() for each in answer.headers.get_list("set-cookie"))


async def test_a_session_that_was_set_before_the_login_is_not_taken_over(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browser_of(server) as browser:
        key = (await server.key("read"))["X-API-Key"]
        planted = access_keys.make("x", ["admin"], now=0)[0]
        browser.cookies.set(SESSION_COOKIE, planted, path="/dashboard")
        answer = await log_in(browser, key)
        first = next(each for each in answer.headers.get_list("set-cookie") if each.startswith(SESSION_COOKIE))
        assert planted not in first
        browser.cookies.clear()
        again = await log_in(browser, key)
        second = next(each for each in again.headers.get_list("set-cookie") if each.startswith(SESSION_COOKIE))
        assert first.split(";")[0] != second.split(";")[0]


async def test_logging_out_ends_the_session_for_whoever_has_a_copy_of_it(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browser_of(server) as browser, browser_of(server) as thief:
        await log_in(browser, (await server.key("read"))["X-API-Key"])
        thief.cookies.set(SESSION_COOKIE, browser.cookies[SESSION_COOKIE], path="/dashboard")
        assert (await thief.get("/dashboard/queues")).status_code == 200
        assert (await log_out(browser)).status_code == 303
        assert (await thief.get("/dashboard/queues")).status_code == 303


async def test_a_session_ends_with_its_key_within_five_seconds(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock=clock) as server, browser_of(server) as browser:
        await server.key("admin")
        created = await server.app.create_key("leaver", ["read"])
        await log_in(browser, created.text)
        assert (await browser.get("/dashboard/queues")).status_code == 200
        await server.app.revoke_key(created.key.key_id)
        clock.advance(5)
        assert (await browser.get("/dashboard/queues")).status_code == 303


async def test_a_session_ends_by_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock=clock) as server, browser_of(server) as browser:
        await log_in(browser, (await server.key("read"))["X-API-Key"])
        session = browser.cookies[SESSION_COOKIE]
        clock.advance(12 * 3600)
        answer = await browser.get("/dashboard/queues", headers={"Cookie": f"{SESSION_COOKIE}={session}"})
        assert answer.status_code == 303


async def test_guessing_at_the_login_is_slowed_down(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock=clock, bounds=Bounds(failures_burst=3)) as server, browser_of(server) as browser:
        await server.key("read")
        wrong = access_keys.make("x", ["admin"], now=0)[0]
        assert [(await log_in(browser, wrong)).status_code for _ in range(4)] == [401, 401, 401, 429]
        assert (await log_in(browser, "rubbish")).status_code == 429
        assert int((await log_in(browser, wrong)).headers["Retry-After"]) > 0
        clock.advance(2)
        assert (await log_in(browser, wrong)).status_code == 401


async def test_wrong_keys_of_others_at_an_address_keep_out_nobody_who_has_a_right_one(tmp_path: Path) -> None:
    async with served(tmp_path, bounds=Bounds(failures_burst=1)) as server, browser_of(server) as browser:
        key = (await server.key("read"))["X-API-Key"]
        wrong = access_keys.make("x", ["admin"], now=0)[0]
        assert [(await log_in(browser, wrong)).status_code for _ in range(2)] == [401, 429]
        assert (await log_in(browser, key)).status_code == 303
        assert (await browser.get("/dashboard/queues")).status_code == 200
        assert (await log_out(browser)).status_code == 303


async def test_no_two_queues_have_the_same_secret(tmp_path: Path) -> None:
    secrets = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        async with served(tmp_path / name) as server:
            secrets.add(await access_keys.server_secret(server.app.store))
            assert await access_keys.server_secret(server.app.store) in secrets
    assert len(secrets) == 2
