"""The report of an analysis: `build` creates every file of it from the results of the earlier stages."""

from collections.abc import Sequence
from dataclasses import replace

from polis.configs import ReportConfig

from .choice import most_voted
from .model import Analysis, Narrative
from .visualizations import visualization
from .whole import whole

__all__ = ["build"]

COMMENTS_MAX = 2_000  # comments that are drawn and listed; if there are more, those with the most votes


def build(
    analysis: Analysis, config: ReportConfig, visualizations: Sequence[str], narrative: Narrative
) -> dict[str, bytes]:
    """Return the artifacts by name: report.html, and a page for each requested visualization."""
    drawn = replace(analysis, comments=most_voted(analysis.comments, COMMENTS_MAX))
    pages = {f"{name}.html": visualization(name, drawn) for name in visualizations}
    return {"report.html": whole(analysis, drawn, config, narrative, list(pages)), **pages}
