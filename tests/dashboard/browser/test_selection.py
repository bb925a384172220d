"""Selecting jobs on a page on which nothing else happens: no update may come to the aid of a count that is not made."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, Route, expect

from tests.dashboard.browser.actions import see_notice, see_title
from tests.dashboard.browser.sites import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")
JOBS = 3


@pytest.fixture
def site(common_site: Site) -> Site:
    return common_site


@pytest_asyncio.fixture(loop_scope="session")
async def quiet(page: Page, site: Site, request: pytest.FixtureRequest) -> AsyncIterator[Page]:
    """A list of three jobs of this test that are not due, without the script for live updates."""

    async def nothing(route: Route) -> None:
        await route.fulfill(content_type="text/javascript", body="")

    await page.route("**/live.js*", nothing)
    tag = request.node.name.removeprefix("test_")[:40]
    for number in range(JOBS):
        await site.app.submit("mail", {"to": f"{number}@example.org"}, delay=3600, tags=[tag])
    await page.goto(site.url(f"/jobs?q=tag:{tag}"))
    await expect(page.get_by_role("checkbox", name="Select mail")).to_have_count(JOBS)
    await expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_disabled()
    await expect(page.get_by_role("button", name="Retry", exact=True)).to_be_disabled()
    yield page


async def see_selected(page: Page, count: int) -> None:
    words = f"{count} {'job' if count == 1 else 'jobs'} selected" if count else "Select jobs, or act on all matches."
    await expect(page.locator("[data-ticked]")).to_have_text(words)
    for name in ("Cancel", "Retry"):
        button = page.get_by_role("button", name=name, exact=True)
        await (expect(button).to_be_enabled() if count else expect(button).to_be_disabled())
    whole = page.get_by_role("checkbox", name="Select page")
    await (expect(whole).to_be_checked() if count == JOBS else expect(whole).not_to_be_checked())
    assert await whole.evaluate("box => box.indeterminate") is (0 < count < JOBS)


async def test_one_job_is_selected_with_the_mouse_and_cancelled(quiet: Page, site: Site) -> None:
    first = quiet.get_by_role("checkbox", name="Select mail").first
    await first.click()
    await see_selected(quiet, 1)
    await first.click()
    await see_selected(quiet, 0)
    await first.click()
    await quiet.get_by_role("button", name="Cancel", exact=True).click()
    await see_title(quiet, "Cancel 1 job?")
    await quiet.get_by_role("button", name="Cancel 1 job").click()
    await see_notice(quiet, "1 job cancelled")


async def test_the_page_is_selected_with_the_mouse_and_cancelled_and_retried(quiet: Page, site: Site) -> None:
    whole = quiet.get_by_role("checkbox", name="Select page")
    await whole.click()
    await see_selected(quiet, JOBS)
    await whole.click()
    await see_selected(quiet, 0)
    for action, done in (("Cancel", "cancelled"), ("Retry", "retried")):
        await whole.click()
        await quiet.get_by_role("button", name=action, exact=True).click()
        await see_title(quiet, f"{action} {JOBS} jobs?")
        await quiet.get_by_role("button", name=f"{action} {JOBS} jobs").click()
        await see_notice(quiet, f"{JOBS} jobs {done}")


async def test_one_job_is_selected_with_the_keyboard(quiet: Page) -> None:
    await quiet.keyboard.press("j")
    await quiet.keyboard.press("x")  # the shortcut
    await see_selected(quiet, 1)
    await quiet.get_by_role("checkbox", name="Select mail").nth(1).focus()
    await quiet.keyboard.press("Space")  # the browser's own way
    await see_selected(quiet, 2)
    await quiet.keyboard.press("Space")
    await see_selected(quiet, 1)


async def test_the_page_is_selected_with_the_keyboard_and_cancelled(quiet: Page) -> None:
    await quiet.get_by_role("checkbox", name="Select page").focus()
    await quiet.keyboard.press("Space")
    await see_selected(quiet, JOBS)
    await quiet.keyboard.press("Tab")
    await expect(quiet.get_by_role("button", name="Cancel", exact=True)).to_be_focused()
    await quiet.keyboard.press("Enter")
    await see_title(quiet, f"Cancel {JOBS} jobs?")


async def test_jobs_that_are_selected_when_one_comes_back_are_counted(quiet: Page) -> None:
    await quiet.get_by_role("checkbox", name="Select mail").first.click()
    await see_selected(quiet, 1)
    await quiet.get_by_role("button", name="Cancel", exact=True).click()
    await see_title(quiet, "Cancel 1 job?")
    await quiet.go_back()
    await see_selected(quiet, await quiet.locator('input[name="job"]:checked').count())
