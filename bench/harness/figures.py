"""Samples, and what is read from them: medians, ranges, and ratios of figures taken in the same round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.workloads import Metric


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one contender in one round."""

    round: int
    workload: str
    contender: str
    jobs: int
    figures: dict[str, float]
    error: str | None


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(median(values), min(values), max(values), len(values)) if values else None


class Samples:
    def __init__(self, samples: Sequence[Sample]) -> None:
        self.all = samples

    def spread(self, workload: str, contender: str, metric: str) -> Spread | None:
        return Spread.of(list(self._by_round(workload, contender, metric).values()))

    def ratio(
        self, workload: str, metric: str, ours: str, theirs: str, their_workload: str | None = None
    ) -> Spread | None:
        """Ours ÷ theirs round by round, so that a machine that slows down slows both."""
        mine = self._by_round(workload, ours, metric)
        other = self._by_round(their_workload or workload, theirs, metric)
        return Spread.of([mine[number] / other[number] for number in mine if other.get(number)])

    def error(self, workload: str, contender: str) -> str | None:
        errors = [sample.error for sample in self._of(workload, contender) if sample.error]
        return errors[0] if errors else None

    def _by_round(self, workload: str, contender: str, metric: str) -> dict[int, float]:
        return {
            sample.round: sample.figures[metric] for sample in self._of(workload, contender) if metric in sample.figures
        }

    def _of(self, workload: str, contender: str) -> list[Sample]:
        return [sample for sample in self.all if sample.workload == workload and sample.contender == contender]


def in_words(value: float, metric: Metric) -> str:
    return f"{value:,.{metric.digits}f}"
