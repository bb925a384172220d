"""What people come for: a job is submitted, watched, cancelled and sent again, and what it brought is looked at."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.browser.actions import see_notice, see_title
from tests.dashboard.browser.sites import Site
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def site(common_site: Site) -> Site:
    return common_site


async def submit_voyage(page: Page, site: Site, harbour: str) -> str:
    """From the form; its id."""
    await page.goto(site.url())
    await page.get_by_role("link", name="New job").click()
    await page.get_by_role("link", name="voyage").click()
    await page.get_by_label("Harbour").fill(harbour)
    await page.get_by_role("button", name="Submit").last.click()
    await see_notice(page, "Submitted.")
    return page.url.rpartition("/")[2]


async def test_a_job_from_the_form_is_seen_to_move_on_and_end_without_a_reload(page: Page, site: Site) -> None:
    await submit_voyage(page, site, "Lisbon")
    await page.evaluate("window.untouched = true")
    stand = page.get_by_label("Status", exact=True)
    await expect(stand).to_contain_text("leg 1 of 4")
    for done in (1, 2):
        site.steering.go()
        await expect(stand).to_contain_text(f"leg {done + 1} of 4")
        await expect(stand.get_by_role("progressbar")).to_have_attribute("value", str(done / 4))
    await expect(page.get_by_label("Latest log lines")).to_contain_text("leg 3 to Lisbon")
    site.steering.go()
    site.steering.go()
    await expect(stand).to_contain_text("completed")
    await expect(page.locator("#result")).to_contain_text('"moored": "Lisbon"')
    assert await page.evaluate("window.untouched")


async def test_a_field_that_does_not_fit_is_said_beside_it_and_nothing_is_lost(page: Page, site: Site) -> None:
    await page.goto(site.url("/submit?type=order"))
    await page.get_by_label("Customer").fill("Q")
    await page.get_by_label("Amount").fill("12.5")
    await page.get_by_role("button", name="Submit").last.click()
    await expect(page.get_by_role("alert")).to_contain_text("Not submitted")
    await expect(page.locator("[aria-invalid=true]").first).to_be_focused()
    for field in ("Customer", "Day"):  # one is too short, one was left out
        await expect(page.get_by_label(field)).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Customer")).to_have_value("Q")
    await expect(page.get_by_label("Amount")).to_have_value("12.5")


async def test_a_running_job_is_cancelled_and_then_sent_again(page: Page, site: Site) -> None:
    job_id = await submit_voyage(page, site, "Cork")
    stand = page.get_by_label("Status", exact=True)
    await expect(stand).to_contain_text("leg 1 of 4")
    await page.get_by_text("Cancel", exact=True).click()
    await page.get_by_label("Reason").fill("the wrong harbour")
    await page.get_by_role("button", name="Cancel job").click()
    await expect(stand).to_contain_text("cancelled")
    await expect(page.locator("#history")).to_contain_text("the wrong harbour")
    await page.get_by_role("button", name="Retry", exact=True).click()
    await see_notice(page, "Job retried.")
    for _ in range(4):
        site.steering.go()
    await expect(stand).to_contain_text("completed")
    assert (await site.app.get(job_id)).attempt == 2


async def test_a_job_that_failed_shows_its_traceback_and_runs_again(page: Page, site: Site) -> None:
    site.steering.is_rough = True
    for _ in range(8):
        site.steering.go()
    await submit_voyage(page, site, "Brest")
    await expect(page.get_by_label("Status", exact=True)).to_contain_text("failed")
    await expect(page.locator("#errors pre")).to_contain_text("ConnectionError: no way into Brest")
    site.steering.is_rough = False
    await page.get_by_role("button", name="Retry", exact=True).click()
    await expect(page.get_by_label("Status", exact=True)).to_contain_text("completed")


async def test_a_list_of_jobs_follows_what_happens(page: Page, site: Site) -> None:
    await page.goto(site.url("/jobs?q=tag:vigo"))
    await expect(page.locator("main")).to_contain_text("No jobs match this search.")
    for _ in range(2):
        await site.app.submit("voyage", {"harbour": "Vigo", "legs": 1}, tags=["vigo"])
    await expect(page.get_by_role("row").filter(has_text="processing")).to_have_count(2)
    await page.get_by_role("checkbox", name="Select voyage").first.check()
    site.steering.go()
    site.steering.go()
    await expect(page.get_by_role("row").filter(has_text="completed")).to_have_count(2)
    await expect(page.get_by_role("checkbox", name="Select voyage").first).to_be_checked()


async def test_a_tree_is_a_picture_whose_boxes_lead_to_jobs(page: Page, site: Site) -> None:
    await page.goto(site.url("/trees"))
    root = page.get_by_role("row").filter(has_text=site.staged["growing tree"][-8:])
    await root.get_by_role("link", name="analysis").click()
    picture = page.get_by_role("group", name="Job tree diagram")
    assert await picture.locator("a.box").count() > 5
    await picture.locator("a.box", has_text="GATHER").click()
    await see_title(page, "gather")
    await page.get_by_role("link", name="View full tree").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Tree of")


async def test_a_page_that_a_job_made_is_shown_in_a_frame_where_nothing_runs(page: Page, site: Site) -> None:
    await page.goto(site.url(f"/jobs/{site.staged['report first']}"))
    frame = page.frame_locator('iframe[title="report.html"]')
    await page.locator('iframe[title="report.html"]').scroll_into_view_if_needed()
    await expect(frame.locator("h1")).to_have_text("What the room agrees on")
    await expect(frame.locator("#script")).to_have_text("No script has run.")
    picture = page.get_by_role("img", name="map.png")
    await picture.scroll_into_view_if_needed()
    await eventually(lambda: picture.evaluate("image => image.naturalWidth === 480"))
    async with page.expect_download() as download:
        await page.locator("figure", has_text="model.bin").get_by_role("link", name="Download").click()
    assert (await (await download.value).path()).stat().st_size == 102_400


async def test_rows_of_a_result_table_are_read_page_by_page(page: Page, site: Site) -> None:
    await page.goto(site.url(f"/jobs/{site.staged['tables']}"))
    await page.get_by_role("link", name="points").click()
    rows = page.locator("table.rows tbody tr")
    await expect(rows).to_have_count(100)
    await page.get_by_role("link", name="Next rows").click()
    await expect(rows.first).to_contain_text("Statement 100")
    await page.get_by_role("link", name="First rows").click()
    await expect(rows.first).to_contain_text("Statement 0")


async def test_jobs_of_a_subject_are_picked_one_by_one(page: Page, site: Site) -> None:
    await page.goto(site.url("/subjects"))
    await page.get_by_role("link", name="conversation 4021").click()
    jobs = page.get_by_label("Jobs about conversation 4021")
    await expect(jobs.locator(".latest").first).to_have_text("latest")
    await jobs.get_by_role("link", name="clustering").click()
    await expect(page.get_by_role("link", name="clusters")).to_be_visible()
    await jobs.get_by_role("link", name="report").last.click()
    await expect(page.get_by_role("img", name="map.png")).to_be_visible()
