"""The queue of the analysis: `backstay --app polis.app:app …` and `python -m polis` use this one.

BACKSTAY_URL sets where the jobs are, BACKSTAY_ARTIFACTS where the artifacts are.
"""

from typing import Any, Literal

from backstay import Backoff, Backstay, Context, JobHandle, Pipeline, Stage

from . import report_stage, stages
from .configs import PipelineOptions, ReportConfig
from .conversations import folder_of
from .export import files_of
from .narrative import narrative_job
from .tables import PCA_TABLES, UMAP_TABLES

STAGE_SECONDS, PIPELINE_SECONDS = 3600, 7200
STAGE_PRIORITY, PIPELINE_PRIORITY = 50, 80
ATTEMPTS = 4  # the first one and three retries
BACKOFF = Backoff(base=5, factor=2, max=300)


def register(app: Backstay, *, isolation: Literal["process", "thread"] = "process") -> Pipeline:
    """Register all job types of the analysis on this app; return its pipeline."""
    options: dict[str, Any] = {
        "priority": STAGE_PRIORITY,
        "max_attempts": ATTEMPTS,
        "timeout": STAGE_SECONDS,
        "backoff": BACKOFF,
    }
    pca = app.job("PCA", isolation=isolation, results=list(PCA_TABLES.values()), **options)(stages.pca)
    umap = app.job("UMAP", isolation=isolation, results=list(UMAP_TABLES.values()), **options)(stages.umap)

    @app.job("REPORT", **options)
    async def report(payload: ReportConfig, ctx: Context) -> dict[str, Any]:
        return await report_stage.report(app, payload, ctx)

    narrative_job(app)
    return app.pipeline(
        report_stage.PIPELINE,
        [Stage("PCA", pca), Stage("UMAP", umap), Stage("REPORT", report, after=("PCA", "UMAP"))],
        options=PipelineOptions,
        priority=PIPELINE_PRIORITY,
        timeout=PIPELINE_SECONDS,
        max_attempts=ATTEMPTS,
    )


async def analyse(
    pipeline: Pipeline, conversation_id: str, payload: dict[str, Any] | None = None, **options: Any
) -> JobHandle:
    """Submit the whole analysis of a conversation; a missing export raises before anything is stored."""
    files_of(folder_of(conversation_id))
    return await pipeline.submit(payload, subject=conversation_id, **options)


app = Backstay()
full_pipeline = register(app)
