"""Companion's messages: the same token whatever happens, retries when the chat service is away, dead letters kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from companion import jobs, settings
from companion.chat import Message
from companion.receiver import Receiver

from backstay import Backoff, InvalidPayload, JobHandler, UnknownJobType
from backstay.testing import crash_test, drain, throwaway_url
from tests.examples.companion_stage import Stage, add_user, on_stage


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with on_stage(throwaway_url(tmp_path), monkeypatch) as stage:
        stage.knows("ada")
        yield stage


async def test_a_message_has_the_same_token_at_every_attempt_and_another_for_every_user_and_day(stage: Stage) -> None:
    stage.knows("grace")
    stage.chat.troubles.append((503, {}))
    for user_id, day in (("ada", "2026-11-14"), ("ada", "2026-11-15"), ("grace", "2026-11-15")):
        await stage.submit(user_id, day)
    await drain(stage.app, advance=True)
    assert sorted(stage.chat.sends.values()) == [1, 1, 2]
    assert len(stage.chat.messages) == 3


async def test_an_answer_that_is_lost_repeats_the_token_and_the_message_is_kept_once(stage: Stage) -> None:
    def hang_up(message: Message) -> None:
        if stage.chat.sends[message.token] == 1:
            raise ConnectionError

    stage.chat.on_kept = hang_up
    job_id = await stage.submit()
    await drain(stage.app, advance=True)
    job = await stage.app.get(job_id)
    assert (job.status, job.failures) == ("completed", 1)
    assert list(stage.chat.sends.values()) == [2]
    assert len(stage.chat.messages) == 1


def test_a_summary_arrives_once_wherever_its_worker_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as chat:
        monkeypatch.setenv("COMPANION_CHAT_URL", chat.url)
        add_user(chat, "ada")
        payload = jobs.SummaryOf(user_id="ada", day="2026-11-15", timezone="Europe/Berlin")
        report = crash_test(
            jobs.app.handlers["daily_summary"],
            payload,
            effect=lambda: [message.text for message in chat.messages.values()],
            reset=chat.messages.clear,
        )
    assert len(report.trials) >= 6
    assert max(chat.sends.values()) > 1  # some of them did send again


async def test_while_the_service_is_away_it_is_tried_after_60_120_240_and_480_seconds(stage: Stage) -> None:
    stage.chat.troubles.extend([(503, {})] * 5)
    begun = stage.clock.moment
    job_id = await stage.submit()
    tried = []
    while (job := await stage.app.get(job_id)).status != "failed":
        stage.clock.set(job.scheduled_for)
        await drain(stage.app)
        tried.append((job.status, (stage.clock.moment - begun).total_seconds()))
    seconds = [0, 60, 60 + 120, 60 + 120 + 240, 60 + 120 + 240 + 480]
    assert tried == list(zip(["pending", "retrying", "retrying", "retrying", "retrying"], seconds, strict=True))
    assert (job.failures, job.attempt) == (5, 5)


async def test_a_dead_letter_is_kept_with_every_error_and_can_be_sent_later(stage: Stage) -> None:
    stage.chat.troubles.extend([(503, {})] * 5)
    job_id = await stage.submit()
    await drain(stage.app, advance=True)
    dead = await stage.app.get(job_id)
    assert (dead.status, len(dead.errors)) == ("failed", 5)
    assert dead.last_error == 'ConnectionError: 503 Service Unavailable: {"error": "not now"}'
    assert "in _blocking" in dead.errors[-1]["traceback"]
    assert dead.payload == {"user_id": "ada", "day": "2026-11-15", "timezone": "Europe/Berlin"}
    stage.clock.advance(timedelta(days=29))
    await drain(stage.app)
    [group] = await stage.app.dead()
    assert (group.count, group.job_type) == (1, "daily_summary")

    await stage.app.retry(job_id)
    await drain(stage.app)
    assert (await stage.app.get(job_id)).status == "completed"
    assert len(stage.chat.messages) == 1


async def test_every_failure_is_a_line_in_the_log_that_names_its_job(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.chat.troubles.extend([(503, {})] * 5)
    job_id = await stage.submit()
    await drain(stage.app, advance=True)
    lines = [line for line in caplog.messages if line.startswith(f"daily_summary job {job_id} attempt ")]
    assert [line.partition("→ ")[2].partition(":")[0] for line in lines] == [
        *(f"retrying in {seconds} s" for seconds in (60, 120, 240, 480)),
        "failed",
    ]
    assert all("503 Service Unavailable" in line for line in lines)


async def test_a_busy_service_is_asked_again_when_it_says(stage: Stage) -> None:
    stage.chat.troubles.append((429, {"Retry-After": "17"}))
    job_id = await stage.submit()
    await drain(stage.app)
    job = await stage.app.get(job_id)
    assert (job.status, job.scheduled_for - stage.clock.moment) == ("retrying", timedelta(seconds=17))


@pytest.mark.parametrize("status", [400, 403, 410])
async def test_a_message_that_is_refused_is_a_dead_letter_at_once(stage: Stage, status: int) -> None:
    stage.chat.troubles.append((status, {}))
    job_id = await stage.submit()
    await drain(stage.app)
    job = await stage.app.get(job_id)
    assert (job.status, job.attempt) == ("failed", 1)
    assert str(job.last_error).startswith(f"Discard: {status} ")


async def test_a_summary_for_an_unknown_user_is_a_dead_letter_that_says_so(stage: Stage) -> None:
    job_id = await stage.submit("nobody")
    await drain(stage.app)
    job = await stage.app.get(job_id)
    assert (job.status, job.last_error) == ("failed", "UnknownUser: the chat service has no user 'nobody'")
    assert stage.chat.sends.total() == 0


async def test_a_user_with_an_unknown_time_zone_fails_alone_and_says_why(stage: Stage) -> None:
    broken = stage.chat.users["ada"].model_copy(update={"user_id": "eve", "timezone": "Mars/Olympus"})
    stage.chat.users["eve"] = broken
    await stage.sync()
    [job] = await stage.app.find(job_type="user_sync", subject="eve")
    assert job.status == "retrying"
    assert "there is no time zone 'Mars/Olympus'" in str(job.last_error)
    assert [each.name for each in await stage.app.schedules()] == ["summary:ada"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"day": "yesterday"}, "day"), ({"timezone": "Nowhere"}, "timezone"), ({"user_id": "a b"}, "user_id")],
)
async def test_a_payload_that_does_not_fit_its_model_is_refused(
    stage: Stage, changed: dict[str, str], said: str
) -> None:
    payload = {"user_id": "ada", "day": "2026-11-15", "timezone": "UTC", **changed}
    with pytest.raises(InvalidPayload, match=said):
        await stage.app.submit("daily_summary", payload)


async def test_a_job_type_without_a_handler_is_refused(stage: Stage) -> None:
    with pytest.raises(UnknownJobType, match="weekly_summary"):
        await stage.app.submit("weekly_summary", {})


def test_each_job_type_has_a_class_and_retries_as_agreed() -> None:
    assert {"daily_summary", "user_sync"} <= set(jobs.HANDLERS) == set(jobs.app.handlers)
    for name, handler in jobs.app.handlers.items():
        assert issubclass(jobs.HANDLERS[name], JobHandler)
        assert (handler.max_attempts, handler.backoff) == (5, Backoff(60, 2, jitter=0))


def test_delay_and_attempts_can_be_set_and_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (settings.base_delay_seconds(), settings.max_attempts(), settings.catch_up_days()) == (60, 5, 7)
    monkeypatch.setenv("COMPANION_BASE_DELAY_SECONDS", "1.5")
    monkeypatch.setenv("COMPANION_MAX_ATTEMPTS", "2")
    assert (settings.base_delay_seconds(), settings.max_attempts()) == (1.5, 2)
    for nonsense in ("0", "-1", "soon", "nan"):
        monkeypatch.setenv("COMPANION_MAX_ATTEMPTS", nonsense)
        with pytest.raises(RuntimeError, match="COMPANION_MAX_ATTEMPTS"):
            settings.max_attempts()


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [({}, ["25", "30.0"]), ({"BACKSTAY_CLAIM_LIMIT": "7", "BACKSTAY_POLL_INTERVAL": "3"}, ["7", "3.0"])],
    ids=["by default", "by setting"],
)
def test_a_worker_takes_25_jobs_at_a_time_and_polls_dynamodb_every_30_seconds_unless_told_otherwise(
    example_environment: dict[str, str], variables: dict[str, str], wanted: list[str]
) -> None:
    said = subprocess.run(
        [sys.executable, "-c", "from companion.jobs import app; print(app._claim_limit, app._poll_seconds)"],
        env={**example_environment, "BACKSTAY_URL": "dynamodb://companion?region=eu-north-1", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == wanted


def test_the_receiver_keeps_a_repeated_token_once_and_answers_as_before() -> None:
    message = Message(token="t", user_id="ada", text="first")
    with Receiver() as chat:
        add_user(chat, "ada")
        _, first, _ = chat.post(message)
        _, second, _ = chat.post(message.model_copy(update={"text": "second"}))
    assert (first["repeated"], second["repeated"]) == (False, True)
    assert first["received_at"] == second["received_at"]
    assert chat.messages["t"].text == "first"
