"""Pages of other sites in the browser of someone who may do everything here: they change nothing and read nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from playwright.async_api import Browser, Page

from tests.dashboard.browser.actions import log_in
from tests.dashboard.browser.chromium import ELSEWHERE
from tests.dashboard.browser.sites import Site, staged_site
from tests.dashboard.staged import Staged
from tests.server.gated import listening

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Stranger(FastAPI):
    """Another site: an empty page, whose scripts the tests write."""

    end_streams: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__()
        self.get("/", response_class=HTMLResponse)(lambda: "<!doctype html><title>Win a prize</title>")


@pytest_asyncio.fixture(loop_scope="session")
async def port() -> AsyncIterator[int]:
    async with listening(Stranger()) as address:
        yield urlsplit(address).port or 0


@pytest_asyncio.fixture(loop_scope="session")
async def site(staged_folder: tuple[Path, Staged], tmp_path: Path) -> AsyncIterator[Site]:
    """Without a worker: whatever changes was changed over HTTP."""
    async with staged_site(staged_folder, tmp_path, worker=False) as found:
        yield found


async def state(site: Site) -> object:
    """All that a change would leave a trace in."""
    app = site.app
    jobs = await app.find(limit=1000)
    return (
        sorted((job.job_id, job.version) for job in jobs),
        [(queue.name, queue.paused, queue.max_pending) for queue in await app.queues()],
        [(each.name, each.paused, each.last_job_id) for each in await app.schedules()],
        [(key.key_id, key.state) for key in await app.api_keys()],
        [entry.entry_id for entry in await app.audit_trail(limit=1000)],
    )


def changes(site: Site, token: str) -> list[tuple[str, str, str]]:
    """Method, address and body of what the pages of the dashboard, and programs, do."""
    job, dead, form = site.staged["scheduled"], site.staged["dead 0"], f"form_token={token}"
    forms = {
        f"/jobs/{job}/cancel": "",
        f"/jobs/{dead}/retry": "",
        "/jobs/bulk": "&action=cancel&whole=cancel&sure=1&q=",
        "/queues/reports/pause": "",
        "/queues/mail/resume": "",
        "/queues/mail/limit": "&max_pending=1",
        "/schedules/nightly-report/run": "",
        "/schedules/nightly-report/remove": "",
        "/dead/retry": "&type=charge&error=TimeoutError",
        "/submit": "&type=tick&press=submit&mode=json&json=null",
        "/keys": "&name=mine&scope=admin",
        "/logout": "",
    }
    calls = [
        ("POST", f"/jobs/{job}/cancel", "{}"),
        ("POST", f"/jobs/{dead}/retry", "{}"),
        ("POST", "/jobs/tick", '{"payload": null}'),
        ("POST", "/jobs", '{"job_type": "tick", "payload": null}'),
        ("POST", "/queues/reports/pause", "{}"),
        ("POST", "/schedules/nightly-report/run", "{}"),
        ("PATCH", f"/jobs/{job}", '{"priority": 99}'),
        ("PUT", "/schedules/mine", '{"cron": "@daily", "job_type": "tick"}'),
        ("DELETE", "/schedules/nightly-report", ""),
    ]
    return [("POST", site.url(path), form + more) for path, more in forms.items()] + [
        (method, site.address + path, body) for method, path, body in calls
    ]


ATTACK = """async (changes) => {
  const done = [], posts = [];
  const quietly = (promise) => promise.then(async (answer) => done.push([answer.type, answer.status]), () => 0);
  await Promise.all(changes.map(async ([method, url, body]) => {
    const type = url.includes("/dashboard") ? "application/x-www-form-urlencoded" : "text/plain";
    const sent = { method, body: body || undefined, credentials: "include" };
    if (method === "POST") await quietly(fetch(url, { ...sent, mode: "no-cors", headers: { "Content-Type": type } }));
    await quietly(fetch(url, { ...sent, headers: { "Content-Type": "application/json" } }));
    navigator.sendBeacon(url, new Blob([body], { type }));
    const image = new Image();
    await new Promise((seen) => { image.onload = image.onerror = seen; image.src = url; });
    if (method === "POST") posts.push(post(url, body));
  }));
  await Promise.all(posts);
  return done.filter(([type]) => type !== "opaque");

  async function post(url, body) {
    const frame = document.body.appendChild(document.createElement("iframe"));
    frame.name = `f${Math.random()}`;
    const form = document.body.appendChild(document.createElement("form"));
    Object.assign(form, { action: url, method: "post", target: frame.name });
    if (body.startsWith("{")) form.enctype = "text/plain";
    const fields = body.startsWith("{") ? [[body.slice(0, -1) + ', "x": "', '"}']] : new URLSearchParams(body);
    for (const [name, value] of fields) {
      form.append(Object.assign(document.createElement("input"), { name, value }));
    }
    // An answer that is no page is a download, of which a frame says nothing.
    await new Promise((loaded) => { frame.onload = loaded; form.submit(); setTimeout(loaded, 700); });
  }
}"""


async def form_token(page: Page, site: Site) -> str:
    """Which no other site can read: what stops them here is more than that."""
    await page.goto(site.url("/queues"))
    return await page.locator("input[name=form_token]").first.input_value()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", ELSEWHERE])
@pytest.mark.parametrize("with_key", [False, True], ids=["without keys", "logged in"])
async def test_a_page_of_another_site_changes_nothing(
    browser: Browser, site: Site, port: int, name: str, with_key: bool
) -> None:
    context = await browser.new_context()
    try:
        page = await context.new_page()
        if with_key:
            await log_in(page, site, await site.key("anna"))
        token = await form_token(page, site)
        before = await state(site)
        await page.goto(f"http://{name}:{port}/")
        read: list[Any] = await page.evaluate(ATTACK, changes(site, token))
        assert read == []
        assert await state(site) == before
        await page.goto(site.url("/queues"))
        assert await page.locator("h1").inner_text() == "Queues"  # nor was anyone logged out
    finally:
        await context.close()


async def test_the_same_requests_from_a_page_of_ours_do_change_things(browser: Browser, site: Site) -> None:
    """Otherwise the test above would show nothing."""
    context = await browser.new_context()
    try:
        page = await context.new_page()
        token = await form_token(page, site)
        for _, url, body in changes(site, token)[:3]:
            before = await state(site)
            await page.evaluate(
                "async ([url, body]) => { await fetch(url, { method: 'POST', body: new URLSearchParams(body) }) }",
                [url, body],
            )
            assert await state(site) != before, url
    finally:
        await context.close()


async def test_a_page_of_another_site_cannot_show_ours_in_a_frame_or_read_it(
    browser: Browser, site: Site, port: int
) -> None:
    context = await browser.new_context()
    try:
        page = await context.new_page()
        await page.goto(f"http://127.0.0.1:{port}/")
        shown = await page.evaluate(
            """async (url) => {
              const frame = document.body.appendChild(document.createElement("iframe"));
              await new Promise((loaded) => { frame.onload = loaded; frame.src = url; });
              const opened = await fetch(url, { credentials: "include" }).then((answer) => answer.text(), () => "");
              return opened;
            }""",
            site.url("/jobs"),
        )
        assert shown == ""
        assert not any(frame.url.startswith(site.root) for frame in page.frames)
    finally:
        await context.close()


async def test_another_name_for_this_machine_leads_nowhere(browser: Browser, site: Site) -> None:
    """The page of a site whose name suddenly means this machine."""
    context = await browser.new_context()
    try:
        page = await context.new_page()
        port = urlsplit(site.address).port
        for path in ("/dashboard", "/jobs", "/dashboard/static/x/live.js"):
            answer = await page.goto(f"http://{ELSEWHERE}:{port}{path}")
            assert answer is not None and answer.status == 421
    finally:
        await context.close()
