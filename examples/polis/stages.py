"""The handlers of PCA and UMAP. They run in separate processes, so that a timeout or cancel ends them at once.

Each reads its conversation, writes its rows, and returns what the analysis queue calls job results. Rows become visible
together when the job completes; a killed run leaves nothing visible.

Heavy packages are loaded when they run: they take seconds, which no submitter or server should wait for.
"""

from typing import Any

from backstay import BlockingContext

from . import outcome
from .configs import PcaConfig, UmapConfig


def pca(payload: PcaConfig, ctx: BlockingContext) -> dict[str, Any]:
    """Compute the opinion map from votes, its groups, and how they voted on each comment."""
    outcome.load(ctx)
    from . import pca_stage

    return pca_stage.run(payload, ctx)


def umap(payload: UmapConfig, ctx: BlockingContext) -> dict[str, Any]:
    """Compute vectors of comments, the comment map, and topics in layers."""
    outcome.load(ctx)
    from . import umap_stage

    return umap_stage.run(payload, ctx)
