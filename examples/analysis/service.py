"""The service: a FastAPI application with a Backstay worker inside, and Backstay's own API and dashboard mounted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, cast
from uuid import UUID

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyHeader

import backstay.server
from analysis import jobs
from analysis.answers import STATES, response
from analysis.audio import TooLarge
from analysis.jobs import AUDIO, SETTINGS, app
from analysis.models import AnalyzeJobRequest, AudioResponse, JobResponse, JobStatus, JobType, LrcJobRequest
from backstay import Backstay, BackstayError, JobNotFound, KeyInfo, QueueFull, StoreError

_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False)
_CODES: dict[type[BackstayError], int] = {JobNotFound: 404, QueueFull: 429, StoreError: 503}
router = APIRouter()


def needs(scope: str) -> Callable[[str | None], Awaitable[KeyInfo]]:
    """Require an API key of the queue with this scope: `backstay --app analysis.jobs:app keys create`."""

    async def check(key: Annotated[str | None, Security(_HEADER)] = None) -> KeyInfo:
        found = await app.check_key(key or "")
        if found is None:
            raise HTTPException(401, "send a key of this service as X-API-Key")
        if not {scope, "admin"} & set(found.scopes):
            raise HTTPException(403, f"this key has not the scope {scope}")
        return found

    return check


Reader = Annotated[KeyInfo, Depends(needs("read"))]
Submitter = Annotated[KeyInfo, Depends(needs("submit"))]


@router.post("/audio", status_code=201)
async def keep_audio(request: Request, key: Submitter) -> AudioResponse:
    """Store a sound file, the body: WAV, FLAC, OGG or MP3. Jobs refer to it by its hash."""
    try:
        content_hash, size = await AUDIO.keep(request.stream())
    except TooLarge as error:
        raise HTTPException(413, str(error)) from None
    return AudioResponse(content_hash=content_hash, bytes=size)


@router.post("/jobs/analyze", status_code=201)
async def submit_analyze(request: AnalyzeJobRequest, key: Submitter) -> JobResponse:
    _require_audio(request.content_hash)
    return response(await (await jobs.submit_analyze(request, key.name)).record())


@router.post("/jobs/lrc", status_code=201)
async def submit_lrc(request: LrcJobRequest, key: Submitter) -> JobResponse:
    _require_audio(request.content_hash)
    return response(await (await jobs.submit_lrc(request, key.name)).record())


@router.get("/jobs")
async def list_jobs(
    key: Reader,
    status: JobStatus | None = None,
    job_type: JobType | None = None,
    content_hash: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> list[JobResponse]:
    """List jobs, newest first."""
    types = [job_type] if job_type else list(JobType)  # the queue may have jobs of other applications, too
    states = STATES[status] if status else (None,)
    pages = [
        await app.find(status=state, job_type=each, subject=content_hash, limit=limit)
        for each in types
        for state in states
    ]
    found = sorted((job for page in pages for job in page), key=lambda job: job.created_at, reverse=True)
    return [response(job) for job in found[:limit]]


@router.get("/jobs/{job_id}")
async def get_job(job_id: str, key: Reader) -> JobResponse:
    """Return a job, with live progress while it runs. 404 for an id that this service does not have: one that was never
    given, one of the form that ids once had, or one whose job was purged after a week."""
    job = await app.get(str(_uuid(job_id)))
    if job.job_type not in list(JobType) or job.archived_at is not None:
        raise _no_job(job_id)
    return response(job)


def _uuid(job_id: str) -> UUID:
    try:
        return UUID(job_id)
    except ValueError:
        raise _no_job(job_id) from None


def _no_job(job_id: str) -> JobNotFound:
    return JobNotFound(f"no job {job_id:.80} of this service")


def _require_audio(content_hash: str) -> None:
    if not AUDIO.path(content_hash).is_file():
        raise HTTPException(404, f"no audio {content_hash}: send it to POST /audio first")


async def _refused(_: Request, error: Exception) -> Response:
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), 422)
    return JSONResponse({"detail": str(error)}, code)


async def _invalid(_: Request, error: Exception) -> Response:
    """Return the errors without the input, which may be NaN or not UTF-8 and cannot be sent back."""
    wrong = [
        {name: each[name] for name in ("type", "loc", "msg")} for each in cast(RequestValidationError, error).errors()
    ]
    return Response(json.dumps({"detail": wrong}), 422, media_type="application/json")


def make_service(app: Backstay) -> FastAPI:
    at_once = SETTINGS.analysis_at_once + SETTINGS.lrc_at_once
    running = backstay.server.lifespan(app, worker=True, concurrency=at_once)

    @asynccontextmanager
    async def lifespan(service: FastAPI) -> AsyncIterator[None]:
        AUDIO.sweep()
        async with running(service):
            yield

    made = FastAPI(title="Audio analysis", lifespan=lifespan)
    made.include_router(router)
    made.mount("/backstay", backstay.server.asgi(app))
    made.add_exception_handler(BackstayError, _refused)
    made.add_exception_handler(RequestValidationError, _invalid)
    return made


service = make_service(app)
