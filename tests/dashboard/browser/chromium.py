"""The Chromium that scripts/bootstrap.py found or installed, and how tests start it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright, expect

STAMP = Path(__file__).parents[3] / ".venv" / "backstay-stamp.json"
MISSING = "there is no Chromium, so that no page was looked at: scripts/bootstrap.py test says why"

WAIT_MS = 20_000  # for what should happen in a moment: a machine may be busy

# A name that is not this machine's, for pages of another site; every other name leads nowhere.
ELSEWHERE = "elsewhere.test"
_NAMES = f"MAP {ELSEWHERE} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    f"--host-resolver-rules={_NAMES}",
)


def installed() -> str | None:
    try:
        found = json.loads(STAMP.read_text()).get("chromium")
    except (OSError, ValueError):
        return None
    return found if found and Path(found).exists() else None


@asynccontextmanager
async def started(path: str) -> AsyncIterator[Browser]:
    expect.set_options(timeout=WAIT_MS)  # of the whole process: set here alone, that nobody sets another one
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()
