"""PCA and UMAP as handlers. They run in processes of their own: a timeout or a cancel ends them at once.

Each reads its conversation, puts its rows, and returns what the analysis queue calls job results. Rows are seen when
the job completes, all together; a run that was killed leaves nothing that a reader could find.

What they run on is imported when they run: scikit-learn takes a second, which no submitter and no server should wait.
"""

from typing import Any

from holdfast import BlockingContext

from .configs import PcaConfig, UmapConfig


def pca(payload: PcaConfig, ctx: BlockingContext) -> dict[str, Any]:
    """Votes → the opinion map, its groups, and what they make of each comment."""
    from . import pca_stage

    return pca_stage.run(payload, ctx)


def umap(payload: UmapConfig, ctx: BlockingContext) -> dict[str, Any]:
    """Comments → vectors, the comment map, topics in layers."""
    from . import umap_stage

    return umap_stage.run(payload, ctx)
