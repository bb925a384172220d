"""Every page as people see it: in light, in dark and on a phone, with pictures of each in build/screenshots."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.dashboard.browser import past, tour
from tests.dashboard.browser.actions import log_in
from tests.dashboard.browser.sites import Site, staged_site
from tests.dashboard.browser.watch import Watch, watched
from tests.dashboard.staged import Staged

pytestmark = pytest.mark.asyncio(loop_scope="session")

PICTURES = Path(__file__).parents[3] / "build" / "screenshots"
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
ON_A_PHONE = ("overview", "jobs", "job-done", "tree", "queues", "submit-order")

# What someone who hears a page would miss: names of fields and buttons, one heading above all others, a language.
UNTOLD = """() => {
  const told = (each) => each.labels?.length || each.getAttribute("aria-label") || each.getAttribute("aria-labelledby");
  const words = (each) =>
    each.textContent.trim() || each.getAttribute("aria-label") || each.querySelector("title, img[alt]");
  const all = (selector) => [...document.querySelectorAll(selector)];
  const ids = all("[id]").map((each) => each.id);
  return [
    ...all("input:not([type=hidden]), select, textarea").filter((each) => !told(each)),
    ...all("a[href], button, summary").filter((each) => !words(each)),
    ...all("img:not([alt]), iframe:not([title]), th:empty"),
  ].map((each) => each.outerHTML.slice(0, 200)).concat(
    all("h1").length === 1 ? [] : [`${all("h1").length} headings`],
    document.documentElement.lang === "en" && document.title ? [] : ["no language or title"],
    all("main").length === 1 ? [] : ["not one main"],
    ids.filter((id, at) => ids.indexOf(id) !== at).map((id) => `twice: #${id}`),
  );
}"""


@dataclass(frozen=True)
class Tour:
    site: Site
    watch: Watch
    page: Page


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def guided(
    browser: Browser, staged_folder: tuple[Path, Staged], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Tour]:
    """Someone with a key, on a server without a worker: nothing on its pages changes by itself."""
    filled, staged = staged_folder
    folder = tmp_path_factory.mktemp("tour")
    shutil.copytree(filled, folder / "past")
    past.write(folder / "past" / "jobs.db")
    PICTURES.mkdir(parents=True, exist_ok=True)
    async with (
        staged_site((folder / "past", staged), folder / "now", worker=False) as site,
        watched(browser, viewport=DESK) as (context, watch),
    ):
        await _operate(site)
        page = await context.new_page()
        await page.goto(site.url("/login"))
        await _picture(page, "login")
        await log_in(page, site, await site.key("anna"))
        yield Tour(site, watch, page)


async def _operate(site: Site) -> None:
    """Changes for the audit trail, and keys for their page."""
    app = site.app
    async with app.audited("queue.pause", "mail", by="anna", via="dashboard", before={"paused": False}) as entry:
        entry.after = {"paused": True, "reason": "the provider is down"}
    async with app.audited("job.cancel", site.staged["cancelled"], by="anna", via="dashboard") as entry:
        entry.after = {"status": "cancelled", "reason": "he has unsubscribed"}
    async with app.audited("schedule.pause", "monthly-mail", by="deploy", via="api", remote="10.0.4.17") as entry:
        entry.after = {"paused": True}
    await app.create_key("deploy", ["submit", "read"], queues=["mail*", "reports"], by="anna")
    await app.create_key("gpu-box", ["work"], expires_in=30 * 86_400.0, by="anna")
    gone = await app.create_key("ben's laptop", ["read"], by="anna")
    await app.revoke_key(gone.key.key_id, by="anna")


@pytest.mark.parametrize("name", tour.NAMES)
async def test_a_page_is_told_in_words_and_fits_a_phone(guided: Tour, name: str) -> None:
    page = guided.page
    await page.set_viewport_size(DESK)
    await page.emulate_media(color_scheme="light")
    await page.goto(guided.site.url(tour.path(name, guided.site.staged)))
    assert await page.evaluate(UNTOLD) == []
    await _picture(page, f"{name}-light")
    await page.emulate_media(color_scheme="dark")
    await _picture(page, f"{name}-dark")
    await page.set_viewport_size(PHONE)
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    if name in ON_A_PHONE:
        await page.emulate_media(color_scheme="light")
        await _picture(page, f"{name}-phone")
    guided.watch.check()


async def _picture(page: Page, name: str) -> None:
    await page.screenshot(path=PICTURES / f"{name}.png", full_page=True, animations="disabled")
