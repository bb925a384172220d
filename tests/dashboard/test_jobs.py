"""The list of jobs: searched, paged, and changed many at once, with a question before and a cap."""

import re
from typing import Any

import pytest

from backstay import limits
from tests.dashboard.paged import Page, Person
from tests.dashboard.paged import person as person
from tests.dashboard.paged import staged_folder as staged_folder
from tests.dashboard.staged import LETTERS

_IDS = re.compile(r'name="job" value="([0-9a-f-]{36})"')
_NEXT = re.compile(r'href="/dashboard([^"]*)" rel="next"')


def listed(page: Page) -> list[str]:
    return _IDS.findall(page.html)


async def statuses(person: Person, *parts: str) -> list[str]:
    return [(await person.app.get(person.staged[part])).status.value for part in parts]


def letters(count: int = LETTERS) -> list[str]:
    return [f"dead {number}" for number in range(count)]


def ticked(person: Person, *parts: str, **fields: Any) -> list[tuple[str, Any]]:
    return [*(("job", person.staged[part]) for part in parts), *fields.items()]


# Searching


async def test_a_search_finds_what_fits_all_its_conditions_and_nothing_else(person: Person) -> None:
    page = await person.get("/jobs?q=status:failed+type:charge")
    assert len(listed(page)) == LETTERS + 2
    for job_id in listed(page):
        job = await person.app.get(job_id)
        assert (job.status.value, job.job_type) == ("failed", "charge")


async def test_a_chip_takes_its_condition_away_and_keeps_the_others(person: Person) -> None:
    page = await person.get('/jobs?q=status:failed+subject:"customer 7"')
    assert 'href="/dashboard/jobs?q=status%3Afailed"' in page.html  # without the subject
    assert "q=status%3Apending+subject%3A%22customer+7%22" in page.html  # another status beside it


async def test_a_short_id_as_the_pages_show_it_leads_to_its_job(person: Person) -> None:
    job_id = person.staged["dead 0"]
    for line in (job_id[-8:], f"…{job_id[-8:]}", job_id[-6:].upper()):
        found = await person.get(f"/jobs?q={line}")
        assert f"{job_id}</" in found.html, line


async def test_a_short_id_of_no_job_or_of_several_lists_nothing_and_says_what_to_enter(person: Person) -> None:
    for last in ("1", "2"):
        await person.app.submit("charge", {"cents": 1}, job_id=f"01990000-0000-7000-8000-{last * 5}abcdef1")
    several = await person.get("/jobs?q=abcdef1")
    assert "matches 2 jobs: " in several.text and "enter more of the ID" in several.text
    none = await person.get("/jobs?q=fffffffff")
    assert "matches the ID of no recent job" in none.text
    assert listed(several) == listed(none) == []


async def test_a_line_that_cannot_be_read_searches_nothing_and_says_what_to_write(person: Person) -> None:
    page = await person.get("/jobs?q=stauts:failed")
    assert "did you mean status:?" in page.text
    assert listed(page) == []


async def test_an_id_alone_opens_that_job(person: Person) -> None:
    job_id = person.staged["tables"]
    page = await person.get(f"/jobs?q={job_id.upper()}")
    assert page.url.endswith(f"/dashboard/jobs/{job_id}")


async def test_pages_follow_one_another_and_none_is_shown_twice(person: Person) -> None:
    seen: list[str] = []
    path: str | None = "/jobs"
    while path is not None:
        page = await person.get(path)
        seen += listed(page)
        following = _NEXT.search(page.html)
        path = following[1].replace("&amp;", "&") if following else None
    assert len(seen) == len(set(seen)) == sum((await person.app.counts()).values())


async def test_a_key_sees_only_jobs_of_its_queues(person: Person) -> None:
    async with person.with_key("read", queues=["mail", "rep*"]) as someone:
        page = await someone.get("/jobs")
        queues = {
            (await person.app.get(job_id)).queue for job_id in re.findall(r'data-key="([0-9a-f-]{36})"', page.html)
        }
        assert queues == {"mail", "reports"}
        assert "data-key" not in (await someone.get("/jobs?q=queue:embeddings")).html


# Many at once


async def test_a_bulk_change_asks_first_and_says_how_many(person: Person) -> None:
    page = await person.send("/jobs/bulk", ticked(person, "pending", "scheduled", "dead 0", action="cancel"))
    assert "Cancel 2 jobs?" in page.text
    assert "1 other selected job cannot be cancelled" in page.text
    assert await statuses(person, "pending", "scheduled", "dead 0") == ["pending", "scheduled", "failed"]
    assert await person.trail() == []


async def test_ticked_jobs_are_cancelled_and_the_trail_has_it_once(person: Person) -> None:
    fields = ticked(person, "pending", "scheduled", "running", action="cancel", sure="1", reason="not today")
    page = await person.send("/jobs/bulk", fields)
    assert "3 jobs cancelled." in page.text
    assert await statuses(person, "pending", "scheduled", "running") == ["cancelled"] * 3
    assert (await person.app.history(person.staged["pending"]))[-1].reason == "not today"
    [entry] = await person.trail()
    assert (entry.action, entry.target, entry.outcome) == ("jobs.bulk_cancel", "3 jobs", "ok")
    assert entry.after == {"done": 3, "refused": {}}


async def test_the_whole_of_a_search_is_sent_again(person: Person) -> None:
    line = "status:failed type:charge"
    asked = await person.send("/jobs/bulk", {"whole": "retry", "q": line})
    assert f"Retry {LETTERS + 2} jobs?" in asked.text
    page = await person.send("/jobs/bulk", {"whole": "retry", "q": line, "sure": "1"})
    assert f"{LETTERS + 2} jobs retried." in page.text
    assert set(await statuses(person, *letters())) == {"pending"}
    [entry] = await person.trail()
    assert entry.target.startswith("jobs status:failed job_type:charge created_until:20")


async def test_a_search_without_a_status_leaves_what_has_completed_alone(person: Person) -> None:
    await person.send("/jobs/bulk", {"whole": "retry", "q": "queue:reports", "sure": "1"})
    await person.send("/jobs/bulk", {"whole": "cancel", "q": "queue:reports", "sure": "1"})
    assert await statuses(person, "report first", "running") == ["completed", "cancelled"]


async def test_one_change_takes_no_more_than_the_cap_and_says_that_there_are_more(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BULK_MAX", 4)
    monkeypatch.setattr(limits, "BULK_STEP", 3)
    asked = await person.send("/jobs/bulk", {"whole": "retry", "q": "status:failed type:charge"})
    assert "Retry 4 jobs?" in asked.text
    assert "More than 4 jobs match." in asked.text
    page = await person.send("/jobs/bulk", {"whole": "retry", "q": "status:failed type:charge", "sure": "1"})
    assert "4 jobs retried. More jobs match: repeat to continue." in page.text
    assert len(await person.app.find(status="failed", job_type="charge")) == LETTERS + 2 - 4


async def test_what_is_submitted_after_the_question_is_not_touched(person: Person) -> None:
    asked = await person.send("/jobs/bulk", {"whole": "cancel", "q": "type:order"})
    assert "None of these jobs can be cancelled." in asked.text
    before = await person.app.submit("gather", [1], tags=["mine"])
    asked = await person.send("/jobs/bulk", {"whole": "cancel", "q": "tag:mine"})
    moment = re.search(r'name="asked_at" value="(\d+)"', asked.html)
    assert moment is not None
    after = await person.app.submit("gather", [2], tags=["mine"])
    await person.send("/jobs/bulk", {"whole": "cancel", "q": "tag:mine", "asked_at": moment[1], "sure": "1"})
    assert (await before.record()).status == "cancelled"
    assert (await after.record()).status == "pending"


async def test_what_cannot_be_done_is_told_job_by_job_and_stops_nothing(person: Person) -> None:
    blocked = await person.app.submit("gather", [1], depends_on=[person.staged["dead 0"]], on_dependency_failure="fail")
    page = await person.send(
        "/jobs/bulk", [("job", blocked.job_id), ("job", person.staged["dead 1"]), ("action", "retry"), ("sure", "1")]
    )
    assert "1 job retried." in page.text
    assert "it depends on jobs that have not completed: retry those first" in page.text
    assert await statuses(person, "dead 1") == ["pending"]
    [entry] = await person.trail()
    assert entry.after["done"] == 1


async def test_nothing_ticked_is_told_and_changes_nothing(person: Person) -> None:
    assert "Select some jobs first." in (await person.send("/jobs/bulk", {"action": "cancel", "sure": "1"})).text
    assert await person.trail() == []


async def test_who_may_only_read_has_no_boxes_and_changes_nothing(person: Person) -> None:
    async with person.with_key("read") as someone:
        assert listed(await someone.get("/jobs")) == []
        page = await someone.send("/jobs/bulk", ticked(person, "pending", action="cancel", sure="1"))
        assert page.status == 403
        assert await statuses(person, "pending") == ["pending"]


async def test_jobs_of_other_queues_are_beyond_a_bulk_change(person: Person) -> None:
    async with person.with_key("read", "submit", queues=["mail"]) as someone:
        fields = ticked(person, "pending", "scheduled", action="cancel", sure="1")
        assert "1 job cancelled." in (await someone.send("/jobs/bulk", fields)).text
        await someone.send("/jobs/bulk", {"whole": "cancel", "q": "", "sure": "1"})
    assert await statuses(person, "pending", "running", "scheduled") == ["pending", "processing", "cancelled"]


async def test_a_form_of_another_session_changes_nothing(person: Person) -> None:
    person.token = "f" * 64
    page = await person.send("/jobs/bulk", ticked(person, "pending", action="cancel", sure="1"))
    assert page.status == 403
    assert await statuses(person, "pending") == ["pending"]


async def test_many_jobs_run_again_without_their_recorded_steps_if_asked(person: Person) -> None:
    parts = letters(2)
    asked = await person.send("/jobs/bulk", ticked(person, *parts, action="retry"))
    assert 'name="forget_steps"' in asked.html
    await person.send("/jobs/bulk", ticked(person, *parts, action="retry", sure="1", forget_steps="1"))
    for part in parts:
        last = (await person.app.get(person.staged[part])).history[-1]
        assert last.forget_steps


async def test_a_cancel_has_no_steps_to_forget(person: Person) -> None:
    asked = await person.send("/jobs/bulk", ticked(person, "pending", action="cancel"))
    assert "forget_steps" not in asked.html
