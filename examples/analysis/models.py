"""Requests and results: validated on submit, before a job runs, and when they are read."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LINES_MAX = 500  # lines of lyrics: each is compared with every onset

ContentHash = Annotated[
    str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the audio, as POST /audio says it")
]


def _few_lines(lyrics: str) -> str:
    if (count := len(lyrics.splitlines())) > LINES_MAX:
        raise ValueError(f"{count} lines: up to {LINES_MAX} are taken")
    return lyrics


Lyrics = Annotated[str, AfterValidator(_few_lines)]


class JobType(StrEnum):
    ANALYZE = "analyze"
    LRC = "lrc"


class JobStatus(StrEnum):
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    content_hash: ContentHash
    force: bool = Field(default=False, description="Compute it anew, although the same was computed before")


class AnalyzeJobRequest(Request):
    pass


class LrcJobRequest(Request):
    lyrics: Lyrics = Field(min_length=1, max_length=20_000, description="Lines; an empty one ends a stanza")
    title: str = Field(default="", max_length=200)
    artist: str = Field(default="", max_length=200)


class Section(BaseModel):
    label: str  # sections that sound alike have the same
    start: float  # seconds
    end: float
    loudness_lufs: float | None  # None: silence


class AnalysisResult(BaseModel):
    duration_seconds: float
    sample_rate: int
    channels: int
    tempo_bpm: float  # 0: there is no beat
    tempo_confidence: float  # 0 to 1
    key: str  # "D major", "F# minor", "unknown"
    key_confidence: float
    loudness_lufs: float | None
    peak_dbfs: float | None
    sections: list[Section]
    beats: list[float]  # seconds
    onsets: list[float]
    onset_strengths: list[float]  # 0 to 1, one for each onset
    loudness_curve: list[float]  # LUFS at moments evenly spread over the song, at most 500; -70 is silence


class TimedLine(BaseModel):
    at: float  # seconds
    text: str


class LrcResult(BaseModel):
    lrc: str  # the LRC file
    lines: list[TimedLine]
    analysis_job_id: str  # the job whose beats and sections it was aligned to


class JobResponse(BaseModel):
    """A job in the format that clients of the service have always read."""

    job_id: str
    job_type: JobType
    status: JobStatus
    progress: float
    stage: str
    error_message: str | None
    request: AnalyzeJobRequest | LrcJobRequest | None  # None once it is in the archive
    result: AnalysisResult | LrcResult | None  # None until it has completed
    created_at: datetime
    updated_at: datetime
    content_hash: str
    reused_from: str | None = None  # the job whose result was reused


class AudioResponse(BaseModel):
    content_hash: ContentHash
    bytes: int
