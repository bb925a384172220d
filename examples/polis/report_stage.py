"""The handler of REPORT: writes pages from the rows of the earlier stages, as artifacts of its job."""

import asyncio
import time
from typing import Any, get_args

from backstay import Backstay, Context, Discard, Job

from . import narrative
from .configs import ReportConfig, Visualization
from .findings import ExportMeta, Findings, PcaRows, UmapRows
from .report import build
from .report.gather import gathered
from .tables import (
    ClusterAssignment,
    ClusterKeywords,
    CommentEmbedding,
    CommentExtremity,
    GraphEdge,
    ParticipantProjection,
    TopicName,
)

PIPELINE = "FULL_PIPELINE"


async def report(app: Backstay, payload: ReportConfig, ctx: Context) -> dict[str, Any]:
    started = time.monotonic()
    ctx.progress(0.05, stage="reading rows")
    pca, umap = await _before(app, ctx, "PCA"), await _before(app, ctx, "UMAP")
    if pca.result["export_hash"] != umap.result["export_hash"]:
        raise Discard(f"PCA ({pca.job_id}) and UMAP ({umap.job_id}) have read different exports: run both again")
    analysis = gathered(await _findings(ctx, pca, umap))
    text = await _narrative(ctx, analysis, payload)
    ctx.progress(0.6, stage="drawing")
    visualizations = await _visualizations(app, ctx)

    def drawn(page: str, share: float) -> None:
        ctx.progress(0.6 + 0.3 * share, stage=f"drawing {page}")

    files = await asyncio.to_thread(build, analysis, payload, visualizations, text, drawn)
    uris = []
    for done, (name, page) in enumerate(files.items()):
        ctx.progress(0.9 + 0.1 * done / len(files), stage=f"storing {name}")
        uris.append(await ctx.artifact(name, page))
    ctx.metric("pages", len(files))
    return {
        "result_type": "SUCCESS",
        "output_location": {"dynamodb_tables": [], "s3_artifacts": uris},
        "summary_metrics": {"processing_time_seconds": round(time.monotonic() - started, 3), "pages": len(files)},
    }


async def _before(app: Backstay, ctx: Context, stage: str) -> Job:
    """Return the job of an earlier stage; if the report is run alone, the last one of its conversation."""
    upstream = await ctx.upstream()
    if stage in upstream:
        return upstream[stage]
    done = await app.find(job_type=stage, subject=ctx.job.subject, status="completed", limit=1)
    if not done:
        raise Discard(f"there is no completed {stage} job of conversation {ctx.job.subject!r}: run it first")
    return await app.get(done[0].job_id)


async def _findings(ctx: Context, pca: Job, umap: Job) -> Findings:
    return Findings(
        conversation=ExportMeta.model_validate(pca.result["conversation"]),
        pca=PcaRows(
            job_id=pca.job_id,
            summary=pca.result,
            comments=await ctx.results(CommentExtremity).all(pca.job_id),
            participants=await ctx.results(ParticipantProjection).all(pca.job_id),
        ),
        umap=UmapRows(
            job_id=umap.job_id,
            summary=umap.result,
            embeddings=await ctx.results(CommentEmbedding).all(umap.job_id),
            assignments=await ctx.results(ClusterAssignment).all(umap.job_id),
            clusters=await ctx.results(ClusterKeywords).all(umap.job_id),
            edges=await ctx.results(GraphEdge).all(umap.job_id),
            topics=await ctx.results(TopicName).all(umap.job_id),
        ),
    )


async def _narrative(ctx: Context, analysis: Any, payload: ReportConfig) -> Any:
    """Return the narrative: by a model, in a separate job that this one waits for without a slot; else from the
    figures."""
    request = narrative.request(analysis, payload)
    if request is None:
        return narrative.told(analysis, payload, None)
    await ctx.submit("NARRATIVE", request, key="narrative", stage="NARRATIVE")
    [child] = await ctx.wait_for_children()  # whatever its outcome
    return narrative.told(analysis, payload, child)


async def _visualizations(app: Backstay, ctx: Context) -> list[str]:
    """Return the visualizations that the pipeline requested. A report that is run alone has all of them."""
    asked: Any = {}
    if ctx.job.root_job_id and ctx.job.root_job_id != ctx.job_id:
        root = await app.get(ctx.job.root_job_id)
        asked = root.payload if root.job_type == PIPELINE else {}
    names = asked.get("visualizations") or get_args(Visualization)
    return list(dict.fromkeys(names))
