"""Queues, workers, the audit trail and keys in the dashboard: what is shown, to whom, and what a form changes."""

import secrets
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstay.clock import MICROS
from backstay.core.records import BlockedLoop, ClaimRequest, WorkerRow
from backstay.core.workers import DAY
from backstay.dashboard import queues, workers
from backstay.testing import ManualClock
from tests.dashboard.plain_browser import Page, browsing
from tests.dashboard.plain_browser import patient as patient
from tests.server.gated import Served, served

EVIL = "<img src=x onerror=alert(1)>\"'</textarea>"


async def worker_of(server: Served, **fields: Any) -> WorkerRow:
    now = server.app.clock.now()
    row = {
        "worker_id": "w-1", "host": "anna", "pid": 7, "process_key": "", "version": "0.9", "queues": ("mail",),
        "job_types": ("letter",), "concurrency": 4, "started_at": now, "heartbeat_at": now,
    }  # fmt: skip
    found = WorkerRow(**{**row, **{name: value for name, value in fields.items() if value is not None}})
    await server.app.store.beat(found)
    return found


# Queues


async def test_a_queue_is_paused_and_resumed_by_someone_for_a_reason_and_the_trail_has_it(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit("letter", {"to": "anna"})
        page = await browser.get("/queues")
        page = await browser.send(page.form("/queues/mail/pause"), reason="the printer burns")
        assert "Queue mail paused." in page.text
        assert "by local: the printer burns" in page.text
        queue = next(each for each in await server.app.queues() if each.name == "mail")
        assert (queue.paused, queue.paused_by, queue.pause_reason) == (True, "local", "the printer burns")
        page = await browser.send(page.form("/queues/mail/resume"))
        assert "Queue mail resumed; 1 job pending." in page.text
        resumed, paused = await server.app.audit_trail()
        assert (paused.action, paused.target, paused.by, paused.via, paused.outcome) == (
            "queue.pause", "mail", "local", "dashboard", "ok",
        )  # fmt: skip
        assert paused.before["paused"] is False
        assert paused.after == {
            "paused": True, "paused_by": "local", "reason": "the printer burns", "until": None, "max_pending": None,
        }  # fmt: skip
        assert (resumed.action, resumed.before["paused"], resumed.after["paused"]) == ("queue.resume", True, False)


async def test_a_queue_and_a_type_are_paused_for_some_minutes(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit("letter", {"to": "anna"})
        page = await browser.send((await browser.get("/queues")).form("/queues/mail/pause"), **{"for": "90"})
        queue = next(each for each in await server.app.queues() if each.name == "mail")
        assert queue.paused_at is not None and queue.paused_until is not None
        lasts = queue.paused_until - queue.paused_at
        assert timedelta(minutes=89) < lasts <= timedelta(minutes=90)
        assert ", until " in page.text
        page = await browser.send((await browser.get("/limits")).form("/types/letter/pause"), **{"for": "soon"})
        assert "is not a number" in page.text
        page = await browser.send(page.form("/types/letter/pause"), reason="no paper")
        assert "Type letter paused." in page.text and "by local: no paper" in page.text
        page = await browser.send(page.form("/types/letter/resume"))
        assert "Type letter resumed." in page.text and await server.app.limits() == []


async def test_types_and_keys_are_limited_on_their_page(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit("letter", {"to": "anna"})
        page = await browser.get("/limits")
        page = await browser.send(page.form("/types/letter/limit"), concurrency="4", rate="100/m")
        assert "Limits of the type letter changed." in page.text
        assert "4 at once, 100/m" in page.text
        page = await browser.send(page.form("/types/letter/limit"), concurrency="many")
        assert "Not limited: " in page.text
        page = await browser.send(page.form("/limits/keys"), key=EVIL, rate="5/h")
        assert EVIL in page.text
        assert EVIL not in page.html
        assert [each.key for each in await server.app.limits()] == [EVIL, None]
        page = await browser.send(page.form("/types/letter/limit"), concurrency="", rate="")
        assert [each.job_type for each in await server.app.limits()] == [None]


async def test_a_queue_is_limited_and_a_limit_that_is_none_is_refused_with_words(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit("letter", {"to": "anna"})
        page = await browser.get("/queues")
        page = await browser.send(page.form("/queues/mail/limit"), max_pending="5")
        assert "Limit set to 5 pending jobs for queue mail." in page.text
        assert "1 of 5" in page.text
        for wrong in ("0", "-1", "1e3", "999999999", "٣", "x" * 50):
            page = await browser.send(page.form("/queues/mail/limit"), max_pending=wrong)
            assert "Limit not changed" in page.text
        page = await browser.send(page.form("/queues/mail/limit"), max_pending=" ")
        assert "Limit removed for queue mail." in page.text


async def test_a_queue_shows_what_waits_in_it_since_when_and_that_nobody_serves_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock=clock) as server, browsing(server) as browser:
        await server.app.submit_many([("letter", {"to": "anna"})] * 3)
        await server.app.submit("letter", {"to": "anna"}, delay=timedelta(hours=1))
        clock.advance(120)
        assert "mail active 3 2 min 0 1 0 0 none" in (await browser.get("/queues")).text
        await worker_of(server)
        assert "mail active 3 2 min 0 1 0 0 1" in (await browser.get("/queues")).text
        clock.advance(3600)
        assert "none" in (await browser.get("/queues")).text  # a worker that is silent serves nobody


async def test_who_may_only_read_sees_no_buttons_and_is_told_what_it_takes(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await browser.log_in(await server.key("read", "submit"))
        page = await browser.get("/queues")
        assert not [form for form in page.forms if "/queues/" in form.action]
        for change in ("pause", "resume", "limit"):
            form = replace(page.form("/theme"), action=f"/dashboard/queues/mail/{change}")
            answer = await browser.send(form)
            assert answer.status == 403
            assert "scope admin" in answer.text
        assert [entry.action for entry in await server.app.audit_trail()] == ["key.create"], "which is the test's own"


async def test_a_key_of_some_queues_sees_and_changes_those_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit("letter", {"to": "anna"})
        await server.app.submit("anything", {})
        await worker_of(server, worker_id="w-mail", host="mailhost", queues=("mail",))
        await worker_of(server, worker_id="w-other", host="otherhost", queues=("default",))
        await browser.log_in(await server.key("admin", queues=["mail*"]))
        page = await browser.get("/queues")
        assert "mail" in page.text and "default" not in page.text
        workers = await browser.get("/workers")
        assert "mailhost" in workers.text and "otherhost" not in workers.text
        refused = await browser.send(replace(page.form("/mail/pause"), action="/dashboard/queues/default/pause"))
        assert refused.status == 403
        assert "do not cover default" in refused.text
        assert not any(queue.paused for queue in await server.app.queues())
        for path in ("/keys", "/audit"):  # it must not make a key that reaches more, nor read of others
            assert (await browser.get(path)).status == 403


# Workers


async def test_a_worker_shows_when_it_was_heard_of_what_it_runs_and_how_it_did_in_a_day(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock=clock) as server, browsing(server) as browser:
        now = clock.now()
        await worker_of(
            server,
            started_at=now - 3 * DAY,
            ended=1_000,
            failed=30,
            busy_micros=2_100 * MICROS,
            marks=((now - DAY, 900, 20, 2_000 * MICROS),),
        )
        clock.advance(5)
        page = await browser.get("/workers")
        assert "anna worker:w-1 pid 7, version 0.9; mail alive 5 s ago 0 of 4 90 10 1 s 3 d" in page.text
        clock.advance(3600)
        page = await browser.get("/workers")
        assert "silent" in page.text


async def test_a_worker_whose_event_loop_is_blocked_says_for_how_long_and_leads_to_the_job(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock=clock) as server, browsing(server) as browser:
        job = await server.app.submit("letter", {"to": "anna"})
        await worker_of(server, blocked=BlockedLoop(clock.now(), "letter", job.job_id, "jobs.py:7 in letter"))
        clock.advance(5)
        page = await browser.get("/workers")
        assert f"blocked Event loop blocked for 5 s by letter job {job.job_id}, at jobs.py:7 in letter" in page.text
        assert f"/dashboard/jobs/{job.job_id}" in page.values("a", "href")


async def test_a_worker_that_runs_a_job_leads_to_it(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        job = await server.app.submit("letter", {"to": "anna"})
        row = await worker_of(server, queues=("mail", "default"))
        await _claimed(server, row.worker_id)
        page = await browser.get("/workers")
        assert "1 of 4 letter running" in page.text
        assert f"/dashboard/jobs/{job.job_id}" in page.values("a", "href")
        await browser.log_in(await server.key("read", queues=["default"]))
        page = await browser.get("/workers")
        assert "0 of 4" in page.text and job.job_id not in page.html


async def test_many_workers_come_page_by_page_and_by_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LIST_LIMIT", 2)
    async with served(tmp_path) as server, browsing(server) as browser:
        long_ago = server.app.clock.now() - DAY
        for number in range(4):
            await worker_of(server, worker_id=f"w-{number}", heartbeat_at=long_ago if number == 1 else None)
        await worker_of(server, worker_id="w-4", queues=("secret",))

        def shown(page: Page) -> list[str]:
            return page.values("tr", "data-key")

        first = await browser.get("/workers")
        assert shown(first) == ["w-0", "w-2"] and "all 5 idle 4 silent 1" in first.text
        second = await browser.get("/workers?start=2")
        assert shown(second) == ["w-3", "w-4"]
        assert shown(await browser.get("/workers?start=4")) == ["w-1"], "silent workers come last"
        assert "/dashboard/workers?start=4" in second.values("a", "href")
        assert shown(await browser.get("/workers?state=silent")) == ["w-1"]
        assert shown(await browser.get("/workers?state=idle&start=2")) == ["w-3", "w-4"]
        for wrong in ("start=-1", "start=x", "start=٣", "start=99999999999"):
            assert (await browser.get(f"/workers?{wrong}")).status == 200
        await browser.log_in(await server.key("read", queues=["mail"]))
        assert "all 4 idle 3 silent 1" in (await browser.get("/workers")).text
        assert shown(await browser.get("/workers?start=2")) == ["w-3", "w-1"]


async def test_many_queues_come_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "LIST_LIMIT", 2)
    async with served(tmp_path) as server, browsing(server) as browser:
        for name in ("a", "b", "c"):
            await server.app.limit_queue(name, 5)
        names = []
        path = "/queues"
        for _ in range(4):
            page = await browser.get(path)
            names += page.values("tr", "data-key")
            following = [each for each in page.values("a", "href") if "/queues?after=" in each]
            if not following:
                break
            path = following[0].removeprefix("/dashboard")
        assert names[:3] == ["a", "b", "c"] and names == sorted(names) and len(names) == len(set(names)) > 3


async def test_what_a_busy_worker_runs_is_counted_now_and_not_as_its_heartbeat_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "RUNNING_READ", 2)
    monkeypatch.setattr(workers, "RUNNING_SHOWN", 2)
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit_many([("letter", {"to": "anna"})] * 4)
        for name, jobs in (("w-1", 3), ("w-2", 1)):
            await worker_of(server, worker_id=name, running=("an-old-one",) * 9)
            for _ in range(jobs):
                await _claimed(server, name)
        page = await browser.get("/workers")
        assert "more than 2 of 4" in page.text and "1 of 4 letter running" in page.text
        assert "9 of 4" not in page.text


async def _claimed(server: Served, worker_id: str) -> None:
    request = ClaimRequest(worker_id, "1", ("mail",), {"letter": 1}, 1, 60 * MICROS, secrets.token_hex(16))
    assert len(await server.app.store.claim(request, server.app.clock.now())) == 1


# The trail


async def test_the_trail_is_read_page_by_page_with_what_changed(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        page = await browser.get("/audit")
        assert "No changes yet" in page.text
        for number in range(60):
            async with server.app.audited("queue.limit", f"q{number}", by="anna", via="cli", before={"n": 1}) as entry:
                entry.after = {"n": number}
        page = await browser.get("/audit")
        assert "anna cli queue.limit q59 n 1 → 59 succeeded" in page.text
        assert "q9 " not in page.text
        older = next(href for href in page.values("a", "href") if "after=" in href)
        page = await browser.get(older.removeprefix("/dashboard"))
        assert "q0 n 1 → 0" in page.text
        assert "/dashboard/audit" in page.values("a", "href")
        assert (await browser.get("/audit?after=nonsense")).status in (400, 422)


async def test_an_entry_has_the_same_fields_before_and_after_and_shows_what_differs(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        assert (await server.client.post("/queues/mail/pause", json={"reason": "moving"})).status_code == 200
        assert (await server.client.post("/queues/mail/resume")).status_code == 200
        resumed, paused = await server.app.audit_trail()
        assert paused.before.keys() == paused.after.keys() == resumed.before.keys() == resumed.after.keys()
        await server.client.post("/queues/mail/limit", json={"max_pending": 5})
        text = (await browser.get("/audit")).text
        assert "queue.limit mail max pending 5 succeeded" in text
        assert "queue.resume mail paused yes → no paused by local → none reason moving → none succeeded" in text
        assert "queue.pause mail paused no → yes paused by local reason moving succeeded" in text
        assert "name" not in text.partition("Outcome")[2].partition("Close")[0]


async def test_times_in_the_trail_are_told_as_times_and_long_entries_are_folded(tmp_path: Path) -> None:
    async with served(tmp_path, clock=(clock := ManualClock())) as server, browsing(server) as browser:
        made = await server.app.create_key("boss", ["admin"])
        await browser.log_in({"X-API-Key": made.text})
        await browser.send((await browser.get("/keys")).form("/keys"), name="ci", scope="read", days="7")
        page = await browser.get("/audit")
        assert "expires at in 7 d" in page.text and str(clock.now())[:7] not in page.text
        async with server.app.audited("job.patch", "x", by="anna", via="cli", before={"a": 1}) as entry:
            entry.after = {"a": "long " * 100}
        page = await browser.get("/audit")
        assert page.elements[[tag for tag, _ in page.elements].index("tbody") :].count(("summary", {})) == 1
        assert "1 field a 1 → long long" in page.text


async def test_a_change_that_failed_or_was_never_heard_of_again_is_shown_as_such(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        with pytest.raises(ZeroDivisionError):
            async with server.app.audited("job.cancel", "x", by="anna", via="http"):
                raise ZeroDivisionError
        page = await browser.get("/audit")
        assert "job.cancel x" in page.text
        assert page.text.rstrip().count("Error") == 1


# Keys


async def test_a_key_is_shown_once_and_works_until_it_is_revoked(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        admin = await server.key("admin")
        await browser.log_in(admin)
        page = await browser.get("/keys")
        page = await browser.send(
            page.form("/keys"), name="billing", scope=["read", "submit"], queues="mail*, x", days="7"
        )
        shown = next(value for value in page.values("input", "value") if value.startswith("bs_"))
        assert page.response.headers["cache-control"] == "no-store"
        again = await browser.get("/keys")
        assert shown not in again.html
        key = next(each for each in await server.app.api_keys() if each.name == "billing")
        assert (key.scopes, key.queues, key.created_by) == (("read", "submit"), ("mail*", "x"), "tester")
        assert key.expires_at is not None and key.expires_at - key.created_at == timedelta(days=7)
        assert (await browser.client.get("/jobs?queue=mail", headers={"X-API-Key": shown})).status_code == 200
        page = await browser.send(again.form(f"/keys/{key.key_id}/revoke"))
        assert "Key billing revoked." in page.text
        assert (await browser.client.get("/jobs?queue=mail", headers={"X-API-Key": shown})).status_code == 401
        page = await browser.send(page.form(f"/keys/{key.key_id}/remove"))
        assert "billing" not in page.text
        trail = await server.app.audit_trail()
        assert [(entry.action, entry.via, entry.by) for entry in trail[:-1]] == [
            (action, "dashboard", "tester") for action in ("key.remove", "key.revoke", "key.create")
        ]
        assert (trail[-1].action, trail[-1].via) == ("key.create", "python"), "the key of the tester"
        assert all(shown.split("_")[3] not in repr(entry) for entry in trail)


async def test_the_first_key_is_an_admin_s_so_that_nobody_is_locked_out(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        form = (await browser.get("/keys")).form("/keys")
        assert ("scope", "admin") in form.fields and ("scope", "read") not in form.fields
        for scopes, queues in ((["read", "submit", "work"], ""), (["admin"], "mail*")):
            page = await browser.send(form, name="ci", scope=scopes, queues=queues)
            assert page.status == 422
            assert "the first key needs the admin scope for all queues:" in page.text
        assert await server.app.api_keys() == [] and list(await server.app.audit_trail()) == []
        page = await browser.send(form, name="boss")
        text = next(value for value in page.values("input", "value") if value.startswith("bs_"))
        await browser.log_in({"X-API-Key": text})
        form = (await browser.get("/keys")).form("/keys")
        assert ("scope", "read") in form.fields and ("scope", "admin") not in form.fields
        assert (await browser.send(form, name="ci")).status == 200


async def test_the_last_admin_s_key_is_not_revoked_from_here_so_that_nobody_is_locked_out(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await browser.log_in(await server.key("admin"))
        await server.key("read")
        last = next(each for each in await server.app.api_keys() if "admin" in each.scopes)
        page = await browser.get("/keys")
        assert page.text.count("This is the last key that can create others") == 1
        form = replace(page.form("/keys"), action=f"/dashboard/keys/{last.key_id}/revoke")
        page = await browser.send(form)
        assert "Key not revoked. This is the last key" in page.text
        assert {each.state for each in await server.app.api_keys()} == {"live"}
        await server.key("admin")
        page = await browser.get("/keys")
        assert "This is the last key that can create others" not in page.text
        await browser.send(page.form(f"/keys/{last.key_id}/revoke"))
        assert (await browser.get("/keys")).status == 303


async def test_a_session_ends_with_its_key(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as admin, browsing(server) as other:
        await admin.log_in(await server.key("admin"))
        made = await server.app.create_key("reader", ["read"])
        await other.log_in({"X-API-Key": made.text})
        assert (await other.get("/queues")).status == 200
        await admin.send((await admin.get("/keys")).form(f"/keys/{made.key.key_id}/revoke"))
        assert (await other.get("/queues")).status == 303


async def test_a_key_that_cannot_be_made_keeps_what_was_filled_in(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        form = (await browser.get("/keys")).form("/keys")
        page = await browser.send(form, name=EVIL, scope=[], queues="mail*")
        assert page.status == 422
        assert "Key not created" in page.text
        assert EVIL in page.values("input", "value") and EVIL not in page.html
        for days in ("0", "-3", "x", "9" * 9):
            assert (await browser.send(form, name="a", scope=["admin"], days=days)).status == 422
        assert (await browser.send(form, name="a", scope=["root"])).status == 422
        assert await server.app.api_keys() == []


async def test_a_key_that_there_is_not_cannot_be_revoked(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        form = (await browser.get("/keys")).form("/keys")
        assert (await browser.send(replace(form, action="/dashboard/keys/AAAAAAAAAAAA/revoke"))).status == 404


# What others wrote


async def test_what_others_wrote_is_text_on_every_page(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit("letter", {"to": "anna"})
        await server.app.pause_queue("mail", by=EVIL[:20], reason=EVIL)
        await server.app.create_key(EVIL, ["admin"])
        await worker_of(server, host=EVIL, version=EVIL, worker_id=EVIL)
        async with server.app.audited(
            "queue.pause", EVIL, by=EVIL, via="http", before={EVIL: EVIL}, remote=EVIL
        ) as entry:
            entry.after = {EVIL: [EVIL], "x": None}
        await browser.log_in(await server.key("admin"))
        for path in ("", "/queues", "/workers", "/audit", "/keys"):
            page = await browser.get(path)
            assert page.status == 200
            assert "onerror" in page.text or path == ""
            assert not [attributes for tag, attributes in page.elements if tag == "img"], path


# Engines


async def test_the_pages_are_the_same_on_postgresql(postgres: Any) -> None:
    await walk(postgres.url(schema=f"pages_{secrets.token_hex(4)}"))


async def test_the_pages_are_the_same_on_dynamodb(dynamodb: Any) -> None:
    await walk(dynamodb.url(f"pages_{secrets.token_hex(4)}"))


async def walk(url: str) -> None:
    async with served(url) as server, browsing(server) as browser:
        await server.app.submit_many([("letter", {"to": "anna"})] * 2)
        job = await server.app.submit("anything", {})
        async with server.app.worker(queues=["default"], job_types=["anything"]):
            await job.result(timeout=30)
        page = await browser.get()
        assert "completed 1" in page.text and "pending 2" in page.text
        page = await browser.get("/queues")
        page = await browser.send(page.form("/queues/mail/pause"), reason="why")
        assert "by local: why" in page.text
        page = await browser.send((await browser.get("/keys")).form("/keys"), name="first", scope=["admin"])
        shown = next(value for value in page.values("input", "value") if value.startswith("bs_"))
        await browser.log_in({"X-API-Key": shown})
        assert (await browser.get("/workers")).status == 200
        page = await browser.get("/audit")
        assert "key.create" in page.text and "queue.pause mail" in page.text
        await browser.send(page.form("/logout"))
        assert (await browser.get("/audit")).status == 303
