"""What whoever is on duty does: queues, dead letters, schedules, many jobs at once, keys."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, Page, expect

from holdfast import Holdfast
from tests.browser.acting import log_in, see_said, see_title
from tests.browser.sites import Site
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


def row(page: Page, text: str) -> Locator:
    return page.get_by_role("row").filter(has_text=text)


async def is_paused(app: Holdfast, queue: str) -> bool:
    return any(each.paused for each in await app.queues() if each.name == queue)


async def test_a_queue_is_paused_with_a_reason_and_resumed(page: Page, site: Site) -> None:
    await page.goto(site.url("/queues"))
    await row(page, "reports").get_by_text("Pause", exact=True).click()
    await page.get_by_label("Why").locator("visible=true").fill("the printer is out of ink")
    await page.get_by_role("button", name="Pause reports").click()
    await see_said(page, "reports is paused")
    await expect(row(page, "reports")).to_contain_text("the printer is out of ink")
    assert await is_paused(site.app, "reports")
    await row(page, "reports").get_by_role("button", name="Resume").click()
    await see_said(page, "reports goes on")
    assert not await is_paused(site.app, "reports")
    await page.goto(site.url("/audit"))
    await expect(row(page, "queue.pause")).to_contain_text("the printer is out of ink")


async def test_dead_letters_of_a_kind_are_sent_again_together(page: Page, site: Site) -> None:
    await page.goto(site.url("/dead"))
    await row(page, "TimeoutError").get_by_text("Retry", exact=True).click()
    await page.get_by_role("button", name="Retry 9").click()
    await see_said(page, "9 dead letters were sent again.")
    await expect(row(page, "TimeoutError")).to_have_count(0)
    assert (await site.app.get(site.staged["dead 0"])).status == "pending"  # its queue is paused
    await row(page, "Discard").get_by_role("link", name="charge").click()
    await see_title(page, "charge: Discard")
    await page.get_by_role("button", name="Retry", exact=True).first.click()
    await see_said(page, "Sent again.")


async def test_a_schedule_is_run_now_paused_and_resumed(page: Page, site: Site) -> None:
    await page.goto(site.url("/schedules"))
    nightly = row(page, "nightly-report")
    await nightly.get_by_role("button", name="Run now").click()
    await expect(page.locator(".said")).to_be_visible()

    async def made() -> bool:
        done = await site.app.find(job_type="report", status="completed")
        return any(job.schedule == "nightly-report" for job in done)

    await eventually(made)
    await page.goto(site.url("/schedules"))
    await nightly.get_by_role("button", name="Pause").click()
    await expect(nightly).to_contain_text("paused")
    await nightly.get_by_role("button", name="Resume").click()
    await expect(nightly.get_by_role("button", name="Pause")).to_be_visible()


async def test_ticked_jobs_are_cancelled_after_a_question(page: Page, site: Site) -> None:
    jobs = [await site.app.submit("mail", {"to": f"{n}@example.org"}, delay=3600, tags=["bulk"]) for n in range(4)]
    await page.goto(site.url("/jobs?q=tag:bulk"))
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    await expect(cancel).to_be_disabled()
    for place in (0, 1):
        await page.get_by_role("checkbox", name="Pick mail").nth(place).check()
    await expect(page.locator("[data-ticked]")).to_have_text("2 jobs ticked")
    await cancel.click()
    await see_title(page, "Cancel 2 jobs?")
    assert [(await site.app.get(job.job_id)).status for job in jobs] == ["scheduled"] * 4
    await page.get_by_label("Why").fill("too many letters")
    await page.get_by_role("button", name="Cancel 2 jobs").click()
    await see_said(page, "2 jobs were cancelled")
    assert sorted([(await site.app.get(job.job_id)).status for job in jobs]) == ["cancelled"] * 2 + ["scheduled"] * 2


async def test_all_that_a_search_finds_is_cancelled_after_a_question(page: Page, site: Site) -> None:
    for number in range(3):
        await site.app.submit("mail", {"to": f"{number}@example.org"}, delay=3600, tags=["whole"])
    await page.goto(site.url("/jobs?q=tag:whole"))
    await page.get_by_text("All found", exact=True).click()
    await page.get_by_role("button", name="Cancel all found").click()
    await see_title(page, "Cancel 3 jobs?")
    await page.get_by_role("link", name="Leave them").click()
    await expect(page.get_by_role("row").filter(has_text="scheduled")).to_have_count(3)
    await page.get_by_text("All found", exact=True).click()
    await page.get_by_role("button", name="Cancel all found").click()
    await page.get_by_role("button", name="Cancel 3 jobs").click()
    await see_said(page, "3 jobs were cancelled")
    assert len(await site.app.find(tag="whole", status="cancelled")) == 3


async def test_one_comes_in_with_a_key_and_goes_out_again(page: Page, site: Site) -> None:
    key = await site.key("anna")
    await page.goto(site.url("/queues?x=1"))
    await see_title(page, "Log in")
    await page.locator("#key").fill(key[:-1] + ("a" if key[-1] != "a" else "b"))
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("no key of this server")
    await page.locator("#key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    await see_title(page, "Queues")
    [cookie] = [each for each in await page.context.cookies() if each["name"] == "holdfast_session"]
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
    await expect(row(page, "anna")).to_contain_text("It is the last key that can make others")
    await expect(page.get_by_role("button", name="Revoke anna")).to_have_count(0)
    await page.get_by_label("Who or what is going to use it").fill("ci")
    await page.get_by_role("button", name="Make the key").click()
    made = await page.get_by_label("The new key").input_value()
    assert made.startswith("hf_")
    await page.goto(site.url("/keys"))
    assert made not in await page.content()
    await row(page, "ci").get_by_text("Revoke", exact=True).click()
    await page.get_by_role("button", name="Revoke ci").click()
    await see_said(page, "The key ci is revoked.")
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
