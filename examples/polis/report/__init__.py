"""The report of an analysis: `build` creates every file of it from the results of the earlier stages."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from polis.configs import ReportConfig

from .choice import most_voted
from .model import Analysis, Narrative
from .visualizations import visualization
from .whole import whole

__all__ = ["build"]

COMMENTS_MAX = 2_000  # comments that are drawn and listed; if there are more, those with the most votes


def build(
    analysis: Analysis,
    config: ReportConfig,
    visualizations: Sequence[str],
    narrative: Narrative,
    tell: Callable[[str, float], object] = lambda page, share: None,
) -> dict[str, bytes]:
    """Return the artifacts by name: report.html, and a page for each requested visualization.

    `tell` is called with each page before it is drawn, and with the share that is done.
    """
    drawn = replace(analysis, comments=most_voted(analysis.comments, COMMENTS_MAX))
    pages = {}
    for done, name in enumerate(visualizations):
        tell(f"{name}.html", done / (len(visualizations) + 1))
        pages[f"{name}.html"] = visualization(name, drawn)
    tell("report.html", len(visualizations) / (len(visualizations) + 1))
    return {"report.html": whole(analysis, drawn, config, narrative, list(pages)), **pages}
