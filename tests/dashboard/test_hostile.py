"""Every page writes every stored text as text. That none runs: tests/dashboard/browser/test_texts_that_would_run.py."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.dashboard import hostile
from tests.dashboard.paged import Person, person_at
from tests.dashboard.staged import Staged

# Each would be an element, or end an attribute and begin another, wherever it is not written as a text.
TEXTS = tuple(f"{number}\"'><bs-{number} bs-on='1'></textarea></script>&lt;" for number in range(6))
ELSEWHERE = {  # files, streams, and what shows nothing that is stored
    *("/dashboard/static/{release}/{name}", "/dashboard/jobs/{job_id}/artifacts/{name}", "/dashboard/live"),
    *("/dashboard/jobs/{job_id}/log", "/dashboard/jobs/{job_id}/result"),
    *("/dashboard/", "/dashboard/login", "/dashboard/{path:path}"),
}


class Elements(HTMLParser):
    """Those that a text has become, wholly or as an attribute."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ours: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag.startswith("bs-") or any("bs-" in name for name, _ in attrs):
            self.ours.append(str(self.get_starttag_text()))


def pages(texts: hostile.Hostile) -> dict[str, list[str]]:
    """By route: where a text is shown."""
    [job, *_], text = texts.jobs, quote(TEXTS[0], safe="")
    return {
        "/dashboard": [""],
        "/dashboard/jobs": ["/jobs", f"/jobs?q={text}"],
        "/dashboard/jobs/{job_id}": [f"/jobs/{each}" for each in (job, texts.children[0], texts.cancelled)],
        "/dashboard/jobs/{job_id}/results/{table}": [f"/jobs/{job}/results/sayings"],
        "/dashboard/trees": ["/trees"],
        "/dashboard/trees/{job_id}": [f"/trees/{job}"],
        "/dashboard/queues": ["/queues"],
        "/dashboard/limits": ["/limits"],
        "/dashboard/workers": ["/workers"],
        "/dashboard/dead": ["/dead"],
        "/dashboard/dead/group": [f"/dead/group?type=fall&error={text}"],
        "/dashboard/schedules": ["/schedules"],
        "/dashboard/subjects": ["/subjects", f"/subjects?subject={text}"],
        "/dashboard/subjects/compare": [f"/subjects/compare?subject={quote(texts.subjects[0], safe='')}"],
        "/dashboard/submit": [f"/submit?type=saying&from={job}", f"/submit?type={text}"],
        "/dashboard/audit": ["/audit"],
        "/dashboard/keys": ["/keys"],
    }


async def test_every_page_writes_every_stored_text_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "VECTORS", TEXTS)
    monkeypatch.setattr(hostile, "some", lambda _: [TEXTS])
    async with hostile.make_app(tmp_path) as app:
        texts = await hostile.fill(app)
        async with person_at(app, Staged()) as nobody:
            person = Person(app, nobody.gate, nobody.client, nobody.staged, {"X-API-Key": texts.key})
            table = person.gate.inner.state.table  # type: ignore[attr-defined]
            shown = {row.path for row in table if row.path.startswith("/dashboard") and "GET" in row.methods}
            assert set(pages(texts)) == shown - ELSEWHERE
            for path in (each for paths in pages(texts).values() for each in paths):
                page = await person.get(path)
                assert page.status in (200, 404), path
                assert Elements(page.html).ours == [], path
                stored = any(f"<bs-{number} " in page.text for number in range(5))  # the sixth is the person's name
                assert stored, f"{path} shows none of the texts"
