"""The stages as handlers.

REPORT fills an `Analysis` (report/model.py) from the rows of the two stages before it (analysis.py), asks for the
narrative as narrative.py says, and keeps whatever files this gives as artifacts:

    from polis.report import build
    files: dict[str, bytes] = build(analysis, config, visualizations, narrative)

"report.html", and "basic.html", "enhanced.html", "multilayer.html" as `visualizations` names them.
"""
