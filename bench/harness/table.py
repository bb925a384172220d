"""The two tables a run prints: figures and verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from bench.harness.figures import Samples, in_words
from bench.harness.targets import Verdict
from bench.workloads import OURS, Metric, Workload

ERROR_LENGTH = 60


def figures_table(workloads: Sequence[Workload], samples: Samples) -> str:
    rows: list[tuple[str, ...]] = [("workload", "who", "median", "min - max", "unit", "backstay ÷ it")]
    for workload in workloads:
        for metric in workload.metrics:
            for contender in workload.contenders:
                rows.append(_figure_row(workload, metric, contender, samples))
    return aligned(rows, right=(2, 3, 5))


def targets_table(verdicts: Sequence[Verdict]) -> str:
    rows = [("target", "reached (median)", "min - max", "verdict")]
    rows += [(verdict.target, verdict.figure, verdict.spread, verdict.word) for verdict in verdicts]
    return aligned(rows, right=(1, 2))


def _figure_row(workload: Workload, metric: Metric, contender: str, samples: Samples) -> tuple[str, ...]:
    spread = samples.spread(workload.name, contender, metric.name)
    if spread is None:
        error = samples.error(workload.name, contender) or "not measured"
        return (workload.title, contender, "-", error.rpartition(" | ")[2][:ERROR_LENGTH], metric.unit, "")
    ratio = None if contender == OURS else samples.ratio(workload.name, metric.name, OURS, contender)
    return (
        workload.title,
        contender,
        in_words(spread.median, metric),
        f"{in_words(spread.low, metric)} - {in_words(spread.high, metric)}",
        metric.unit,
        f"{ratio.median:.2f} ×" if ratio else "",
    )


def aligned(rows: Sequence[tuple[str, ...]], right: tuple[int, ...]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rule = tuple("-" * width for width in widths)
    lines = []
    for row in (rows[0], rule, *rows[1:]):
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
