"""The stages as handlers.

REPORT reads the rows of the two stages before it into `Findings` (findings.py), has them made into an `Analysis`
(`polis.report.gather.gathered`), asks for the narrative as narrative.py says, and keeps as artifacts what this gives:

    from polis.report import build
    files: dict[str, bytes] = build(analysis, config, visualizations, narrative)

"report.html", and "basic.html", "enhanced.html", "multilayer.html" as `visualizations` names them.
"""
