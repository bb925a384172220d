"""Every page of jobs, on every engine, and with texts in every field that would run if they could."""

import secrets
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holdfast import Context, Holdfast
from holdfast.testing import drain
from tests.browser.staged import CONVERSATION, Staged, fill, make_app
from tests.server.paged import Person, person_at
from tests.server.paged import person as person
from tests.server.paged import staged_folder as staged_folder

HOSTILE = (
    "<script>__p()</script><img src=x onerror=__p()>\"'><svg/onload=__p()>"
    "{{7*7}}{% raw %}javascript:__p()\u2028\u202e</pre>"
)


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
    assert "Cancelled." in (await elsewhere.send(f"/jobs/{jobs['pending']}/cancel", {"version": "1"})).text
    assert "Sent again." in (await elsewhere.send(f"/jobs/{jobs['dead 0']}/retry", {})).text
    bulk = {"whole": "retry", "q": "status:failed type:charge", "sure": "1"}
    assert "were sent again." in (await elsewhere.send("/jobs/bulk", bulk)).text
    dead = {"type": "part", "error": "ValueError"}
    assert "2 dead letters were sent again." in (await elsewhere.send("/dead/retry", dead)).text
    assert "makes no jobs" in (await elsewhere.send("/schedules/heartbeat/pause")).text
    done = await elsewhere.send(
        "/submit", {"type": "gather", "press": "submit", "mode": "json", "json": "[7]", "subject": "seven"}
    )
    assert "Submitted." in done.text
    assert "gather" in (await elsewhere.get("/subjects?subject=seven")).text


# Texts that would run


def hostile_app(url: str, folder: Path) -> Holdfast:
    app = Holdfast(url, artifacts=f"file://{folder}/files")

    @app.job("hostile", max_attempts=1)
    async def hostile(payload: dict[str, Any], ctx: Context) -> Any:
        await ctx.progress(0.5, HOSTILE[:100])
        ctx.log.info("%s", HOSTILE)
        await ctx.metric("a", 1)
        await ctx.artifact("page.html", HOSTILE)
        await ctx.artifact("notes.txt", HOSTILE)
        await ctx.submit("child", HOSTILE, stage=HOSTILE[:100], key="c")
        return {HOSTILE: HOSTILE}

    @app.job("child", max_attempts=1)
    async def child(payload: str) -> None:
        raise ValueError(payload)

    return app


async def test_texts_in_every_field_stay_texts_on_every_page(tmp_path: Path) -> None:
    async with hostile_app(f"sqlite:///{tmp_path}/jobs.db", tmp_path) as app:
        job = await app.submit(
            "hostile",
            {HOSTILE: HOSTILE},
            subject=HOSTILE,
            tags=[HOSTILE[:120]],
            created_by=HOSTILE[:120],
            dedup_key=HOSTILE,
            content_hash=HOSTILE,
            fairness_key=HOSTILE,
        )
        await drain(app)
        late = await app.submit("hostile", {}, subject=HOSTILE, delay=3600)
        await app.cancel(late.job_id, by=HOSTILE[:120], reason=HOSTILE)
        child = (await app.find(job_type="child"))[0]
        await app.schedule("s", "@daily", "hostile", {HOSTILE: HOSTILE}, subject=HOSTILE)
        await app.pause_schedule("s", by=HOSTILE[:120])
        async with person_at(app, Staged()) as person:
            await person.send(
                "/submit", {"type": "hostile", "press": "submit", "payload": HOSTILE, "priority": HOSTILE}
            )
            shown = 0
            for path in (
                "/jobs",
                f"/jobs?q={quote(HOSTILE)}",
                f"/jobs?q=subject:{quote(_quoted(HOSTILE))}",
                *(f"/jobs/{each}" for each in (job.job_id, late.job_id, child.job_id)),
                f"/trees/{job.job_id}",
                "/trees",
                "/dead",
                "/dead/group?type=child&error=ValueError",
                f"/dead/group?type={quote(HOSTILE[:100])}&error={quote(HOSTILE)}",
                "/schedules",
                "/subjects",
                f"/subjects?subject={quote(HOSTILE)}",
                f"/submit?type=hostile&from={job.job_id}",
                f"/submit?type={quote(HOSTILE)}",
                f"/jobs/{quote(HOSTILE, safe='')}",
            ):
                page = await person.get(path)
                assert page.status in (200, 404, 422), path
                assert active_parts(page.html) == [], path
                assert "<img src=x" not in page.html, path
                assert "49{% raw" not in page.html, path
                shown += "&lt;script&gt;__p()" in page.html
            assert shown >= 12


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
