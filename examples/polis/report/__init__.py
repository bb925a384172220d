"""The report of an analysis: `build` makes every file of it, from what the stages before have found."""

from collections.abc import Sequence
from dataclasses import replace

from polis.configs import ReportConfig

from .choice import most_voted
from .model import Analysis, Narrative
from .visualizations import visualization
from .whole import whole

__all__ = ["build"]

COMMENTS_MAX = 2_000  # that are drawn and listed: of more, those with the most votes


def build(
    analysis: Analysis, config: ReportConfig, visualizations: Sequence[str], narrative: Narrative
) -> dict[str, bytes]:
    """The artifacts by name: report.html, and a page for each visualization that was asked for."""
    drawn = replace(analysis, comments=most_voted(analysis.comments, COMMENTS_MAX))
    pages = {f"{name}.html": visualization(name, drawn) for name in visualizations}
    return {"report.html": whole(analysis, drawn, config, narrative, list(pages)), **pages}
