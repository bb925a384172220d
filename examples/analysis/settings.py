"""Settings from the environment, validated: a wrong value is an error at startup, not in the middle of a song."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from backstay import ConfigurationError

LIMIT_MAX = 64


@dataclass(frozen=True, slots=True)
class Settings:
    cache: Path  # the queue and the audio are here: a disk that outlives the service
    analysis_at_once: int
    lrc_at_once: int
    url: str
    artifacts: str | None  # None: next to the queue

    @property
    def audio(self) -> Path:
        return self.cache / "audio"


def load(environment: Mapping[str, str] | None = None) -> Settings:
    given = os.environ if environment is None else environment
    cache = Path(given.get("CACHE_DIR") or "cache").absolute()
    cache.mkdir(parents=True, exist_ok=True)
    return Settings(
        cache=cache,
        analysis_at_once=_limit(given, "SOW_MAX_CONCURRENT_ANALYSIS_JOBS", 1),
        lrc_at_once=_limit(given, "SOW_MAX_CONCURRENT_LRC_JOBS", 2),
        url=given.get("BACKSTAY_URL") or f"sqlite:///{cache / 'jobs.db'}",
        artifacts=_bucket(given),
    )


def _limit(given: Mapping[str, str], name: str, otherwise: int) -> int:
    text = given.get(name) or str(otherwise)
    if not text.isdecimal() or not 1 <= int(text) <= LIMIT_MAX:
        raise ConfigurationError(f"{name}={text!r:.40}: give a whole number from 1 to {LIMIT_MAX}")
    return int(text)


def _bucket(given: Mapping[str, str]) -> str | None:
    """Return the URL of an R2 bucket, which is compatible with S3, for pictures, LRC files and full logs."""
    endpoint, bucket = given.get("SOW_R2_ENDPOINT_URL"), given.get("SOW_R2_BUCKET")
    if not endpoint:
        return None
    if not bucket:
        raise ConfigurationError("SOW_R2_ENDPOINT_URL is set, SOW_R2_BUCKET is not: name the bucket too")
    return f"s3://{bucket}/analysis?region=auto&endpoint={quote(endpoint, safe=':/')}"
