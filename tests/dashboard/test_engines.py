"""Every page of jobs, on every engine. Texts that would run: tests/dashboard/browser/test_texts_that_would_run.py."""

import secrets
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.dashboard.paged import Person, person_at
from tests.dashboard.paged import person as person
from tests.dashboard.paged import staged_folder as staged_folder
from tests.dashboard.staged import CONVERSATION, Staged, fill, make_app


def paths(staged: Staged, *subjects: str) -> list[str]:
    every = [f"/jobs/{job_id}" for job_id in staged.jobs.values()]
    return [
        *every,
        *(f"/trees/{staged[part]}" for part in ("tree", "growing tree")),
        *("/jobs", "/jobs?q=status:failed", "/trees", "/dead", "/dead/group?type=charge&error=TimeoutError"),
        *("/schedules", "/subjects", "/submit", "/submit?type=order", "/submit?type=embedding&mode=json"),
        *(f"/subjects?subject={quote(subject)}" for subject in subjects),
        *(f"/jobs/{staged['tables']}/results/{table}" for table in ("clusters", "points")),
        f"/jobs/{staged['report first']}/artifacts/map.png",
    ]


class _Active(HTMLParser):
    """What a browser would run, or style, by itself; our own scripts have an address."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        runs = any(name.startswith("on") or name == "style" for name in given)
        leads = any((given.get(name) or "").strip().startswith("javascript:") for name in ("href", "src", "action"))
        if runs or leads or tag == "style" or (tag == "script" and "src" not in given):
            self.found.append(str(self.get_starttag_text()))


def active_parts(html: str) -> list[str]:
    parser = _Active()
    parser.feed(html)
    parser.close()
    return parser.found


async def test_no_page_has_a_script_or_a_style_inside(person: Person) -> None:
    for path in paths(person.staged, CONVERSATION, "customer 7"):
        page = await person.get(path)
        assert page.status == 200, path
        assert active_parts(page.html) == [], path


@pytest.fixture(params=["postgres", "dynamodb"])
async def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Person]:
    """On an engine that is a server."""
    server = request.getfixturevalue(request.param)
    place = {"schema": f"pages_{secrets.token_hex(3)}"} if request.param == "postgres" else {}
    async with make_app(server.url(**place)) as app:
        staged = await fill(app)
        async with person_at(app, staged) as found:
            yield found


@pytest.mark.timeout(300)
async def test_every_page_and_a_change_from_each_on_the_other_engines(elsewhere: Person) -> None:
    for path in paths(elsewhere.staged, CONVERSATION):
        page = await elsewhere.get(path)
        assert page.status == 200, path
    jobs = elsewhere.staged
    assert "Job cancelled." in (await elsewhere.send(f"/jobs/{jobs['pending']}/cancel", {"version": "1"})).text
    assert "Job retried." in (await elsewhere.send(f"/jobs/{jobs['dead 0']}/retry", {})).text
    bulk = {"whole": "retry", "q": "status:failed type:charge", "sure": "1"}
    assert " jobs retried." in (await elsewhere.send("/jobs/bulk", bulk)).text
    dead = {"type": "part", "error": "ValueError"}
    assert "2 dead letters retried." in (await elsewhere.send("/dead/retry", dead)).text
    assert "Schedule heartbeat paused." in (await elsewhere.send("/schedules/heartbeat/pause")).text
    done = await elsewhere.send(
        "/submit", {"type": "gather", "press": "submit", "mode": "json", "json": "[7]", "subject": "seven"}
    )
    assert "Submitted." in done.text
    assert "gather" in (await elsewhere.get("/subjects?subject=seven")).text
