"""Everything without JavaScript, and below a prefix of someone else's application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.dashboard.browser import tour
from tests.dashboard.browser.actions import log_in, see_notice, see_title
from tests.dashboard.browser.sites import Site, staged_site
from tests.dashboard.browser.watch import watched
from tests.dashboard.staged import Staged
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def plain(browser: Browser, site: Site) -> AsyncIterator[Page]:
    """A tab of a browser that runs no script."""
    async with watched(browser, java_script_enabled=False) as (context, watch):
        yield await context.new_page()
        watch.check()


async def test_jobs_are_submitted_cancelled_and_retried_without_a_script(plain: Page, site: Site) -> None:
    await plain.goto(site.url("/submit?type=voyage"))
    await plain.get_by_label("Harbour").fill("Nantes")
    await plain.get_by_text("Options", exact=True).click()
    await plain.get_by_label("Delay").fill("3600")
    await plain.get_by_role("button", name="Submit").last.click()
    await see_notice(plain, "Submitted.")
    job_id = plain.url.rpartition("/")[2]
    await plain.get_by_text("Cancel", exact=True).click()
    await plain.get_by_role("button", name="Cancel job").click()
    await see_notice(plain, "Job cancelled.")
    await plain.get_by_role("button", name="Retry", exact=True).click()
    await see_notice(plain, "Job retried.")
    for _ in range(4):
        site.steering.go()

    async def done() -> bool:
        return (await site.app.get(job_id)).status == "completed"

    await eventually(done)
    await plain.reload()
    await expect(plain.locator("#result")).to_contain_text("Nantes")


async def test_a_key_bulk_changes_and_queues_work_without_a_script(plain: Page, site: Site) -> None:
    await log_in(plain, site, await site.key("anna"))
    await plain.locator("#search").fill("status:failed type:charge")
    await plain.locator("#search").press("Enter")
    await plain.get_by_role("checkbox", name="Select charge").first.check()
    await plain.get_by_role("button", name="Retry", exact=True).click()
    await plain.get_by_role("button", name="Retry 1 job").click()
    await see_notice(plain, "1 job retried")
    await plain.goto(site.url("/queues"))
    await plain.get_by_role("row").filter(has_text="mail").get_by_role("button", name="Resume").click()
    await see_notice(plain, "Queue mail resumed")
    await plain.get_by_role("button", name="Dark").click()
    assert await plain.locator("html").get_attribute("data-theme") == "dark"


async def test_all_of_it_works_below_a_prefix(
    browser: Browser, staged_folder: tuple[Path, Staged], tmp_path: Path
) -> None:
    async with (
        staged_site(staged_folder, tmp_path, prefix="/team/jobs") as site,
        watched(browser) as (context, watch),
    ):
        page = await context.new_page()
        await log_in(page, site, await site.key("anna"))
        for link in await page.locator("aside .navigation a").all():
            assert (await link.get_attribute("href") or "").startswith("/team/jobs/dashboard")
        await page.goto(site.url("/submit?type=voyage"))
        await page.get_by_label("Harbour").fill("Faro")
        await page.get_by_role("button", name="Submit").last.click()
        stand = page.get_by_label("Status", exact=True)
        await expect(stand).to_contain_text("leg 1 of 4")
        await expect(page.locator("[data-pulse-says]")).to_have_text("Live")
        for _ in range(4):
            site.steering.go()
        await expect(stand).to_contain_text("completed")
        away = await _links_that_lead_away(page, site)
        assert away == []
        await page.get_by_role("button", name="Log out").click()
        await see_title(page, "Log in")
        watch.check()


async def _links_that_lead_away(page: Page, site: Site) -> list[str]:
    found: list[str] = []
    for name in ("overview", "jobs", "job-done", "tree", "queues", "dead", "schedules", "subject", "keys"):
        await page.goto(site.url(tour.path(name, site.staged)))
        found += await page.evaluate(
            """root => [...document.querySelectorAll("[href], [src], [action], [formaction]")]
              .flatMap(each => ["href", "src", "action", "formaction"].map(name => each.getAttribute(name)))
              .filter(address => address && !address.startsWith("#") && !address.startsWith(root))""",
            "/team/jobs/",
        )
    return found
