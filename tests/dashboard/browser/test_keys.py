"""Who comes in, and what a key opens: on a server for each test, since the first key locks out all without one."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.browser.actions import log_in, row, see_notice, see_title
from tests.dashboard.browser.sites import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_one_comes_in_with_a_key_and_goes_out_again(page: Page, site: Site) -> None:
    key = await site.key("anna")
    await page.goto(site.url("/queues?x=1"))
    await see_title(page, "Log in")
    await page.locator("#key").fill(key[:-1] + ("a" if key[-1] != "a" else "b"))
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
    await page.locator("#key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    await see_title(page, "Queues")
    [cookie] = [each for each in await page.context.cookies() if each["name"] == "backstay_session"]
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["path"] == "/dashboard"
    assert key not in cookie["value"]
    assert await page.evaluate("document.cookie") == ""
    await page.get_by_role("button", name="Log out").click()
    await see_title(page, "Log in")
    await page.goto(site.url("/jobs"))
    await see_title(page, "Log in")
    await page.context.add_cookies([{**cookie}])  # type: ignore[typeddict-item]
    await page.goto(site.url("/jobs"))
    await see_title(page, "Log in")


async def test_a_new_key_is_shown_once_and_whoever_uses_a_revoked_one_is_out(page: Page, site: Site) -> None:
    await log_in(page, site, await site.key("anna"))
    await page.goto(site.url("/keys"))
    await row(page, "anna").get_by_text("Revoke", exact=True).click()
    await expect(row(page, "anna")).to_contain_text("This is the last key that can create others")
    await expect(page.get_by_role("button", name="Revoke anna")).to_have_count(0)
    await page.get_by_label("Who or what will use the key").fill("ci")
    await page.get_by_role("button", name="Create key").click()
    made = await page.get_by_label("New API key").input_value()
    assert made.startswith("bs_")
    await page.goto(site.url("/keys"))
    assert made not in await page.content()
    await row(page, "ci").get_by_text("Revoke", exact=True).click()
    await page.get_by_role("button", name="Revoke ci").click()
    await see_notice(page, "Key ci revoked.")
    await site.key("ben")
    await page.reload()
    await row(page, "anna").get_by_text("Revoke", exact=True).click()
    await page.get_by_role("button", name="Revoke anna").click()
    await see_title(page, "Log in")


async def test_a_key_that_may_only_read_is_offered_no_change(page: Page, site: Site) -> None:
    await log_in(page, site, await site.key("viewer", "read"))
    await expect(page.get_by_role("link", name="New job")).to_have_count(0)
    for path in ("/jobs", f"/jobs/{site.staged['dead 0']}", "/queues", "/dead", "/schedules"):
        await page.goto(site.url(path))
        forms = page.locator("main form[method=post]")
        await expect(forms).to_have_count(0)
    await page.goto(site.url("/keys"))
    await expect(page.locator("main form")).to_have_count(0)
