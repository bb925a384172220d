"""Everything with the keyboard alone."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Page, Route, expect

from tests.dashboard.browser.actions import see_notice, see_title
from tests.dashboard.browser.sites import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def site(common_site: Site) -> Site:
    return common_site


async def press(page: Page, *keys: str) -> None:
    for key in keys:
        await page.keyboard.press(key)


async def test_pages_lists_and_the_search_are_reached_by_keys(page: Page, site: Site) -> None:
    await page.goto(site.url())
    await press(page, "g", "j")
    await see_title(page, "Jobs")
    await press(page, "/")
    await expect(page.locator("#search")).to_be_focused()
    await page.keyboard.type("status:failed type:charge")
    await press(page, "Enter")
    await page.wait_for_url("**/jobs?q=*")
    chosen = page.locator("tr[data-chosen]")
    rows = page.locator("table.jobs tbody tr")
    await press(page, "j", "j", "j", "k")
    await expect(chosen).to_have_count(1)
    assert await chosen.get_attribute("data-key") == await rows.nth(1).get_attribute("data-key")
    await press(page, "x")
    await expect(chosen.get_by_role("checkbox")).to_be_checked()
    await press(page, "Enter")
    await see_title(page, "charge")
    await expect(page.get_by_label("Status", exact=True)).to_contain_text("failed")


async def test_every_page_of_the_navigation_has_its_key(page: Page, site: Site) -> None:
    await page.goto(site.url())
    pages = {"j": "Jobs", "t": "Trees", "q": "Queues", "w": "Workers", "d": "Dead letters", "s": "Schedules"}
    for key, title in (pages | {"u": "Subjects", "a": "Audit", "k": "Keys", "o": "Overview"}).items():
        await press(page, "g", key)
        await see_title(page, title)


async def test_no_key_is_lost_on_a_page_whose_other_scripts_are_slow_to_come(page: Page, site: Site) -> None:
    come = asyncio.Event()

    async def slowly(route: Route) -> None:
        await come.wait()
        await route.continue_()

    for name in ("live.js", "jobs.js"):
        await page.route(f"**/{name}", slowly)
    await page.goto(site.url("/jobs"), wait_until="commit")
    await see_title(page, "Jobs")
    await press(page, "g", "q")
    await see_title(page, "Queues")
    come.set()


async def test_the_keys_are_listed_and_do_nothing_while_someone_types(page: Page, site: Site) -> None:
    await page.goto(site.url("/jobs"))
    keys = page.get_by_role("dialog", name="Keyboard shortcuts")
    await press(page, "?")
    await expect(keys).to_be_visible()
    await press(page, "Escape")
    await expect(keys).to_be_hidden()
    await press(page, "/", "?", "g", "q", "j")
    await expect(page.locator("#search")).to_have_value("?gqj")
    await expect(keys).to_be_hidden()
    await press(page, "Escape")
    await expect(page.locator("#search")).not_to_be_focused()
    await see_title(page, "Jobs")


async def test_a_job_is_cancelled_without_a_mouse(page: Page, site: Site) -> None:
    await page.goto(site.url(f"/jobs/{site.staged['scheduled']}"))
    await page.get_by_text("Cancel", exact=True).focus()
    await press(page, "Enter", "Tab")
    await expect(page.get_by_label("Reason")).to_be_focused()
    await page.keyboard.type("not needed")
    await press(page, "Enter")
    await see_notice(page, "Job cancelled.")


async def test_the_first_step_skips_to_the_content_and_every_step_is_seen(page: Page, site: Site) -> None:
    await page.goto(site.url("/jobs"))
    await press(page, "Tab")
    await expect(page.get_by_text("Skip to content")).to_be_focused()
    unseen = []
    for _ in range(40):
        step = await page.evaluate(FOCUSED)
        if not step["seen"]:
            unseen.append(step["what"])
        await press(page, "Tab")
    assert unseen == []


FOCUSED = """() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  const onScreen = box.bottom > 0 && box.top < innerHeight && box.width > 0;
  return { seen: (ring && onScreen) || at === document.body, what: at.outerHTML.slice(0, 200) };
}"""
