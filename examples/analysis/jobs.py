"""The two job types. Backstay stores, runs, limits and reuses them."""

from __future__ import annotations

from datetime import timedelta

from analysis import lyrics, settings
from analysis.audio import Audio
from analysis.models import AnalysisResult, AnalyzeJobRequest, LrcJobRequest, LrcResult
from analysis.picture import picture
from analysis.sound import BadAudio, read
from backstay import Backoff, Backstay, BlockingContext, Discard, JobHandle, Retention

WEEK = timedelta(days=7)
SETTINGS = settings.load()
AUDIO = Audio(SETTINGS.audio)

app = Backstay(
    SETTINGS.url,
    artifacts=SETTINGS.artifacts,
    retention=Retention(completed=WEEK, failed=WEEK, cancelled=WEEK),
    purge_on_start=True,
)


# A separate process: it computes next to the service, and a crash there affects nothing else.
@app.job(
    "analyze",
    isolation="process",
    concurrency=SETTINGS.analysis_at_once,
    timeout=timedelta(minutes=10),
    backoff=Backoff(base=10, factor=2, max=300),
    reuse_by=["content_hash"],
    code_version="1",  # raise it when a change of the code changes the results
)
def analyze(payload: AnalyzeJobRequest, ctx: BlockingContext) -> AnalysisResult:
    # imported here: the service itself never needs it, and starts in half the time
    from analysis.measure import measure

    def say(fraction: float, stage: str) -> None:
        ctx.progress(fraction, stage=stage)
        ctx.log.info("%s", stage)

    try:
        sound, result = measure(AUDIO.path(payload.content_hash), say)
    except BadAudio as error:
        raise Discard(str(error)) from error  # fails at once: no retry can help
    say(0.95, "drawing")
    ctx.artifact("song.svg", picture(sound, result, payload.content_hash[:12]))
    ctx.metric("seconds_of_sound", result.duration_seconds)
    ctx.log.info("%s, %s beats a minute, %s LUFS", result.key, result.tempo_bpm, result.loudness_lufs)
    return result


@app.job(
    "lrc",
    concurrency=SETTINGS.lrc_at_once,
    timeout=timedelta(minutes=5),
    backoff=Backoff(base=10, factor=2, max=300),
    reuse_by=["content_hash", "lyrics", "title", "artist"],
    code_version="1",
)
def lrc(payload: LrcJobRequest, ctx: BlockingContext) -> LrcResult:
    ctx.log.info("aligning")
    analysed = ctx.upstream()["analyze"]
    song = AnalysisResult.model_validate(analysed.result)
    ctx.progress(0.3, stage="aligning")
    lines = lyrics.align(payload.lyrics, song)
    if not lines:
        raise Discard("the lyrics have no line in them")
    text = lyrics.lrc(lines, title=payload.title, artist=payload.artist, seconds=song.duration_seconds)
    ctx.progress(0.7, stage="drawing")
    ctx.artifact("song.lrc", text)
    ctx.artifact("song.svg", picture(read(AUDIO.path(payload.content_hash)), song, payload.title, lines))
    ctx.log.info("%d lines", len(lines))
    return LrcResult(lrc=text, lines=lines, analysis_job_id=analysed.reused_from or analysed.job_id)


async def submit_analyze(request: AnalyzeJobRequest, by: str) -> JobHandle:
    return await analyze.submit(request, subject=request.content_hash, created_by=by, reuse=not request.force)


async def submit_lrc(request: LrcJobRequest, by: str) -> JobHandle:
    """Submit the lyrics job. It waits for the song's analysis, which is reused if it was made before."""
    song = await submit_analyze(AnalyzeJobRequest(content_hash=request.content_hash), by)
    return await lrc.submit(
        request,
        subject=request.content_hash,
        created_by=by,
        reuse=not request.force,
        depends_on=[song],
        on_dependency_failure="fail",
    )
