"""Companion and a chat service that answers oddly: nobody else's summary suffers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest
from companion import chat, jobs, settings
from companion.__main__ import main
from companion.chat import User

from backstay.testing import drain
from tests.examples.companion_stage import Stage, on_stage


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with on_stage(f"sqlite:///{tmp_path}/jobs.db", monkeypatch) as found:
        yield found


async def test_one_id_that_is_none_keeps_nobody_else_from_being_synced(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.knows("ada", since=date(2026, 11, 14))
    stage.chat.users["who is this?"] = stage.chat.users["ada"]
    await stage.sync()
    assert await stage.days() == ["11-14", "11-15"]
    assert "who is this?" in caplog.text


async def test_seconds_of_a_time_of_day_make_no_summary_come_a_day_late(stage: Stage) -> None:
    stage.knows("ada", "UTC", summary_at=time(7, 0, 30))
    await stage.sync()
    [schedule] = [each for each in await stage.app.schedules() if each.name == "summary:ada"]
    assert schedule.next_at == datetime(2026, 11, 17, 7, tzinfo=UTC)
    stage.clock.set(datetime(2026, 11, 17, 7, 0, 1, tzinfo=UTC))
    await drain(stage.app)
    assert await stage.days() == ["11-16"]


def test_a_time_of_day_has_no_time_zone_of_its_own() -> None:
    with pytest.raises(ValueError, match="timezone"):
        User.model_validate(
            {"user_id": "a", "name": "A", "timezone": "UTC", "since": "2026-11-16", "summary_at": "07:00+02:00"}
        )


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(None, 60), ("5", 5), ("soon", 60), ("nan", 60), ("inf", 60), ("-1", 60), ("1e300", 86_400), ("", 60)],
)
def test_whatever_a_busy_service_says_of_when_to_come_again(said: str | None, seconds: float) -> None:
    assert chat.come_again(said) == seconds


def test_a_busy_service_may_name_a_moment() -> None:
    moment = datetime.now(UTC) + timedelta(seconds=90)
    assert chat.come_again(f"{moment:%a, %d %b %Y %H:%M:%S} GMT") == pytest.approx(90, abs=5)
    assert chat.come_again("Wed, 21 Oct 2015 07:28:00 GMT") == 0


def test_an_id_that_is_none_a_queue_that_is_none_and_a_port_that_is_none_are_said_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs.app, "url", f"sqlite:///{tmp_path}/jobs.db")
    for arguments, says in [(["sync", "who is this?"], "user_id"), (["receiver", "--port", "99999"], "port")]:
        assert main(arguments) == 1
        said = capsys.readouterr().err
        assert said.startswith("companion: ") and says in said
    monkeypatch.setattr(jobs.app, "url", f"sqlite:///{tmp_path}/nowhere/jobs.db")
    assert main(["set-up"]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_attempts_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPANION_MAX_ATTEMPTS", "inf")
    with pytest.raises(RuntimeError, match="not without end"):
        settings.max_attempts()
