"""Dead letters, schedules and subjects in the dashboard."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import msgspec
import pytest

from backstay.dashboard import subjects
from tests.dashboard.paged import Person
from tests.dashboard.paged import person as person
from tests.dashboard.paged import staged_folder as staged_folder
from tests.dashboard.staged import CONVERSATION, LETTERS

GROUP = {"type": "charge", "error": "TimeoutError"}


async def count(person: Person, **conditions: Any) -> int:
    return len(await person.app.find(limit=100, **conditions))


# Dead letters


async def test_dead_letters_are_grouped_by_type_and_error(person: Person) -> None:
    text = (await person.get("/dead")).text
    assert f"{LETTERS} charge TimeoutError" in text
    assert "2 charge Discard" in text
    assert "2 part ValueError" in text
    assert "TimeoutError: " not in text  # its type has a column of its own


async def test_a_group_shows_its_members_and_when_it_began(person: Person) -> None:
    page = await person.get("/dead/group?type=charge&error=TimeoutError")
    shown = set(re.findall(r'data-open href="/dashboard/jobs/([0-9a-f-]{36})"', page.html))
    assert shown == {person.staged[f"dead {number}"] for number in range(LETTERS)}
    assert "First failed" in page.text
    assert "No dead letters of this type and error." in (await person.get("/dead/group?type=charge&error=<b>")).text


async def test_a_group_is_sent_again_and_no_other(person: Person) -> None:
    page = await person.send("/dead/retry", GROUP)
    assert f"{LETTERS} dead letters retried." in page.text
    assert await count(person, job_type="charge", status="pending") == LETTERS
    assert await count(person, job_type="charge", status="failed") == 2
    [entry] = await person.trail()
    assert (entry.action, entry.target, entry.after) == ("dead.retry", "charge TimeoutError", {"retried": LETTERS})


async def test_a_group_is_sent_again_without_its_recorded_steps_if_asked(person: Person) -> None:
    assert 'name="forget_steps"' in (await person.get("/dead")).html
    assert 'name="forget_steps"' in (await person.get("/dead/group?type=charge&error=TimeoutError")).html
    await person.send("/dead/retry", {**GROUP, "forget_steps": "1"})
    [entry] = await person.trail()
    assert entry.after == {"retried": LETTERS, "forget_steps": True}


async def test_a_key_sees_and_sends_again_only_dead_letters_of_its_queues(person: Person) -> None:
    async with person.with_key("admin", queues=["def*"]) as someone:
        text = (await someone.get("/dead")).text
        assert "2 part ValueError" in text
        assert "charge" not in text
        await someone.send("/dead/retry", GROUP)
        assert await count(person, job_type="charge", status="failed") == LETTERS + 2
        assert (
            "2 dead letters retried."
            in (await someone.send("/dead/retry", {"type": "part", "error": "ValueError"})).text
        )


async def test_sending_a_group_again_takes_an_admin(person: Person) -> None:
    async with person.with_key("read", "submit") as someone:
        assert "<button" not in re.sub(r"<aside.*?</aside>|<header.*?</header>|<dialog.*?</dialog>", "",
            (await someone.get("/dead")).html, flags=re.DOTALL)  # fmt: skip
        assert (await someone.send("/dead/retry", GROUP)).status == 403
    assert await count(person, job_type="charge", status="failed") == LETTERS + 2


# Schedules


async def test_schedules_say_their_rule_in_words_and_when_they_come(person: Person) -> None:
    text = (await person.get("/schedules")).text
    assert "nightly-report Monday to Friday at 03:30 30 3 * * 1-5 Europe/Berlin" in text
    assert "Every 30 seconds" in text
    assert "monthly-mail paused On day 1 of every month at 09:00" in text


async def test_a_schedule_is_paused_resumed_run_and_removed(person: Person) -> None:
    async def schedule(name: str) -> Any:
        return next((each for each in await person.app.schedules() if each.name == name), None)

    await person.send("/schedules/heartbeat/pause")
    assert (await schedule("heartbeat")).paused_by == "local"
    await person.send("/schedules/heartbeat/resume")
    assert not (await schedule("heartbeat")).paused
    page = await person.send("/schedules/nightly-report/run")
    job = await person.app.get(page.url.rpartition("/")[2])
    assert (job.job_type, job.schedule, job.payload) == ("report", "nightly-report", {"name": "nightly"})
    assert "Schedule heartbeat removed." in (await person.send("/schedules/heartbeat/remove")).text
    assert await schedule("heartbeat") is None
    actions = [entry.action for entry in await person.trail()]
    assert actions == ["schedule.delete", "schedule.run", "schedule.resume", "schedule.pause"]


async def test_schedules_show_their_origin_overlap_and_skipped_ticks(person: Person) -> None:
    [stored] = await person.app.store.schedules(["heartbeat"])
    changes = {"overlap": "skip", "jitter_micros": 5_000_000, "declared_by": "reports:app", "skipped": 3}
    edit = msgspec.structs.replace(stored, **changes, skipped_at=stored.created_at, version=stored.version + 1)
    await person.app.store.save_schedule(edit, stored.version)

    text = (await person.get("/schedules")).text

    assert "heartbeat in the code of reports:app" in text
    assert "A tick is skipped while the last job is active. Jobs are due up to 5.0 s after their tick." in text


async def test_past_ticks_of_a_schedule_get_their_jobs(person: Person) -> None:
    now = datetime.now(UTC)
    since = (now - timedelta(seconds=90)).strftime("%Y-%m-%dT%H:%M:%S")

    page = await person.send("/schedules/heartbeat/backfill", {"from": since})

    assert "3 jobs submitted for 3 ticks of heartbeat." in page.text
    assert "Give the first time of the span" in (await person.send("/schedules/heartbeat/backfill")).text


async def test_schedules_of_other_queues_are_neither_shown_nor_changed(person: Person) -> None:
    async with person.with_key("admin", queues=["reports"]) as someone:
        text = (await someone.get("/schedules")).text
        assert "nightly-report" in text
        assert "heartbeat" not in text
        assert (await someone.send("/schedules/heartbeat/remove")).status == 404
        assert (await someone.send("/schedules/nightly-report/explode")).status == 404
    async with person.with_key("read", "submit") as someone:
        assert (await someone.send("/schedules/heartbeat/remove")).status == 403
    assert len(await person.app.schedules()) == 3


# Subjects


async def test_recent_subjects_are_listed(person: Person) -> None:
    text = (await person.get("/subjects")).text
    assert CONVERSATION in text
    assert "customer 7" in text


async def test_subjects_of_older_jobs_are_a_click_away_and_their_counts_say_that_they_are_not_whole(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "at least" not in (await person.get("/subjects")).text
    monkeypatch.setattr(subjects, "RECENT_PART", 10)
    monkeypatch.setattr(subjects, "PARTS_MAX", 1)
    page = await person.get("/subjects")
    seen: set[str] = set()
    for _ in range(100):
        seen |= set(re.findall(r'<tr data-key="([^"]+)">', page.html))
        older = re.search(r'href="/dashboard(/subjects\?after=[^"]+)" rel="next"', page.html)
        if older is None:
            break
        page = await person.get(unescape(older[1]))
    assert older is None and "at least" in page.text
    assert {CONVERSATION, "customer 7"} <= seen


async def test_of_a_subject_the_latest_of_each_type_is_marked(person: Person) -> None:
    page = await person.get(f"/subjects?subject={CONVERSATION}")
    marked = re.findall(r"job=([0-9a-f-]{36})[^<]*<svg(?:(?!</li>).)*?>latest<", page.html, re.DOTALL)
    assert set(marked) == {person.staged[part] for part in ("report second", "tables", "secret", "tree")}


async def test_a_picked_job_shows_its_result_files_and_tables(person: Person) -> None:
    page = await person.get(f"/subjects?subject={CONVERSATION}&job={person.staged['report first']}")
    assert "What the room agrees on" in page.text
    assert re.search(r'<img src="[^"]*/artifacts/map.png"', page.html)
    tables = await person.get(f"/subjects?subject={CONVERSATION}&job={person.staged['tables']}")
    assert f"/dashboard/jobs/{person.staged['tables']}/results/points" in tables.html


async def test_children_are_shown_where_they_are_asked_for(person: Person) -> None:
    without = await person.get(f"/subjects?subject={CONVERSATION}")
    assert without.html.count('class="pick-job"') == 7
    whole = await person.get(f"/subjects?subject={CONVERSATION}&children=1")
    assert whole.html.count('class="pick-job"') == 30


async def test_a_job_about_something_else_cannot_be_picked(person: Person) -> None:
    assert (await person.get(f"/subjects?subject={CONVERSATION}&job={person.staged['dead 0']}")).status == 404
    assert "No jobs about nothing." in (await person.get("/subjects?subject=nothing")).text


async def test_a_subject_of_other_queues_is_about_nothing(person: Person) -> None:
    async with person.with_key("read", queues=["mail"]) as someone:
        assert "No jobs about" in (await someone.get(f"/subjects?subject={CONVERSATION}")).text
        assert CONVERSATION not in (await someone.get("/subjects")).text
