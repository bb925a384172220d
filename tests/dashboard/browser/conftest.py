"""One browser for all tests of a process and a context for each of them, on a server of its own or of its module."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.dashboard.browser import chromium
from tests.dashboard.browser.sites import Site, staged_site
from tests.dashboard.browser.watch import watched
from tests.dashboard.paged import staged_folder as staged_folder
from tests.dashboard.staged import Staged


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    path = chromium.installed()
    if path is None:
        pytest.skip(chromium.MISSING)
    async with chromium.started(path) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def site(staged_folder: tuple[Path, Staged], tmp_path: Path) -> AsyncIterator[Site]:
    """With a worker inside."""
    async with staged_site(staged_folder, tmp_path) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def common_site(
    staged_folder: tuple[Path, Staged], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    """The same for a module whose tests leave one another's jobs alone: it makes this one its `site`."""
    async with staged_site(staged_folder, tmp_path_factory.mktemp("common")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, site: Site) -> AsyncIterator[Page]:
    """A tab; what must never happen on a page of ours fails the test at its end."""
    async with watched(browser) as (context, watch):
        yield await context.new_page()
        watch.check()
