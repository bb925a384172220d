"""What only a browser can measure: boxes of a form in line with one another, and no figure that is cut off."""

from __future__ import annotations

from itertools import groupby

import pytest
from playwright.async_api import Page

from tests.dashboard.browser.actions import log_in
from tests.dashboard.browser.sites import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")

BOXES = """all => all.map(each => {
  const box = each.getBoundingClientRect(), column = each.closest(".field").getBoundingClientRect();
  return {top: Math.round(box.top), height: Math.round(box.height), over: box.right - column.right};
})"""
CUT = "all => all.filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.textContent)"


async def test_the_boxes_of_a_row_are_equally_high_and_stay_in_their_columns(page: Page, site: Site) -> None:
    await page.set_viewport_size({"width": 1280, "height": 900})
    await page.goto(site.url("/submit?type=order"))
    await page.locator(".options > summary").click()
    boxes = await page.locator(".options input").evaluate_all(BOXES)
    rows = [[box["height"] for box in row] for _, row in groupby(boxes, key=lambda box: box["top"])]
    assert len(rows) < len(boxes) and all(len(set(row)) == 1 for row in rows), rows
    assert all(box["over"] < 1 for box in boxes)


async def test_the_figures_of_a_key_of_some_queues_are_not_cut_off(page: Page, site: Site) -> None:
    await page.set_viewport_size({"width": 1280, "height": 900})
    made = await site.app.create_key("reader", ["read"], queues=["default"])
    site.gate.inner.state.keyring.stale()  # type: ignore[attr-defined]
    await log_in(page, site, made.text)
    await page.locator(".tile .within").first.wait_for()
    assert await page.locator(".tile .status, .tile strong").evaluate_all(CUT) == []
