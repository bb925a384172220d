"""What the audio service reads from its environment, and where it keeps things."""

from __future__ import annotations

from pathlib import Path

import pytest
from analysis import settings

from holdfast import ConfigurationError
from tests.examples.analysis_service import running, wav
from tests.servers.s3 import S3


def test_settings_that_cannot_be_meant_are_an_error_that_names_them(tmp_path: Path) -> None:
    for wrong in ("0", "-1", "many", "1.5", "1000"):
        with pytest.raises(ConfigurationError, match="SOW_MAX_CONCURRENT_LRC_JOBS"):
            settings.load({"CACHE_DIR": str(tmp_path), "SOW_MAX_CONCURRENT_LRC_JOBS": wrong})
    with pytest.raises(ConfigurationError, match="SOW_R2_BUCKET"):
        settings.load({"CACHE_DIR": str(tmp_path), "SOW_R2_ENDPOINT_URL": "https://r2.example.org"})


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


async def test_pictures_and_lyrics_are_kept_in_the_bucket_where_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3() as server:
        server.bucket("songs")
        bucket = {"SOW_R2_ENDPOINT_URL": f"http://127.0.0.1:{server.port}", "SOW_R2_BUCKET": "songs"}
        keys = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret"}
        async with running(tmp_path, monkeypatch, **bucket, **keys) as service:
            song = await service.send(wav())
            job = await service.ended((await service.submit("lrc", content_hash=song, lyrics="One\nTwo"))["job_id"])
            files = await service.app.artifacts(job["job_id"])
            assert {file.name for file in files} == {"song.lrc", "song.svg"}
            assert all(file.uri.startswith("s3://songs/analysis/") for file in files)
            kept = await service.app.artifact(job["job_id"], "song.lrc")
            assert kept.decode() == job["result"]["lrc"]
