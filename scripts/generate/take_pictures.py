"""Takes the screenshots in docs/images and examples/analysis/images with the Chromium of the tests.

    .venv/bin/python scripts/generate/take_pictures.py                    # the dashboard, on the store of its tests
    .venv/bin/python scripts/generate/take_pictures.py --analysis FOLDER  # job and song of examples/analysis/run demo

The pictures of examples/polis have a script of their own, examples/polis/pictures.py. Look at every picture before you
commit it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from backstay.server.application import assemble  # noqa: E402
from tests.dashboard.browser import chromium, past, tour  # noqa: E402
from tests.dashboard.browser.actions import log_in  # noqa: E402
from tests.dashboard.browser.sites import Site, Steering, staged_site  # noqa: E402
from tests.dashboard.staged import Staged, fill, make_app  # noqa: E402
from tests.server.gated import listening  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

DASHBOARD = ROOT / "docs/images/dashboard"
ANALYSIS = ROOT / "examples/analysis/images"
SETTLE_MS = 2000  # images and frames of a page are loaded lazily


class Picture(NamedTuple):
    file: str
    page: str  # see tests/dashboard/browser/tour.py
    scheme: Literal["light", "dark"] = "light"
    width: int = 1280
    height: int = 800


PICTURES = (
    Picture("overview", "overview", height=1146),
    Picture("overview-dark", "overview", "dark", height=720),
    Picture("jobs", "jobs"),
    Picture("jobs-phone", "jobs", width=390, height=844),
    Picture("job", "job-running", height=905),
    Picture("tree-dark", "tree", "dark", height=900),
    Picture("submit", "submit-order"),
    Picture("subject", "subject", height=1000),
    Picture("subject-compare", "subject-compare", height=620),
)


async def take_dashboard(browser: Browser, folder: Path) -> None:
    """Take the pictures of docs/, on a server without a worker, so that no page changes while it is taken."""
    url, files = f"sqlite:///{folder}/filled/jobs.db", f"file://{folder}/filled/files"
    (folder / "filled").mkdir()
    async with make_app(url, artifacts=files) as app:
        staged = await fill(app)
    past.write(folder / "filled/jobs.db")
    async with (
        staged_site((folder / "filled", staged), folder / "served", worker=False) as site,
        await browser.new_context() as context,
    ):
        page = await context.new_page()
        await page.goto(site.url("/login"))
        await log_in(page, site, await site.key("anna"))
        for each in PICTURES:
            await page.set_viewport_size({"width": each.width, "height": each.height})
            await page.emulate_media(color_scheme=each.scheme)
            await page.goto(site.url(tour.path(each.page, staged)))
            await page.wait_for_timeout(SETTLE_MS)
            await page.screenshot(path=DASHBOARD / f"{each.file}.png", animations="disabled")


async def take_analysis(browser: Browser, folder: Path) -> None:
    """Take the page of a job that a kill interrupted, and the picture of a song, from the folder of a demo."""
    async with _analysis_site(folder) as site, await browser.new_context() as context:
        page = await context.new_page()
        await page.goto(site.url("/login"))
        await log_in(page, site, await site.key("demo"))
        interrupted = [each for each in await site.app.find(job_type="analyze", limit=100) if each.failures]
        if not interrupted:
            raise SystemExit(f"no analyze job in {folder} was interrupted: remove it, and run the demo again")
        await page.set_viewport_size({"width": 1280, "height": 1225})
        await page.goto(site.url(f"/jobs/{interrupted[0].job_id}"))
        await page.wait_for_timeout(SETTLE_MS)
        await page.screenshot(path=ANALYSIS / "job.png", animations="disabled")
        await page.set_viewport_size({"width": 1440, "height": 633})
        await page.goto((folder / "Wait for me.svg").absolute().as_uri())
        await page.screenshot(path=ANALYSIS / "song.png", animations="disabled")


@asynccontextmanager
async def _analysis_site(folder: Path) -> AsyncIterator[Site]:
    os.environ["CACHE_DIR"] = str(folder)
    from analysis.jobs import app  # it reads CACHE_DIR when it is imported

    async with app:
        gate = assemble(app, hosts=())
        async with listening(gate) as address:
            yield Site(app, gate, Staged(), Steering(), address, f"{address}/dashboard")


async def main(analysis: Path | None) -> None:
    path = chromium.installed()
    if path is None:
        raise SystemExit(chromium.MISSING)
    with tempfile.TemporaryDirectory() as folder:
        async with chromium.started(path) as browser:
            if analysis is None:
                await take_dashboard(browser, Path(folder))
            else:
                shutil.copytree(analysis, Path(folder) / "demo")
                await take_analysis(browser, Path(folder) / "demo")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--analysis", type=Path, metavar="FOLDER", help="the folder of examples/analysis/run demo")
    asyncio.run(main(parser.parse_args().analysis))
