"""What `holdfast_http.py` found: medians over the rounds, ratios round by round, and the tables."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from table import aligned

PAGE_TARGET_MS = 300


@dataclass(frozen=True, slots=True)
class Sample:
    round: int
    store: str
    workload: str
    who: str
    figures: dict[str, Any]


def _medians(samples: list[Sample]) -> dict[tuple[str, str, str], dict[str, float]]:
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for sample in samples:
        figures = found.setdefault((sample.store, sample.workload, sample.who), {})
        for name, value in sample.figures.items():
            if value is not None:
                figures.setdefault(name, []).append(value)
    return {key: {name: median(values) for name, values in each.items()} for key, each in found.items()}


def _ratio(samples: list[Sample], store: str, workload: str) -> float | None:
    """Holdfast ÷ the limit, round by round, then the median."""
    rates = {
        (sample.round, sample.who): sample.figures["rate"]
        for sample in samples
        if (sample.store, sample.workload) == (store, workload) and "rate" in sample.figures
    }
    ratios = [
        rate / rates[number, "limit"]
        for (number, who), rate in rates.items()
        if (number, "limit") in rates and who == "holdfast"
    ]
    return median(ratios) if ratios else None


def summarised(samples: list[Sample]) -> list[dict[str, Any]]:
    rows = []
    for (store, workload, who), figures in _medians(samples).items():
        ratio = _ratio(samples, store, workload) if who == "holdfast" else None
        rounded = {name: round(value, 2) for name, value in figures.items()}
        row = {"store": store, "workload": workload, "who": who, **rounded}
        rows.append(row if ratio is None else row | {"ratio_to_limit": round(ratio, 2)})
    return rows


def tables(summary: list[dict[str, Any]]) -> str:
    rates = [("store", "workload", "who", "per second", "p50 ms", "p95 ms", "÷ limit", "CPU ms", "client's core")]
    pages = [("store", "page", "first ms", "p50 ms", "p95 ms", f"under {PAGE_TARGET_MS} ms")]
    counting = [("store", "counts ms", "depths ms")]
    for row in summary:
        said = {name: f"{value:,.1f}" for name, value in row.items() if isinstance(value, float)}
        if "rate" in row:
            ratio = f"{row['ratio_to_limit']:.2f}" if "ratio_to_limit" in row else ""
            rates.append(
                (
                    row["store"],
                    row["workload"],
                    row["who"],
                    f"{row['rate']:,.0f}",
                    said["p50_ms"],
                    said["p95_ms"],
                    ratio,
                    f"{row['server_cpu_ms']:.2f}",
                    f"{row['client_cpu']:.0%}",
                )
            )
        elif "first_ms" in row:
            verdict = "yes" if max(row["first_ms"], row["p95_ms"]) < PAGE_TARGET_MS else "NO"
            pages.append((row["store"], row["workload"], said["first_ms"], said["p50_ms"], said["p95_ms"], verdict))
        else:
            counting.append((row["store"], said["counts_ms"], said["depths_ms"]))
    return "\n\n".join([aligned(rates, (3, 4, 5, 6, 7, 8)), aligned(pages, (2, 3, 4)), aligned(counting, (1, 2))])
