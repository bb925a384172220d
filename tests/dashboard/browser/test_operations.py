"""What whoever is on duty does: queues, dead letters, schedules, many jobs at once."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from backstay import Backstay
from tests.dashboard.browser.actions import row, see_notice, see_title
from tests.dashboard.browser.sites import Site
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def site(common_site: Site) -> Site:
    return common_site


async def is_paused(app: Backstay, queue: str) -> bool:
    return any(each.paused for each in await app.queues() if each.name == queue)


async def test_a_queue_is_paused_with_a_reason_and_resumed(page: Page, site: Site) -> None:
    await page.goto(site.url("/queues"))
    await row(page, "reports").get_by_text("Pause", exact=True).click()
    await page.get_by_label("Reason").locator("visible=true").fill("the printer is out of ink")
    await page.get_by_role("button", name="Pause reports").click()
    await see_notice(page, "Queue reports paused")
    await expect(row(page, "reports")).to_contain_text("the printer is out of ink")
    assert await is_paused(site.app, "reports")
    await row(page, "reports").get_by_role("button", name="Resume").click()
    await see_notice(page, "Queue reports resumed")
    assert not await is_paused(site.app, "reports")
    await page.goto(site.url("/audit"))
    ours = row(page, "queue.pause").filter(has_text="reports")  # the stage paused another one
    await expect(ours).to_contain_text("the printer is out of ink")


async def test_dead_letters_of_a_kind_are_sent_again_together(page: Page, site: Site) -> None:
    await page.goto(site.url("/dead"))
    await row(page, "TimeoutError").get_by_text("Retry", exact=True).click()
    await page.get_by_role("button", name="Retry 9 jobs").click()
    await see_notice(page, "9 dead letters retried.")
    await expect(row(page, "TimeoutError")).to_have_count(0)
    assert (await site.app.get(site.staged["dead 0"])).status == "pending"  # its queue is paused
    await row(page, "Discard").get_by_role("link", name="charge").click()
    await see_title(page, "charge: Discard")
    await page.get_by_role("button", name="Retry", exact=True).first.click()
    await see_notice(page, "Job retried.")


async def test_a_schedule_is_run_now_paused_and_resumed(page: Page, site: Site) -> None:
    await page.goto(site.url("/schedules"))
    nightly = row(page, "nightly-report")
    await nightly.get_by_role("button", name="Run now").click()
    await expect(page.locator(".notice")).to_be_visible()

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
        await page.get_by_role("checkbox", name="Select mail").nth(place).check()
    assert await page.locator("[data-ticked]").text_content() == "2 jobs selected"  # at once, not with the next update
    await cancel.click()
    await see_title(page, "Cancel 2 jobs?")
    assert [(await site.app.get(job.job_id)).status for job in jobs] == ["scheduled"] * 4
    await page.get_by_label("Reason").fill("too many letters")
    await page.get_by_role("button", name="Cancel 2 jobs").click()
    await see_notice(page, "2 jobs cancelled")
    assert sorted([(await site.app.get(job.job_id)).status for job in jobs]) == ["cancelled"] * 2 + ["scheduled"] * 2


async def test_all_that_a_search_finds_is_cancelled_after_a_question(page: Page, site: Site) -> None:
    for number in range(3):
        await site.app.submit("mail", {"to": f"{number}@example.org"}, delay=3600, tags=["whole"])
    await page.goto(site.url("/jobs?q=tag:whole"))
    await page.get_by_text("Select all matches", exact=True).click()
    await page.get_by_role("button", name="Cancel all…").click()
    await see_title(page, "Cancel 3 jobs?")
    await page.get_by_role("link", name="Keep jobs").click()
    await expect(page.get_by_role("row").filter(has_text="scheduled")).to_have_count(3)
    await page.get_by_text("Select all matches", exact=True).click()
    await page.get_by_role("button", name="Cancel all…").click()
    await page.get_by_role("button", name="Cancel 3 jobs").click()
    await see_notice(page, "3 jobs cancelled")
    assert len(await site.app.find(tag="whole", status="cancelled")) == 3
