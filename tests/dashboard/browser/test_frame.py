"""The dashboard in a real browser: pages follow what happens, leave alone what someone does, and obey the keyboard."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.dashboard.browser import chromium
from tests.server.gated import Served, listening, served

PAGES = ("", "/queues", "/workers", "/audit", "/keys", "/nowhere")
pytestmark = pytest.mark.asyncio(loop_scope="module")  # one browser for all of them
EVIL = "<img src=x onerror=alert(1)>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    path = chromium.installed()
    if path is None:
        pytest.skip(chromium.MISSING)
    async with chromium.started(path) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def address(server: Served) -> AsyncIterator[str]:
    async with listening(server.gate) as found:
        yield f"{found}/dashboard"


async def test_a_page_follows_what_happens_and_leaves_alone_what_someone_does(
    browser: Browser, server: Served, address: str
) -> None:
    await server.app.submit("letter", {"to": "anna"})
    page = await browser.new_page()
    await page.goto(f"{address}/queues")
    await expect(page.locator("[data-pulse-says]")).to_have_text("Live")
    await page.keyboard.press("j")
    await page.locator("tr[data-key=mail] summary", has_text="Pause").click()
    why = page.locator("tr[data-key=mail] input[name=reason]")
    await why.fill("the printer burns")
    await server.app.submit("letter", {"to": "anna"})
    await expect(page.locator("tr[data-key=mail] td[data-label=Pending]")).to_have_text("2")
    assert await why.is_visible() and await why.input_value() == "the printer burns"
    assert await page.evaluate("document.activeElement.name") == "reason"
    await expect(page.locator("tr[data-chosen]")).to_have_attribute("data-key", "default")
    await page.keyboard.press("Enter")
    await expect(page.locator(".notice")).to_have_text("Queue mail paused.")
    await expect(page.locator("tr[data-key=mail]")).to_contain_text("by local: the printer burns")


async def test_rows_come_and_go_without_a_reload(browser: Browser, server: Served, address: str) -> None:
    page = await browser.new_page()
    await page.goto(f"{address}/queues")
    await page.evaluate("window.isSame = true")
    await expect(page.locator("tr[data-key=aaa]")).to_have_count(0)
    await server.app.submit("letter", {"to": "anna"}, queue="aaa")
    await expect(page.locator("tbody tr").first).to_have_attribute("data-key", "aaa")
    assert await page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.dataset.key)") == [
        "aaa", "default", "mail",
    ]  # fmt: skip
    assert await page.evaluate("window.isSame")


async def test_keys_lead_through_lists_and_pages(browser: Browser, server: Served, address: str) -> None:
    page = await browser.new_page()
    await page.goto(f"{address}/queues")
    await page.keyboard.press("/")
    assert await page.evaluate("document.activeElement.id") == "search"
    await page.keyboard.type("gw?")  # while someone types, keys are letters
    assert await page.input_value("#search") == "gw?"
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.locator("dialog#shortcuts")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("dialog#shortcuts")).to_be_hidden()
    for key, chosen in (("j", "default"), ("j", "mail"), ("j", "mail"), ("k", "default")):
        await page.keyboard.press(key)
        await expect(page.locator("tr[data-chosen]")).to_have_attribute("data-key", chosen)
    await page.keyboard.press("g")
    await page.keyboard.press("w")
    await page.wait_for_url("**/dashboard/workers")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_pages_fit_a_phone_and_nothing_on_them_runs_or_is_refused(
    browser: Browser, server: Served, address: str, theme: str
) -> None:
    await server.app.submit("letter", {"to": "anna"})
    await server.app.pause_queue("mail", by=EVIL, reason=EVIL * 5)
    async with server.app.audited("a", EVIL * 5, by=EVIL, via="http", before={EVIL: 1}) as entry:
        entry.after = {EVIL: EVIL * 9}
    context = await browser.new_context(
        viewport={"width": 390, "height": 844},
        color_scheme=theme,  # type: ignore[arg-type]
    )
    page = await context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    grounds = set()
    for path in PAGES:
        await page.goto(address + path)
        await expect(page.locator("h1")).to_be_visible()
        spare = "document.documentElement.clientWidth - document.documentElement.scrollWidth"
        assert await page.evaluate(spare) >= 0, path
        grounds.add(await page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert grounds == {"rgb(248, 248, 246)" if theme == "light" else "rgb(18, 21, 20)"}
    assert [each for each in said if "404 (Not Found)" not in each] == []
    await context.close()
