"""Running it over HTTP: queues, schedules, dead letters, figures, the audit trail."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backstay import JobFailed
from backstay.clock import MICROS
from backstay.core.records import WorkerRow
from backstay.core.workers import DAY, HOUR, last_day, marked
from backstay.testing import ManualClock
from backstay.testing.conformance.factories import a_worker
from tests.server.routes_fixtures import stage as stage
from tests.server.routes_stage import Stage, staged, staged_app
from tests.support.eventually import eventually
from tests.support.rows_read import RowsRead


async def actions(stage: Stage) -> list[tuple[str, str]]:
    trail = (await stage.get("/audit"))["items"]
    return [(each["action"], each["target"]) for each in reversed(trail)]


async def pages(stage: Stage, path: str, name: str, limit: int, **how: Any) -> list[list[str]]:
    """The names on each page of a list."""
    found, after = [], {}
    while True:
        answer = await stage.ask("GET", path, params={"limit": limit, **after}, **how)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found.append([each[name] for each in page["items"]])
        if page["next"] is None:
            return found
        after = {"after": page["next"]}


async def test_workers_and_schedules_are_listed_page_by_page(stage: Stage) -> None:
    for number in range(5):
        await stage.app.schedule(f"daily-{number}", "@daily", "letter", {"to": "x"})
        await stage.app.store.beat(a_worker(f"w-{number}", queues=("mail",)))

    assert await pages(stage, "/schedules", "name", 2) == [
        ["daily-0", "daily-1"], ["daily-2", "daily-3"], ["daily-4"],
    ]  # fmt: skip
    assert await pages(stage, "/workers", "worker_id", 2) == [["w-0", "w-1"], ["w-2", "w-3"], ["w-4"]]
    assert await pages(stage, "/workers", "worker_id", 5) == [[f"w-{number}" for number in range(5)]]
    for path in ("/schedules", "/workers"):
        assert (await stage.ask("GET", path, params={"limit": 0})).status_code == 422
        assert (await stage.ask("GET", path, params={"after": "a b"})).status_code == 422


async def test_a_key_of_some_queues_gets_all_pages_with_what_it_sees(stage: Stage) -> None:
    for number in range(9):
        queue = "mail" if number % 3 == 0 else "secret"
        await stage.app.schedule(f"daily-{number}", "@daily", "letter", {"to": "x"}, queue=queue)
        await stage.app.store.beat(a_worker(f"w-{number}", queues=(queue,)))
    key = await stage.key("read", queues=("mail",))

    schedules = await pages(stage, "/schedules", "name", 2, headers=key)
    workers = await pages(stage, "/workers", "worker_id", 2, headers=key)

    assert schedules == [["daily-0", "daily-3"], ["daily-6"]]
    assert [each for page in workers for each in page] == ["w-0", "w-3", "w-6"]


async def test_one_schedule_is_found_without_reading_all(stage: Stage) -> None:
    for number in range(5):
        await stage.app.schedule(f"daily-{number}", "@daily", "letter", {"to": "x"})
    store = RowsRead.of(stage.app)

    assert (await stage.get("/schedules/daily-3"))["name"] == "daily-3"
    assert (await stage.ask("POST", "/schedules/daily-3/pause")).status_code == 200
    assert (await stage.ask("GET", "/schedules/none")).status_code == 404
    assert store.schedules_read < 10


# Queues


async def test_queues_show_what_waits_in_them(stage: Stage) -> None:
    await stage.submit("letter", payload={"to": "x"})
    await stage.submit("letter", payload={"to": "x"}, delay=60)
    found = {queue["name"]: queue for queue in (await stage.get("/queues"))["items"]}
    assert (found["mail"]["pending"], found["mail"]["scheduled"], found["mail"]["paused"]) == (1, 1, False)
    assert found["default"]["pending"] == 0


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(stage: Stage) -> None:
    job = await stage.submit("letter", payload={"to": "x"})
    paused = await stage.ask("POST", "/queues/mail/pause", json={"reason": "mail server is down"})
    assert (paused.json()["paused"], paused.json()["paused_by"]) == (True, "local")
    explained = await stage.get(f"/jobs/{job['job_id']}/explain")
    assert explained["reason"] in ("queue_paused", "no_worker")
    resumed = await stage.ask("POST", "/queues/mail/resume")
    assert resumed.json()["paused"] is False
    limited = await stage.ask("POST", "/queues/mail/limit", json={"max_pending": 5})
    assert limited.json()["max_pending"] == 5
    assert (await stage.ask("POST", "/queues/mail/limit", json={"max_pending": None})).json()["max_pending"] is None

    assert await actions(stage) == [
        ("queue.pause", "mail"),
        ("queue.resume", "mail"),
        ("queue.limit", "mail"),
        ("queue.limit", "mail"),
    ]
    pause = (await stage.get("/audit"))["items"][-1]
    said = {"paused": True, "paused_by": "local", "reason": "mail server is down", "until": None, "max_pending": None}
    assert pause["after"] == said
    resume = (await stage.get("/audit"))["items"][-2]
    assert resume["before"] == said
    nothing = {"paused": False, "paused_by": None, "reason": None, "until": None, "max_pending": None}
    assert resume["after"] == nothing


async def test_a_pause_says_until_when_it_lasts(stage: Stage) -> None:
    until = "2999-01-01T09:00:00Z"
    assert (
        await stage.ask("POST", "/queues/mail/pause", json={"until": until})
    ).status_code == 422  # ten years at most
    for path in ("/queues/mail/pause", "/types/letter/pause"):
        soon = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
        paused = await stage.ask("POST", path, json={"until": soon.isoformat()})
        assert datetime.fromisoformat(paused.json()["paused_until"]) == soon


async def test_a_type_and_a_key_are_limited_and_freed(stage: Stage) -> None:
    limited = await stage.ask("PUT", "/limits/types/letter", json={"concurrency": 4, "rate": "100/m"})
    assert (limited.json()["concurrency"], limited.json()["rate"], limited.json()["set_by"]) == (4, "100/m", "local")
    key = {"key": "customer: 7/8"}
    assert (await stage.ask("PUT", "/limits/keys", params=key, json={"concurrency": 1})).json()["key"] == key["key"]
    assert [each["rate"] for each in (await stage.get("/limits"))["items"]] == [None, "100/m"]
    assert (await stage.ask("DELETE", "/limits/types/letter")).json()["concurrency"] is None
    assert (await stage.ask("DELETE", "/limits/keys", params=key)).status_code == 200
    assert (await stage.get("/limits"))["items"] == []
    for wrong in ({"concurrency": 0}, {"rate": "fast"}, {"most": 1}):
        assert (await stage.ask("PUT", "/limits/types/letter", json=wrong)).status_code == 422, wrong
    assert (await stage.ask("PUT", "/limits/types/lettre", json={})).status_code == 404
    assert (await stage.ask("PUT", "/limits/keys", json={"concurrency": 1})).status_code == 422
    assert [action for action, _ in await actions(stage)] == ["type.limit", "key.limit", "type.limit", "key.limit"]


async def test_a_paused_type_is_listed_until_it_is_resumed(stage: Stage) -> None:
    job = await stage.app.submit("letter", {"to": "anna"})
    paused = await stage.ask("POST", "/types/letter/pause", json={"reason": "no paper"})
    assert (paused.json()["job_type"], paused.json()["paused"], paused.json()["pause_reason"]) == (
        "letter", True, "no paper",
    )  # fmt: skip
    assert [each["job_type"] for each in (await stage.get("/limits"))["items"]] == ["letter"]
    explained = await stage.get(f"/jobs/{job.job_id}/explain")
    assert (explained["reason"], explained["params"]["message"]) == ("type_paused", "no paper")
    assert (await stage.ask("POST", "/types/letter/resume")).json()["paused"] is False
    assert (await stage.get("/limits"))["items"] == []
    assert (await stage.ask("POST", "/types/lettre/pause")).status_code == 404
    assert [action for action, _ in await actions(stage)] == ["type.pause", "type.resume"]


@pytest.mark.parametrize("body", [{}, {"max_pending": 0}, {"max_pending": "5"}])
async def test_a_limit_that_cannot_be_meant_is_refused(stage: Stage, body: Any) -> None:
    assert (await stage.ask("POST", "/queues/mail/limit", json=body)).status_code == 422


async def test_a_change_of_a_queue_that_nothing_uses_says_so(stage: Stage) -> None:
    assert (await stage.ask("POST", "/queues/mail/pause")).json()["note"] is None
    paused = (await stage.ask("POST", "/queues/mial/pause")).json()
    assert (paused["paused"], paused["note"]) == (
        True,
        "no job, handler or worker uses the queue mial yet (did you mean mail?)",
    )


async def test_a_name_that_cannot_be_a_queue_is_refused(stage: Stage) -> None:
    assert (await stage.ask("POST", "/queues/a b/pause")).status_code == 422


# Schedules


async def test_a_schedule_is_added_changed_paused_run_and_removed(stage: Stage) -> None:
    body = {"cron": "30 3 * * *", "job_type": "letter", "payload": {"to": "x"}, "priority": 80}
    added = await stage.ask("PUT", "/schedules/nightly", json=body)
    same = await stage.ask("PUT", "/schedules/nightly", json=body)
    changed = await stage.ask("PUT", "/schedules/nightly", json=body | {"timezone": "Europe/Berlin"})
    assert [each.status_code for each in (added, same, changed)] == [201, 200, 200]
    assert [each.json()["version"] for each in (added, same, changed)] == [1, 1, 2]
    assert (added.json()["queue"], added.json()["priority"], added.json()["missed"]) == ("mail", 80, "one")
    assert (await stage.get("/schedules"))["items"] == [await stage.get("/schedules/nightly")]

    assert (await stage.ask("POST", "/schedules/nightly/pause")).json()["paused"] is True
    assert (await stage.ask("POST", "/schedules/nightly/resume")).json()["paused"] is False
    made = await stage.ask("POST", "/schedules/nightly/run")
    assert (made.status_code, made.json()["schedule"], made.json()["created_by"]) == (201, "nightly", "local")
    removed = await stage.ask("DELETE", "/schedules/nightly")
    assert (removed.status_code, removed.content) == (204, b"")
    assert (await stage.get("/schedules"))["items"] == []
    assert await actions(stage) == [
        (f"schedule.{verb}", "nightly") for verb in ("put", "put", "pause", "resume", "run", "delete")
    ], "the definition that was sent again changed nothing"


async def test_a_schedule_has_an_overlap_jitter_and_bounds_and_shows_its_next_ticks(stage: Stage) -> None:
    body = {"cron": "@daily", "job_type": "letter", "payload": {"to": "x"}}
    options = {
        "overlap": "skip",
        "jitter": 90.5,
        "starts_at": "2100-01-01T00:00:00Z",
        "ends_at": "2100-01-02T00:00:00Z",
    }

    found = (await stage.ask("PUT", "/schedules/once", json=body | options)).json()

    assert {name: found[name] for name in options if name != "jitter"} == {
        name: value for name, value in options.items() if name != "jitter"
    }
    assert (found["jitter_seconds"], found["declared_by"], found["skipped"]) == (90.5, None, 0)
    assert found["next_ticks"] == ["2100-01-01T00:00:00Z", "2100-01-02T00:00:00Z"]


async def test_past_ticks_get_their_jobs_once(stage: Stage) -> None:
    await stage.app.schedule("daily", "@daily", "letter", {"to": "x"})
    now = datetime.now(UTC)
    span = {"from": (now - timedelta(days=3)).isoformat(), "to": now.isoformat()}

    planned = await stage.ask("POST", "/schedules/daily/backfill", json=span | {"dry_run": True})
    done = await stage.ask("POST", "/schedules/daily/backfill", json=span)
    again = await stage.ask("POST", "/schedules/daily/backfill", json=span)

    assert [each.status_code for each in (planned, done, again)] == [200, 200, 200]
    assert planned.json() == done.json()
    assert done.json()["ticks"] == len(done.json()["submitted"]) == 3
    assert again.json() == {"ticks": 3, "submitted": [], "existing": done.json()["submitted"]}
    assert {each["schedule"] for each in (await stage.get("/jobs"))["items"]} == {"daily"}


async def test_a_schedule_that_code_declares_is_changed_there(stage: Stage) -> None:
    stage.app.cron("declared", "@daily", "letter", {"to": "x"})
    async with stage.app.worker():
        pass

    answer = await stage.ask(
        "PUT", "/schedules/declared", json={"cron": "@hourly", "job_type": "letter", "payload": {"to": "x"}}
    )

    assert answer.status_code == 422
    assert "is declared in the code of " in answer.json()["detail"]
    assert (await stage.get("/schedules/declared"))["cron"] == "@daily"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"cron": "whenever"}, 422),
        ({"overlap": "maybe"}, 422),
        ({"jitter": -1}, 422),
        ({"starts_at": "2100-01-02T00:00:00Z", "ends_at": "2100-01-01T00:00:00Z"}, 422),
        ({"timezone": "Mars/Base"}, 422),
        ({"missed": "some"}, 422),
        ({"job_type": "nobody"}, 404),
        ({"payload": {"to": 7}}, 422),
        ({"delay": 5}, 422),
    ],
    ids=str,
)
async def test_a_schedule_that_cannot_be_meant_is_refused(stage: Stage, change: Any, status: int) -> None:
    body = {"cron": "@daily", "job_type": "letter", "payload": {"to": "x"}} | change
    assert (await stage.ask("PUT", "/schedules/nightly", json=body)).status_code == status
    assert (await stage.get("/schedules"))["items"] == []


async def test_a_schedule_that_is_not_there_is_not_found(stage: Stage) -> None:
    for method, path in [("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/run")]:
        answer = await stage.ask(method, f"/schedules/never{path}")
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/schedule-not-found")


# Dead letters


async def test_dead_letters_are_grouped_and_run_again(stage: Stage) -> None:
    for n in range(3):
        await stage.submit("broken", payload=n)
    await stage.run()
    [group] = (await stage.get("/dead"))["items"]
    assert (group["job_type"], group["error_type"], group["count"]) == ("broken", "ValueError", 3)
    none = await stage.ask("POST", "/dead/retry", json={"job_type": "broken", "error_type": "KeyError"})
    some = await stage.ask("POST", "/dead/retry", json={"job_type": "broken"})
    assert (none.json(), some.json()) == ({"retried": 0}, {"retried": 3})
    assert (await stage.get("/dead"))["items"] == []
    retries = [(action, target) for action, target in await actions(stage) if action == "dead.retry"]
    assert retries == [("dead.retry", "broken KeyError"), ("dead.retry", "broken")]


# Figures


async def test_the_queue_health_table_tells_states_and_priorities_apart(stage: Stage) -> None:
    for priority in (25, 75, 75):
        await stage.submit("letter", payload={"to": "x"}, priority=priority)
    await stage.run()
    await stage.submit("anything", payload=1, priority=75)
    await stage.submit("anything", payload=1, priority=75)
    await stage.submit("anything", payload=1, priority=25, delay=60)

    stats = await stage.get("/stats")
    table = [(row["priority"], row["status"], row["count"]) for row in stats["queue_health"]]
    assert table == [(75, "pending", 2), (75, "completed", 2), (25, "scheduled", 1), (25, "completed", 1)]
    done = stats["queue_health"][1]
    assert done["average_time_ms"] >= 0
    oldest, newest = (datetime.fromisoformat(done[name]) for name in ("oldest_at", "newest_at"))
    assert oldest < newest
    assert datetime.fromisoformat(done["newest_at"]) <= datetime.now(UTC), "though it is told to the minute"
    pending = stats["queue_health"][0]
    assert pending["average_time_ms"] is None
    assert pending["oldest_at"] <= pending["newest_at"]
    assert (stats["counts"]["pending"], stats["total"]["completed"]) == (2, 3)


async def test_the_worker_table_has_what_each_did(stage: Stage) -> None:
    for n in range(4):
        await stage.submit("letter" if n else "broken", payload={"to": "x"})
    async with stage.app.worker(lease=1.5, poll_interval=0.05) as worker:
        for job in await stage.app.find():
            with suppress(JobFailed):
                await stage.app.result(job.job_id, timeout=30)
        rows = await _until_heard(stage, 4)
        assert rows == [{"worker_id": worker.worker_id, "completed": 3, "failures": 1}]


async def _until_heard(stage: Stage, ended: int) -> list[dict[str, Any]]:
    async def heard() -> bool:
        return any(row.ended == ended for row in await stage.app.workers())

    await eventually(heard)
    names = ("worker_id", "completed", "failures")
    return [{name: row[name] for name in names} for row in (await stage.get("/stats"))["workers"]]


def test_what_a_worker_did_in_the_last_day_does_not_count_the_days_before() -> None:
    row = WorkerRow(
        worker_id="w", host="h", pid=1, process_key="", version="1", queues=(), job_types=(), concurrency=1,
        started_at=0, heartbeat_at=0,
    )  # fmt: skip
    for hour in range(73):  # ten jobs an hour, one of which fails, each of a second
        row = marked(_at(row, hour * HOUR, ended=hour * 10, failed=hour, busy_micros=hour * 10 * MICROS))
    done = last_day(row, 72 * HOUR)
    assert (done.ended, done.failed, done.average_ms, done.since) == (240, 24, 1000.0, 48 * HOUR)
    assert len(row.marks) <= 27

    young = _at(row, 2 * HOUR, ended=20, failed=2, busy_micros=0, marks=())
    assert (last_day(young, 2 * HOUR).ended, last_day(young, 2 * HOUR).since) == (20, 0)
    assert last_day(row, 72 * HOUR + DAY * 2).ended == 0


def _at(row: WorkerRow, now: int, **sums: Any) -> WorkerRow:
    return msgspec.structs.replace(row, heartbeat_at=now, **sums)


async def test_figures_go_back_as_far_as_they_are_asked_to(tmp_path: Path) -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    async with staged(staged_app(f"sqlite:///{tmp_path}/jobs.db", clock=clock)) as stage:
        await stage.submit(payload=1)
        clock.advance(timedelta(hours=2))
        await stage.submit(payload=2)
        assert (await stage.get("/stats"))["total"]["submitted"] == 1
        assert (await stage.get("/stats", minutes=180))["total"]["submitted"] == 2
        for minutes in (0, 10**6, "all"):
            assert (await stage.ask("GET", "/stats", params={"minutes": minutes})).status_code == 422


# The audit trail


async def test_the_trail_is_read_in_pages_newest_first(stage: Stage) -> None:
    for n in range(5):
        await stage.ask("POST", f"/queues/q{n}/pause")
    first = await stage.get("/audit", limit=3)
    rest = await stage.get("/audit", limit=3, after=first["next"])
    assert [each["target"] for each in first["items"] + rest["items"]] == ["q4", "q3", "q2", "q1", "q0"]
    assert rest["next"] is None
    assert (await stage.ask("GET", "/audit", params={"after": "x"})).status_code == 422


async def test_a_refused_change_is_in_the_trail_too(stage: Stage) -> None:
    await stage.ask("PUT", "/schedules/s", json={"cron": "whenever", "job_type": "letter", "payload": {"to": "x"}})
    [entry] = (await stage.get("/audit"))["items"]
    assert (entry["action"], entry["outcome"], entry["after"]) == ("schedule.put", "InvalidSchedule", None)
