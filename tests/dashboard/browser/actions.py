"""What people do on many pages."""

from __future__ import annotations

from playwright.async_api import Locator, Page, expect

from tests.dashboard.browser.sites import Site


async def log_in(page: Page, site: Site, key: str) -> None:
    await page.goto(site.url("/login"))
    await page.locator("#key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    await see_title(page, "Overview")


def row(page: Page, text: str) -> Locator:
    return page.get_by_role("row").filter(has_text=text)


async def see_title(page: Page, title: str) -> None:
    await expect(page.get_by_role("heading", level=1)).to_have_text(title)


async def see_notice(page: Page, words: str) -> None:
    """What a page says after a form was sent from it."""
    await expect(page.locator(".notice")).to_contain_text(words)
