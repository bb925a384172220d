"""The dashboard's frame: coming in, forms that only our pages send, errors as pages, and nothing from elsewhere."""

import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from backstay.dashboard import overview
from backstay.dashboard.page import pace
from tests.dashboard.plain_browser import FROM_OUR_PAGE, Browser, Form, Page, browsing
from tests.server.gated import served

PAGES = ("", "/?window=24h", "/queues", "/workers", "/audit", "/keys", "/nowhere")


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_takes_nothing_from_elsewhere_and_has_no_script_or_style_within(tmp_path: Path, path: str) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit("letter", {"to": "anna"})
        page = await browser.get(path)
        assert page.status == (404 if path == "/nowhere" else 200)
        assert page.response.headers["content-type"] == "text/html; charset=utf-8"
        for tag, attributes in page.elements:
            assert tag != "style"
            assert not [name for name in attributes if name == "style" or name.startswith("on")]
            assert tag != "script" or attributes.get("src")
            for name in ("src", "href", "action"):
                assert attributes.get(name, "/").startswith(("/dashboard", "#", "/")), attributes
                assert not attributes.get(name, "/").startswith("//")


async def test_scripts_and_styles_are_kept_by_browsers_until_they_change(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        page = await browser.get()
        addresses = [*page.values("script", "src"), *page.values("link", "href")]
        assert len(addresses) >= 4
        for address in addresses:
            answer = await browser.client.get(address)
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            again = await browser.client.get(address, headers={"If-None-Match": answer.headers["etag"]})
            assert again.status_code == 304
        old = await browser.client.get(re.sub("/static/[^/]+/", "/static/older/", addresses[0]))
        assert old.headers["cache-control"] == "no-cache"
        assert (await browser.client.get("/dashboard/static/x/frame.py")).status_code == 404


async def test_the_dashboard_works_below_a_prefix(tmp_path: Path) -> None:
    async with served(tmp_path, hosts=None) as server:
        outer = FastAPI()
        outer.mount("/backstay", server.gate)
        transport = httpx.ASGITransport(outer, client=("127.0.0.1", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await server.app.submit("letter", {"to": "anna"})
            page = Page(await client.get("/backstay/dashboard/queues"))
            assert page.status == 200
            ours = [
                *page.values("a", "href"),
                *page.values("script", "src"),
                *[form.action for form in page.forms if form.action],
            ]
            assert all(each.startswith(("/backstay/dashboard", "#")) for each in ours), ours
            sent = await Browser(client).send(page.form("/queues/mail/pause"), follow=False)
            assert sent.response.headers["location"] == "/backstay/dashboard/queues"
            assert "path=/backstay/dashboard;" in sent.response.headers["set-cookie"].lower()
            assert (await server.app.queues())[1].paused


# Forms


async def test_a_form_of_another_session_changes_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser, browsing(server) as stranger:
        foreign = (await stranger.get("/queues")).form("/queues/mail/pause")
        await browser.get("/queues")
        for fields in ({}, {"form_token": ""}, {"form_token": "x" * 64}, dict(foreign.fields)):
            answer = await browser.client.post("/dashboard/queues/mail/pause", data=fields, headers=FROM_OUR_PAGE)
            assert answer.status_code == 403
            assert "reload the page and try again" in Page(answer).text
        assert not any(queue.paused for queue in await server.app.queues())
        assert await server.app.audit_trail() == []


async def test_a_form_from_a_page_of_another_site_changes_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        form = (await browser.get("/queues")).form("/queues/mail/pause")
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "http://evil.test"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            answer = await browser.client.post(form.action, data=dict(form.fields), headers=headers)
            assert answer.status_code == 403
        assert not any(queue.paused for queue in await server.app.queues())


async def test_what_was_done_is_said_once(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        page = await browser.send((await browser.get("/queues")).form("/queues/mail/pause"), follow=False)
        glance = await browser.client.get("/dashboard/queues", headers={"X-Backstay-Live": "1"})
        assert "Queue mail paused." not in glance.text  # a page that looks again does not take it away
        page = await browser.get("/queues")
        assert "Queue mail paused." in page.text
        assert "Queue mail paused." not in (await browser.get("/queues")).text


@pytest.mark.parametrize(
    "address",
    [
        "//evil.test",
        "https://evil.test",
        "/\\evil.test",
        "/dashboardx",
        "/elsewhere",
        "javascript:alert(1)",
        "/dashboard\n",
    ],
)
async def test_a_form_never_leads_to_another_site(tmp_path: Path, address: str) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        form = (await browser.get("/queues")).form("/theme")
        sent = await browser.send(form, follow=False, theme="dark", next=address)
        assert sent.response.headers["location"] == "/dashboard"


async def test_the_colours_that_someone_chose_stay(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        page = await browser.get("/queues")
        assert page.values("html", "data-theme") == ["auto"]
        page = await browser.send(page.form("/theme"), theme="dark")
        assert page.values("html", "data-theme") == ["dark"]
        page = await browser.send(page.form("/theme"), theme="<script>")
        assert page.values("html", "data-theme") == ["dark"]


# Coming in


async def test_a_key_opens_a_session_that_no_script_and_no_other_site_gets_to_use(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        key = await server.key("read")
        page = await browser.get("/queues?sort=x")
        assert page.response.headers["location"] == "/dashboard/login?next=%2Fdashboard%2Fqueues%3Fsort%3Dx"
        door = Page(await browser.client.get(page.response.headers["location"]))
        assert "Queues" not in door.text
        door = await browser.send(door.form("/login"), key="typed wrong")
        sent = await browser.send(door.form("/login"), follow=False, key=key["X-API-Key"])
        assert sent.response.headers["location"] == "/dashboard/queues?sort=x"
        cookie = sent.response.headers["set-cookie"].lower()
        assert "backstay_session=bs_live_" in cookie
        assert "httponly" in cookie and "samesite=strict" in cookie and "path=/dashboard" in cookie
        assert key["X-API-Key"].lower() not in cookie
        page = await browser.get("/queues")
        assert page.status == 200
        assert "tester" in page.text


async def test_over_https_the_session_travels_over_https_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server, base_url="https://localhost") as browser:
        door = await browser.get("/login")
        key = await server.key("read")
        sent = await browser.send(door.form("/login"), follow=False, key=key["X-API-Key"])
        assert "; secure" in sent.response.headers["set-cookie"].lower()


@pytest.mark.parametrize("text", ["", "x", "bs_live_AAAAAAAAAAAA_B_C", "wrong secret", "revoked", "session"])
async def test_what_is_no_key_opens_nothing(tmp_path: Path, text: str) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        key = await server.key("read")
        door = await browser.get("/login")
        if text == "wrong secret":
            other = await server.key("read")
            text = key["X-API-Key"][:21] + other["X-API-Key"][21:]
        elif text == "revoked":
            gone = await server.app.create_key("gone", ["admin"])
            await server.app.revoke_key(gone.key.key_id)
            text = gone.text
        elif text == "session":
            await browser.log_in(key)
            text = browser.client.cookies["backstay_session"]
            browser.client.cookies.delete("backstay_session")
            door = await browser.get("/login")
        answer = await browser.send(door.form("/login"), follow=False, key=text)
        assert answer.status == 401
        assert "backstay_session" not in answer.response.headers.get("set-cookie", "")
        assert "unknown, revoked or expired" in answer.text
        assert len(text) < 9 or text not in answer.html


async def test_a_key_that_may_not_read_is_told_so_at_the_door(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        answer = await browser.log_in(await server.key("submit"))
        assert answer.status == 403
        assert "read or admin scope" in answer.text


async def test_logging_out_ends_the_session_and_logging_in_makes_another(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        key = await server.key("read")
        page = await browser.log_in(key)
        first = browser.client.cookies["backstay_session"]
        await browser.send(page.form("/logout"))
        assert "backstay_session" not in browser.client.cookies
        page = await browser.log_in(key)
        assert browser.client.cookies["backstay_session"] != first
        async with browsing(server) as thief:
            answer = await thief.client.get("/dashboard/queues", headers={"Cookie": f"backstay_session={first}"})
            assert answer.status_code == 303


async def test_a_session_does_not_open_the_api(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await browser.log_in(await server.key("admin"))
        session = browser.client.cookies["backstay_session"]
        async with browsing(server) as other:
            assert (
                await other.client.get("/jobs", headers={"Cookie": f"backstay_session={session}"})
            ).status_code == 401
            assert (await other.client.get("/jobs", headers={"X-API-Key": session})).status_code == 401


# Errors


async def test_a_page_that_there_is_not_says_so_and_one_that_takes_more_rights_says_which(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await browser.log_in(await server.key("read"))
        page = await browser.get("/nowhere/<script>alert(1)</script>")
        assert page.status == 404
        assert "Page not found" in page.text
        assert "<script>alert" not in page.html
        page = await browser.get("/keys")
        assert page.status == 403
        assert "this needs a key with the scope admin" in page.text.lower()
        names = page.values("a", "href")
        assert "/dashboard/queues" in names and "/dashboard/keys" not in names and "/dashboard/audit" not in names


async def test_what_nobody_foresaw_is_a_page_without_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("bs_canary <b>")

    monkeypatch.setattr(overview, "drawn", broken)
    async with served(tmp_path) as server, browsing(server) as browser:
        page = await browser.get()
        assert page.status == 500
        assert "Something went wrong" in page.text
        assert "canary" not in page.html and "ZeroDivisionError" not in page.html
        assert "a dashboard page broke: ZeroDivisionError" in caplog.text


async def test_a_job_of_another_queue_is_no_page(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        job = await server.app.submit("anything", {})
        await browser.log_in(await server.key("read", queues=["mail*"]))
        assert (await browser.get(f"/live?topic=job:{job.job_id}")).status == 404
        assert (await browser.get(f"/live?topic=tree:{job.job_id}")).status == 404
        assert (await browser.get("/live?topic=nothing")).status == 422


def test_a_page_reads_as_a_browser_reads_it() -> None:
    answer = httpx.Response(200, text='<form action="/a"><input name="x" value="1"><p>a &amp; b</p></form>')
    page = Page(answer)
    assert page.text == "a & b"
    assert page.forms == [Form("/a", "get", [("x", "1")])]


@pytest.mark.parametrize(
    ("completed", "seconds", "said"),
    [(0, 3600, "0 per hour"), (20, 3600, "20 per hour"), (90, 3600, "1.5 per minute"), (7200, 3600, "120 per minute"),
     (3, 86_400, "0.1 per hour")],
)  # fmt: skip
def test_a_pace_is_said_per_minute_or_where_that_is_a_fraction_per_hour(
    completed: int, seconds: int, said: str
) -> None:
    assert pace(completed, seconds) == said
