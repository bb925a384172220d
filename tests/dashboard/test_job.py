"""The page of a job: what it shows, what it hides, what can be done from it; its files, rows and tree."""

import asyncio
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from backstay import Backstay
from backstay.core.sensitive import MASK
from backstay.dashboard import job, subjects, tree
from backstay.server.auth import local
from backstay.server.visibility import explained
from tests.dashboard.paged import Person
from tests.dashboard.paged import person as person
from tests.dashboard.paged import staged_folder as staged_folder
from tests.dashboard.staged import PARTS, WORKER, claim


async def act(person: Person, part: str, verb: str, **fields: Any) -> str:
    """Press a button on a job's page; what the next page says."""
    return (await person.send(f"/jobs/{person.staged[part]}/{verb}", fields)).text


async def status(person: Person, part: str) -> str:
    return (await person.app.get(person.staged[part])).status.value


# What it shows


async def test_a_page_tells_of_one_state_though_the_job_begins_while_it_is_made(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begun(*asked: Any) -> Any:
        await claim(person.app, "embedding", "embeddings")
        return await explained(*asked)

    monkeypatch.setattr(job, "explained", begun)
    page = await person.get(f"/jobs/{person.staged['pending']}")
    assert "It is running" in page.text
    assert set(re.findall(r'name="version" value="(\d+)"', page.html)) == {"2"}


async def test_the_page_says_why_a_job_is_where_it_is(person: Person) -> None:
    text = (await person.get(f"/jobs/{person.staged['running']}")).text
    assert f"It is running: attempt 1 on {WORKER}" in text
    assert "62%" in text
    assert "laying out the map" in text
    assert "part 38 is empty: left out" in text


def why(html: str) -> str:
    return html.partition('<p class="why">')[2].partition("</p>")[0]


async def test_jobs_that_an_explanation_names_are_links(person: Person) -> None:
    found = why((await person.get(f"/jobs/{person.staged['waiting']}")).html)
    assert found.startswith("It is waiting for <a ")
    assert found.endswith("(scheduled).")
    for part in ("running", "scheduled"):
        assert f'href="/dashboard/jobs/{person.staged[part]}"' in found


async def test_an_explanation_has_no_link_to_a_job_of_another_queue(person: Person) -> None:
    queue = (await person.app.get(person.staged["waiting"])).queue
    async with person.with_key("read", queues=[queue]) as someone:
        found = why((await someone.get(f"/jobs/{person.staged['waiting']}")).html)
    assert found == "It is waiting for a job in another queue and a job in another queue."
    assert person.staged["running"] not in found


async def test_errors_have_their_traceback_and_history_its_words(person: Person) -> None:
    text = (await person.get(f"/jobs/{person.staged['dead 3']}")).text
    assert "TimeoutError bank: no answer within 30 s" in text
    assert "in _call_bank" in text
    assert "Attempt 1 failed (final attempt)" in text


async def test_a_secret_of_a_payload_is_on_no_page(person: Person) -> None:
    job = person.staged["secret"]
    assert (await person.app.get(job)).payload["api_key"] == "sk-canary-1234"
    shown = await person.get(f"/jobs/{job}")
    assert f'"api_key": "{MASK}"' in shown.text
    for path in (f"/jobs/{job}", f"/submit?type=embedding&from={job}", f"/submit?type=embedding&from={job}&mode=json"):
        page = await person.get(path)
        assert "a walk through the park" in page.html
        assert "canary" not in page.html


async def test_a_job_of_another_queue_looks_like_none(person: Person) -> None:
    async with person.with_key("read", "admin", queues=["mail"]) as someone:
        for path in ("", "/log", "/result", "/artifacts/map.png", "/results/clusters"):
            foreign = await someone.get(f"/jobs/{person.staged['report first']}{path}")
            none = await someone.get(f"/jobs/01890000-0000-7000-8000-000000000000{path}")
            assert foreign.status == none.status == 404
        assert (await someone.send(f"/jobs/{person.staged['pending']}/cancel", {})).status == 404
    assert await status(person, "pending") == "pending"


async def test_an_archived_job_says_what_is_gone(person: Person) -> None:
    await person.app.purge(older_than=0)
    text = (await person.get(f"/jobs/{person.staged['report first']}")).text
    assert "Removed when the job's retention period ended" in text
    assert "Run again" not in text and "Rerun" not in text


async def test_a_log_is_downloaded_as_text(person: Person) -> None:
    page = await person.get(f"/jobs/{person.staged['report first']}/log")
    assert page.headers["content-type"] == "text/plain; charset=utf-8"
    assert "drawing the map" in page.html
    assert (await person.get(f"/jobs/{person.staged['pending']}/log")).status == 404


async def test_a_large_result_is_a_download_and_not_on_the_page(person: Person) -> None:
    @person.app.job("large")
    async def large(payload: None) -> str:
        return "x" * 300_000

    job = await person.app.submit("large")
    async with person.app.worker(queues=["default"], job_types=["large"]):
        await job.result(timeout=20)
    page = await person.get(f"/jobs/{job.job_id}")
    assert "The result is 300 kB. Download" in page.text
    assert len(page.html) < 100_000
    assert (await person.get(f"/jobs/{job.job_id}/result")).html == f'"{"x" * 300_000}"'


# What can be done


@pytest.mark.parametrize(
    ("part", "offered"),
    [
        ("running", {"Cancel job", "Set"}),
        ("pending", {"Cancel job", "Set", "Reschedule"}),
        ("scheduled", {"Cancel job", "Set", "Reschedule"}),
        ("dead 0", {"Retry"}),
        ("report first", {"Run again"}),
        ("tree", {"Run again", "Rerun from here"}),
    ],
)
async def test_only_what_the_state_allows_is_offered(person: Person, part: str, offered: set[str]) -> None:
    every = {"Cancel job", "Set", "Reschedule", "Retry", "Run again", "Rerun from here"}
    page = await person.get(f"/jobs/{person.staged[part]}")
    buttons = {each.strip() for each in re.findall(r"<button[^>]*>([^<]*)</button>", page.html)}
    assert buttons & every == offered


async def test_only_what_the_key_may_do_is_offered_and_nothing_else_is_done(person: Person) -> None:
    async with person.with_key("read") as someone:
        page = await someone.get(f"/jobs/{person.staged['pending']}")
        assert "Cancel" not in page.text
        assert (await someone.send(f"/jobs/{person.staged['pending']}/cancel", {})).status == 403
    async with person.with_key("read", "submit") as someone:
        page = await someone.get(f"/jobs/{person.staged['pending']}")
        assert "Cancel job" in page.text
        assert "Priority" in page.text  # as a fact, without the form
        assert 'name="priority"' not in page.html
        for verb in ("priority", "time", "rerun"):
            assert (await someone.send(f"/jobs/{person.staged['pending']}/{verb}", {"priority": "1"})).status == 403
        assert "Job cancelled." in (await someone.send(f"/jobs/{person.staged['pending']}/cancel", {})).text
    assert (await person.app.history(person.staged["pending"]))[-1].by == "somebody"


async def test_another_like_it_is_offered_to_whom_the_form_is_there_for(person: Person) -> None:
    page = f"/jobs/{(await person.app.submit('gather', [1], queue='reports')).job_id}"
    like = "Submit a similar job"
    assert like in (await person.get(page)).text
    async with person.with_key("read", "submit", queues=["reports"]) as someone:
        assert like not in (await someone.get(page)).text  # its type is of another queue
        assert like in (await someone.get(f"/jobs/{person.staged['report first']}")).text
    async with person.with_key("read") as someone:
        assert like not in (await someone.get(page)).text


async def test_a_job_is_cancelled_with_a_reason_and_the_trail_has_it(person: Person) -> None:
    assert "Job cancelled." in await act(person, "running", "cancel", reason="wrong map", version="2")
    assert await status(person, "running") == "cancelled"
    [entry] = await person.trail()
    assert (entry.action, entry.target, entry.via) == ("job.cancel", person.staged["running"], "dashboard")
    assert (entry.before["status"], entry.after["status"]) == ("processing", "cancelled")


async def test_a_job_that_began_to_run_since_the_page_was_read_is_cancelled_all_the_same(person: Person) -> None:
    page = await person.get(f"/jobs/{person.staged['pending']}")
    assert "The job will not run." in page.text
    await claim(person.app, "embedding", "embeddings")
    assert await status(person, "pending") == "processing"
    fields = dict(
        re.findall(r'name="(\w+)" value="([^"]*)"', page.html.partition("/cancel")[2].partition("</form>")[0])
    )
    assert "Job cancelled." in await act(person, "pending", "cancel", **fields)
    assert await status(person, "pending") == "cancelled"


async def test_a_job_that_changed_since_the_page_was_read_is_not_touched(person: Person) -> None:
    said = await act(person, "dead 0", "retry", version="1")
    assert "is at version 3, not 1" in said
    assert await status(person, "dead 0") == "failed"
    [entry] = await person.trail()
    assert entry.outcome == "VersionConflict"


async def test_a_dead_letter_is_retried_from_its_page(person: Person) -> None:
    assert "Job retried." in await act(person, "dead 0", "retry", version="3")
    assert await status(person, "dead 0") == "pending"


@pytest.mark.parametrize(
    ("part", "action"), [("dead 0", "retry"), ("report first", "retry"), ("growing tree", None), ("dead 1", "rerun")]
)
async def test_a_job_runs_again_without_its_recorded_steps_if_asked(
    person: Person, part: str, action: str | None
) -> None:
    page = await person.get(f"/jobs/{person.staged[part]}")
    assert ("forget_steps" in page.html) is (action is not None)  # nothing to forget while it is active
    if action is not None:
        await act(person, part, action, forget_steps="1")
        last = (await person.app.get(person.staged[part])).history[-1]
        assert last.forget_steps


async def test_what_the_state_does_not_allow_is_said_on_the_page(person: Person) -> None:
    said = await act(person, "report first", "cancel")
    assert "it has already ended: there is nothing to cancel or change, but it can be retried" in said


async def test_another_priority_and_another_time(person: Person) -> None:
    assert "Priority set to 95." in await act(person, "pending", "priority", priority="95")
    assert "Job rescheduled." in await act(person, "pending", "time", run_at="2030-01-01T10:30")
    job = await person.app.get(person.staged["pending"])
    assert (job.priority, f"{job.scheduled_for:%Y-%m-%d %H:%M}") == (95, "2030-01-01 10:30")
    assert "0 to 100" in await act(person, "pending", "priority", priority="101")
    assert "use a date and time" in await act(person, "pending", "time", run_at="soon")
    await act(person, "pending", "time")
    assert await status(person, "pending") == "pending"


async def test_a_tree_is_cancelled_as_a_whole_only_by_who_sees_all_of_it(person: Person) -> None:
    async with person.with_key("read", "submit", queues=["default"]) as someone:
        path = f"/jobs/{person.staged['growing tree']}/cancel"
        assert (await someone.send(path, {"subtree": "1"})).status == 403
        assert await status(person, "growing tree") == "waiting"
    async with person.with_key("read", "submit") as someone:
        await someone.send(path, {"subtree": "1"})
    assert await person.app.find(root=person.staged["growing tree"], status="scheduled") == []


async def test_a_job_runs_again_from_a_stage_on(person: Person) -> None:
    gather = next(job for job in await person.app.find(root=person.staged["tree"]) if job.job_stage == "GATHER")
    page = await person.send(f"/jobs/{gather.job_id}/rerun", {})
    assert "Rerunning this job and everything after it." in page.text
    assert (await person.app.get(gather.job_id)).status == "pending"


# Files


async def test_a_file_is_sent_in_a_sandbox_with_a_safe_type(person: Person) -> None:
    job = person.staged["report first"]
    for name, kind in (
        ("map.png", "image/png"),
        ("report.html", "text/html; charset=utf-8"),
        ("notes.txt", "text/plain; charset=utf-8"),
        ("model.bin", "application/octet-stream"),
    ):
        file = await person.get(f"/jobs/{job}/artifacts/{name}")
        assert file.headers["content-type"] == kind
        assert file.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert "allow" not in file.headers["content-security-policy"]
        assert file.headers["x-content-type-options"] == "nosniff"
        assert file.headers["content-disposition"].startswith("attachment" if name == "model.bin" else "inline")
    kept = await person.get(f"/jobs/{job}/artifacts/map.png?download=1")
    assert kept.headers["content-disposition"].startswith("attachment")
    assert (await person.get(f"/jobs/{job}/artifacts/nothing.png")).status == 404
    assert (await person.get(f"/jobs/{job}/artifacts/..%2f..%2fjobs.db")).status == 404


async def test_a_file_that_is_lost_does_not_take_the_page_with_it(person: Person) -> None:
    job = (await person.app.find(job_type="report", status="completed", limit=1))[0]
    stored = next(file for file in await person.app.artifacts(job.job_id) if file.name == "notes.txt")
    path = Path(unquote(urlsplit(stored.uri).path))
    content = path.read_bytes()
    path.unlink()
    try:
        page = await person.get(f"/jobs/{job.job_id}")
        assert "The stored file cannot be read." in page.text
        assert (await person.get(f"/jobs/{job.job_id}/artifacts/notes.txt")).status == 503
    finally:
        path.write_bytes(content)


async def test_files_are_shown_by_their_kind(person: Person) -> None:
    page = await person.get(f"/jobs/{person.staged['report first']}")
    assert re.search(r'<img src="[^"]*/artifacts/map.png"', page.html)
    assert re.search(r'<iframe src="[^"]*/artifacts/report.html" title="report.html" sandbox ', page.html)
    assert "Three groups agree on most statements." in page.text
    assert "model.bin 102 kB Download" in page.text


# Rows


async def test_rows_are_browsed_page_by_page(person: Person) -> None:
    path: str | None = f"/jobs/{person.staged['tables']}/results/points"
    seen: list[str] = []
    while path is not None:
        page = await person.get(path)
        seen += re.findall(r"Statement (\d+):", page.html)
        following = re.search(r'href="/dashboard([^"]*)" rel="next"', page.html)
        path = following[1].replace("&amp;", "&") if following else None
    assert seen == [str(number) for number in range(240)]


async def test_a_table_that_is_not_there_is_told(person: Person) -> None:
    page = await person.get(f"/jobs/{person.staged['tables']}/results/nothing")
    assert page.status == 404
    assert "there is clusters, points" in page.text


# Trees


async def test_a_tree_is_a_picture_with_links_and_a_table_in_order(person: Person) -> None:
    page = await person.get(f"/trees/{person.staged['growing tree']}")
    boxes = re.findall(r'<a class="box status-(\w+)[^"]*" href="/dashboard/jobs/([0-9a-f-]{36})"', page.html)
    assert ("waiting", person.staged["growing tree"]) in boxes
    assert {"failed", "processing"} <= {each for each, _ in boxes}
    assert re.search(r"and \d+ more", page.text)
    rows = re.findall(r'data-open href="/dashboard/jobs/[^"]*">(\w+)</a>', page.html)
    assert rows == ["analysis", "EMBED", *["part"] * PARTS, "GATHER"]


async def test_any_job_of_a_tree_leads_to_the_whole(person: Person) -> None:
    child = (await person.app.find(root=person.staged["tree"], job_type="part", limit=1))[0]
    page = await person.get(f"/trees/{child.job_id}")
    assert f'href="/dashboard/jobs/{person.staged["tree"]}"' in page.html
    assert "Tree of analysis" in page.text


async def test_recent_trees_are_listed(person: Person) -> None:
    page = await person.get("/trees")
    for part in ("tree", "growing tree"):
        assert f'href="/dashboard/trees/{person.staged[part]}"' in page.html


async def test_one_large_tree_hides_no_other(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "RECENT_PART", 10)
    monkeypatch.setattr(subjects, "PARTS_MAX", 1)
    page = await person.get("/trees")
    seen: set[str] = set()
    for _ in range(100):
        seen |= set(re.findall(r'data-open href="/dashboard/trees/([0-9a-f-]{36})"', page.html))
        older = re.search(r'href="/dashboard(/trees\?after=[^"]+)" rel="next"', page.html)
        if older is None:
            break
        page = await person.get(unescape(older[1]))
    assert older is None
    assert {person.staged["tree"], person.staged["growing tree"]} <= seen


async def test_a_list_of_trees_reads_no_more_than_its_budget(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "RECENT_PART", 2)
    monkeypatch.setattr(subjects, "PARTS_MAX", 3)
    assert "Trees among the newest 6 jobs." in (await person.get("/trees")).text


async def test_runs_and_failures_are_told_apart(person: Person) -> None:
    text = (await person.get(f"/jobs/{person.staged['tree']}")).text
    assert "Last run time" in text
    assert "Failures none , limit" in text


async def test_of_a_tree_beyond_the_bound_a_part_is_drawn_with_the_job_asked_for(person: Person) -> None:
    last = sorted(job.job_id for job in await person.app.find(root=person.staged["tree"], job_type="part"))[-1]
    found = await tree.gather(person.app, local("dashboard"), await person.app.get(last), most=5)
    assert last in found.jobs
    assert person.staged["tree"] in found.jobs
    assert found.more == PARTS + 2 - (len(found.jobs) - 1)


async def test_a_part_of_a_tree_in_other_queues_is_not_shown(person: Person) -> None:
    async with person.with_key("read", queues=["default"]) as someone:
        page = await someone.get(f"/trees/{person.staged['tree']}")
        assert "EMBED" not in page.html
        assert "GATHER" in page.html


async def test_a_page_of_a_job_that_moves_on_shows_it(person: Person) -> None:
    app: Backstay = person.app
    path = f"/jobs/{person.staged['pending']}"
    assert "status-pending" in (await person.get(path)).html
    await app.resume_queue("mail")
    async with app.worker(queues=["embeddings"], job_types=["embedding"]):
        await asyncio.wait_for(app.result(person.staged["pending"]), 20)
    page = await person.get(path)
    assert "It completed at" in page.text
    assert '"model": "small"' in page.text
