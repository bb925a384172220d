"""A browser without a screen: it keeps cookies, follows what forms say, and reads pages as text, forms and links."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from backstay.dashboard import counts
from tests.server.gated import HERE, Served

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass
class Form:
    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)

    def filled(self, **values: str | list[str]) -> list[tuple[str, str]]:
        pairs = [(name, value) for name, value in self.fields if name not in values]
        for name, value in values.items():
            pairs += [(name, each) for each in ([value] if isinstance(value, str) else value)]
        return pairs


class Page(HTMLParser):
    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.response = response
        self.status = response.status_code
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.forms: list[Form] = []
        self._words: list[str] = []
        self.feed(response.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        if tag == "form":
            self.forms.append(Form(found.get("action") or "", found.get("method") or "get"))
        name = found.get("name")
        if tag == "input" and name and self.forms and (found.get("type") != "checkbox" or "checked" in found):
            self.forms[-1].fields.append((name, found.get("value") or ""))

    handle_startendtag = handle_starttag

    def handle_data(self, data: str) -> None:
        self._words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self._words)

    @property
    def html(self) -> str:
        return self.response.text

    def values(self, tag: str, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for each, attrs in self.elements if each == tag and attribute in attrs]

    def form(self, ending: str) -> Form:
        """The form whose address ends so."""
        found = next((form for form in self.forms if form.action.endswith(ending)), None)
        assert found is not None, f"no form {ending} among {[form.action for form in self.forms]}"
        return found


@dataclass(frozen=True)
class Browser:
    client: httpx.AsyncClient

    async def get(self, path: str = "", **options: Any) -> Page:
        return Page(await self.client.get(f"/dashboard{path}", **options))

    async def send(self, form: Form, *, follow: bool = True, **values: str | list[str]) -> Page:
        answer = await self.client.post(form.action, data=_urlencoded(form.filled(**values)), headers=FROM_OUR_PAGE)
        if follow and answer.status_code == 303:
            return Page(await self.client.get(answer.headers["Location"]))
        return Page(answer)

    async def log_in(self, key: dict[str, str]) -> Page:
        return await self.send((await self.get("/login")).form("/login"), key=key["X-API-Key"])


FROM_OUR_PAGE = {"Sec-Fetch-Site": "same-origin", "Origin": "null"}  # as browsers send it under our Referrer-Policy


def _urlencoded(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
    data: dict[str, list[str]] = {}
    for name, value in pairs:
        data.setdefault(name, []).append(value)
    return data


@asynccontextmanager
async def browsing(server: Served, *, base_url: str = HERE) -> AsyncIterator[Browser]:
    transport = httpx.ASGITransport(server.gate, client=("127.0.0.1", 4711))
    async with httpx.AsyncClient(transport=transport, base_url=base_url) as client:
        yield Browser(client)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages wait for their figures, and count anew each time, however busy the machine is.

    `from tests.dashboard.plain_browser import patient as patient`
    """
    monkeypatch.setattr(counts, "WAIT_SECONDS", 30.0)
    monkeypatch.setattr(counts, "REST", 0)
    monkeypatch.setattr(counts, "WAIT_SECONDS", 30.0)
