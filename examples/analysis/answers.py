"""Converts jobs of Backstay to the records that clients of the service read, and their states back to Backstay's."""

from __future__ import annotations

from analysis.models import (
    AnalysisResult,
    AnalyzeJobRequest,
    JobResponse,
    JobStatus,
    JobType,
    LrcJobRequest,
    LrcResult,
)
from backstay import Job, Status

STATES = {
    JobStatus.QUEUED: (Status.PENDING, Status.WAITING, Status.SCHEDULED, Status.RETRYING),
    JobStatus.PROCESSING: (Status.PROCESSING,),
    JobStatus.COMPLETED: (Status.COMPLETED,),
    JobStatus.FAILED: (Status.FAILED, Status.CANCELLED),
}
_THEIRS = {ours: theirs for theirs, states in STATES.items() for ours in states}
_REQUESTS: dict[JobType, type[AnalyzeJobRequest | LrcJobRequest]] = {
    JobType.ANALYZE: AnalyzeJobRequest,
    JobType.LRC: LrcJobRequest,
}
_RESULTS: dict[JobType, type[AnalysisResult | LrcResult]] = {JobType.ANALYZE: AnalysisResult, JobType.LRC: LrcResult}


def response(job: Job) -> JobResponse:
    job_type = JobType(job.job_type)
    return JobResponse(
        job_id=job.job_id,
        job_type=job_type,
        status=_THEIRS[job.status],
        progress=job.progress,
        stage=job.stage,
        error_message=_why(job),
        request=None if job.payload is None else _REQUESTS[job_type].model_validate(job.payload),
        result=None if job.result is None else _RESULTS[job_type].model_validate(job.result),
        created_at=job.created_at,
        updated_at=job.updated_at,
        content_hash=job.subject or "",
        reused_from=job.reused_from,
    )


def _why(job: Job) -> str | None:
    """Return the last error; for a job that was cancelled, or failed with another, it is in its history."""
    if job.last_error is None and _THEIRS[job.status] == JobStatus.FAILED:
        return next((entry.reason for entry in reversed(job.history) if entry.reason), job.status.value)
    return job.last_error
