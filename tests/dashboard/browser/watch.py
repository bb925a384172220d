"""What a browser must never see on our pages, noted while a test goes over them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Request, Response, WebError

from tests.dashboard.browser.chromium import WAIT_MS

_STOPPED = "csp"
_IN_A_FRAME = "about:srcdoc"  # in a page that a handler wrote: ours have none, see test_texts_that_would_run
_OURS = ("127.0.0.1", "localhost")
_OF_FILES = "/artifacts/"  # what a handler wrote may well try; it stands in a sandbox, which the browser then tells of
_TELL = """
addEventListener("securitypolicyviolation", (event) =>
  window.__violated?.(`${event.violatedDirective} of ${event.blockedURI} on ${event.documentURI}`));
"""


@dataclass
class Watch:
    ran: list[Any] = field(default_factory=list)  # calls of __p, which only a text that became a script makes
    wrong: list[str] = field(default_factory=list)
    away: dict[Request, str] = field(default_factory=dict)  # requests to others, but those that our policy stopped

    async def over(self, context: BrowserContext) -> None:
        await context.expose_binding("__p", lambda source, *which: self.ran.append((which, source["page"].url)))
        await context.expose_binding("__violated", lambda _, what: self._violated(what))
        await context.add_init_script(_TELL)
        context.on("dialog", self._asked)
        context.on("request", self._requested)
        context.on("requestfailed", self._stopped)
        context.on("response", self._answered)
        context.on("console", self._said)
        context.on("weberror", self._failed)

    def _violated(self, what: str) -> None:
        if _OF_FILES not in what:
            self.wrong.append(f"against our policy: {what}")

    async def _asked(self, dialog: Dialog) -> None:
        self.wrong.append(f"a dialog: {dialog.message}")
        await dialog.dismiss()

    def _requested(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in _OURS:
            self.away[request] = request.url

    def _stopped(self, request: Request) -> None:
        if request.failure == _STOPPED:
            self.away.pop(request, None)

    def _answered(self, response: Response) -> None:
        if response.status >= (500 if response.request.resource_type == "document" else 400):
            self.wrong.append(f"{response.status} from {response.url}")

    def _said(self, message: ConsoleMessage) -> None:
        said = message.text + message.location["url"]
        told_already = said.startswith("Failed to load resource")
        if message.type == "error" and not told_already and _OF_FILES not in said and _IN_A_FRAME not in said:
            self.wrong.append(f"on the console: {message.text}")

    def _failed(self, error: WebError) -> None:
        self.wrong.append(f"an error in a script: {error.error}")

    def check(self) -> None:
        assert not self.ran, self.ran
        assert not self.wrong, self.wrong
        assert not self.away, {url: request.failure for request, url in self.away.items()}


@asynccontextmanager
async def watched(browser: Browser, **options: Any) -> AsyncIterator[tuple[BrowserContext, Watch]]:
    """A browser of its own, as if freshly installed."""
    context = await browser.new_context(locale="en-GB", timezone_id="UTC", **options)
    try:
        context.set_default_timeout(WAIT_MS)
        watch = Watch()
        await watch.over(context)
        yield context, watch
    finally:
        await context.close()
