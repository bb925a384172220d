"""What the audio service reads from its environment, and where it keeps things."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from analysis import settings

from backstay import ConfigurationError
from tests.examples.analysis_service import running


def test_settings_that_cannot_be_meant_are_an_error_that_names_them(tmp_path: Path) -> None:
    for wrong in ("0", "-1", "many", "1.5", "1000"):
        with pytest.raises(ConfigurationError, match="SOW_MAX_CONCURRENT_LRC_JOBS"):
            settings.load({"CACHE_DIR": str(tmp_path), "SOW_MAX_CONCURRENT_LRC_JOBS": wrong})
    with pytest.raises(ConfigurationError, match="SOW_R2_BUCKET"):
        settings.load({"CACHE_DIR": str(tmp_path), "SOW_R2_ENDPOINT_URL": "https://r2.example.org"})


def test_what_the_service_cannot_start_with_is_said_in_one_line(
    tmp_path: Path, example_environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "analysis", "serve"]
    environment = {**example_environment, "CACHE_DIR": str(tmp_path), "SOW_MAX_CONCURRENT_LRC_JOBS": "many"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("analysis: SOW_MAX_CONCURRENT_LRC_JOBS") and len(done.stderr.splitlines()) == 1


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    given = {
        "CACHE_DIR": str(tmp_path / "cache"),
        "SOW_MAX_CONCURRENT_ANALYSIS_JOBS": "3",
        "SOW_MAX_CONCURRENT_LRC_JOBS": "4",
        "SOW_R2_ENDPOINT_URL": "https://r2.example.org",
        "SOW_R2_BUCKET": "songs",
    }
    found = settings.load(given)
    assert (found.analysis_at_once, found.lrc_at_once) == (3, 4)
    assert found.url == f"sqlite:///{tmp_path}/cache/jobs.db"
    assert found.artifacts == "s3://songs/analysis?region=auto&endpoint=https://r2.example.org"


async def test_a_service_on_an_empty_folder_makes_its_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "cache", monkeypatch) as service:
        assert (tmp_path / "cache" / "jobs.db").stat().st_size > 0
        assert (await service.client.get("/jobs")).json() == []
        assert (await service.client.get("/backstay/readyz")).json() == {"status": "ok"}
