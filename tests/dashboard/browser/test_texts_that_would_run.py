"""Texts of others, in every field and on every page, stay texts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Error, Page, expect

from tests.dashboard import hostile
from tests.dashboard.browser.actions import log_in
from tests.dashboard.browser.sites import Site, Steering, served
from tests.dashboard.browser.watch import Watch, watched
from tests.dashboard.hostile import FILES, Hostile
from tests.dashboard.staged import Staged
from tests.dashboard.vectors import CANARY, RUN_BY_THEMSELVES, VECTORS, some

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What is in a page beside texts: nothing that runs, and no address but ours.
ACTIVE = """() => [...document.querySelectorAll("*")].flatMap(each => {
  const found = [...each.attributes].filter(({ name, value }) => {
    if (name.startsWith("on") || name === "style" || name === "srcdoc") return true;
    if (!["href", "src", "action", "formaction", "data", "xlink:href"].includes(name)) return false;
    const address = new URL(value, location.href);
    return address.origin !== location.origin;
  }).map(({ name, value }) => `${each.localName} ${name}=${value}`);
  const inside = ["script", "style", "object", "embed", "base"].includes(each.localName) && !each.src;
  return inside ? [...found, each.outerHTML.slice(0, 200)] : found;
})"""


@dataclass(frozen=True)
class Threatened:
    site: Site
    texts: Hostile
    context: BrowserContext
    watch: Watch
    page: Page

    async def look(self, path: str) -> None:
        await self.page.goto(self.site.url(path))
        active = await self.page.evaluate(ACTIVE)
        assert active == [], path


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def threatened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Threatened]:
    app = hostile.make_app(tmp_path_factory.mktemp("hostile"))
    async with app:
        texts = await hostile.fill(app)
        async with served(app, Staged(), Steering(), worker=False) as site, watched(browser) as (context, watch):
            page = await context.new_page()
            await log_in(page, site, texts.key)
            yield Threatened(site, texts, context, watch, page)


async def test_the_texts_do_run_where_a_page_takes_them_for_more(browser: Browser) -> None:
    """Otherwise the other tests would show nothing."""
    async with watched(browser) as (context, watch):
        page = await context.new_page()
        for text in VECTORS:
            with suppress(Error):  # some lead elsewhere
                await page.set_content(f'<p>{text}</p><input value="{text}">', wait_until="commit")
                await page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        assert len({which for which, _ in watch.ran}) >= RUN_BY_THEMSELVES
        assert sum(CANARY in url for url in watch.away.values()) >= 5


async def test_none_runs_on_the_pages_of_jobs(threatened: Threatened) -> None:
    texts = threatened.texts
    for job_id in (*texts.jobs, *texts.children, texts.cancelled):
        await threatened.look(f"/jobs/{job_id}")
    for job_id in texts.jobs:
        await threatened.look(f"/jobs/{job_id}/results/sayings")
        await threatened.look(f"/trees/{job_id}")
    for subject in texts.subjects:
        await threatened.look(f"/subjects?subject={quote(subject, safe='')}")
        await threatened.look(f"/subjects/compare?subject={quote(subject, safe='')}")
    await threatened.look(f"/submit?type=saying&from={texts.jobs[0]}")
    threatened.watch.check()


async def test_none_runs_on_lists_and_figures(threatened: Threatened) -> None:
    paths = ("", "/jobs", "/jobs?q=status:failed", "/trees", "/queues", "/workers", "/dead", "/schedules", "/subjects")
    for path in (*paths, "/audit", "/keys", "/submit"):
        await threatened.look(path)
    assert "__p(" in await threatened.page.locator("aside .person").inner_text()
    while older := await _older(threatened.page, threatened.site.url("/audit")):
        await threatened.page.goto(older)
        assert await threatened.page.evaluate(ACTIVE) == []
    threatened.watch.check()


async def _older(page: Page, start: str) -> str | None:
    if "/audit" not in page.url:
        await page.goto(start)
    link = page.locator("a[rel=next]")
    return await link.evaluate("link => link.href") if await link.count() else None


async def test_none_runs_when_it_comes_back_from_an_address(threatened: Threatened) -> None:
    for texts in some(10):
        line = quote(" ".join(texts), safe="")
        await threatened.look(f"/jobs?q={line}&after={line}")
        await threatened.look(f"/subjects?subject={line}")
        await threatened.look(f"/dead/group?type={line}&error={line}")
        await threatened.look(f"/submit?type={line}&from={line}&mode={line}")
        await threatened.look(f"/{line}?window={line}&next={line}")
        await threatened.look(f"/jobs/{quote(texts[0], safe='')}")
    await threatened.look(f"?window={quote(VECTORS[0])}")
    await threatened.look(f"/trees/{quote(VECTORS[5], safe='')}")
    await threatened.look(f"/login?next={quote(VECTORS[41], safe='')}")
    threatened.watch.check()


async def test_none_runs_when_it_comes_back_from_a_form(threatened: Threatened) -> None:
    page, site = threatened.page, threatened.site
    for texts in some(20):
        said = " ".join(texts)
        await page.goto(site.url("/submit?type=saying"))
        await page.locator("textarea, main input[type=text]").first.fill(said)
        await page.get_by_text("Options", exact=True).click()
        await page.get_by_label("Priority").fill(said)
        await page.get_by_role("button", name="Submit").last.click()
        await expect(page.get_by_role("alert")).to_be_visible()
        assert await page.evaluate(ACTIVE) == []
    await page.goto(site.url("/jobs?q=" + quote(f'subject:"{VECTORS[4]}"')))
    await page.get_by_text("Select all matches", exact=True).click()
    await page.get_by_role("button", name="Cancel all…").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Cancel")
    assert await page.evaluate(ACTIVE) == []
    threatened.watch.check()


async def test_none_runs_when_it_arrives_on_an_open_page(threatened: Threatened) -> None:
    page, app = threatened.page, threatened.site.app
    await page.goto(threatened.site.url("/jobs?q=tag:fresh"))
    first = await app.submit("saying", {"texts": []}, subject="first", tags=["fresh"], delay=3600)
    for text in VECTORS[:12]:
        await app.submit("saying", {"texts": [text]}, subject=text, tags=["fresh", text], delay=3600)
    await expect(page.locator("table.jobs tbody tr")).to_have_count(13)
    assert await page.evaluate(ACTIVE) == []
    assert first.job_id in await page.content()
    threatened.watch.check()


@pytest.mark.parametrize("where", ["the dashboard", "the API"])
async def test_none_runs_in_a_file_of_a_job_however_it_is_opened(threatened: Threatened, where: str) -> None:
    key = threatened.texts.key
    job_id = threatened.texts.jobs[0]
    root = threatened.site.root if where == "the dashboard" else threatened.site.address
    async with watched(threatened.context.browser, extra_http_headers={"X-API-Key": key}) as (context, watch):  # type: ignore[arg-type]
        page = await context.new_page()
        for name in FILES:
            with suppress(Error):  # what is a download is no page
                await page.goto(f"{root}/jobs/{job_id}/artifacts/{name}")
        if where == "the API":
            for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/history", "/jobs", "/workers", "/dead", "/nowhere/<b>"):
                await page.goto(threatened.site.address + path)
                assert await page.evaluate("document.querySelectorAll('script, img, svg, iframe').length") == 0
        watch.check()
