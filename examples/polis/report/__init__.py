"""The report of an analysis: `build` makes every file of it, from what the stages before have found."""

from collections.abc import Sequence

from polis.configs import ReportConfig

from .model import Analysis, Narrative
from .visualizations import visualization
from .whole import whole

__all__ = ["build"]


def build(
    analysis: Analysis, config: ReportConfig, visualizations: Sequence[str], narrative: Narrative
) -> dict[str, bytes]:
    """The artifacts by name: report.html, and a page for each visualization that was asked for."""
    pages = {f"{name}.html": visualization(name, analysis) for name in visualizations}
    return {"report.html": whole(analysis, config, narrative, list(pages)), **pages}
