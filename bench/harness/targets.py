"""The targets, in one place: ratios within one run, and plain bounds."""

from __future__ import annotations

from dataclasses import dataclass

from bench.harness.figures import Samples, Spread
from bench.workloads import OURS, OURS_TWICE


@dataclass(frozen=True, slots=True)
class Ratio:
    """Backstay's figure divided by another's in the same round."""

    workload: str
    metric: str
    other: str
    at_least: float
    ours: str = OURS
    other_workload: str | None = None  # if the other's figure is that of another workload

    def says(self) -> str:
        ours = "" if self.ours == OURS else f" by {self.ours}"
        other = f"{self.other}'s {self.other_workload}" if self.other_workload else self.other
        return f"{self.workload}{ours} ≥ {self.at_least:g} × {other}"

    def figure(self, samples: Samples) -> Spread | None:
        return samples.ratio(self.workload, self.metric, self.ours, self.other, self.other_workload)

    def is_met(self, figure: float) -> bool:
        return figure >= self.at_least

    def in_words(self, figure: float) -> str:
        return f"{figure:.2f} ×"


@dataclass(frozen=True, slots=True)
class Bound:
    workload: str
    metric: str
    at_most: float
    unit: str

    def says(self) -> str:
        return f"{self.workload} {self.metric} ≤ {self.at_most:g} {self.unit}"

    def figure(self, samples: Samples) -> Spread | None:
        return samples.spread(self.workload, OURS, self.metric)

    def is_met(self, figure: float) -> bool:
        return figure <= self.at_most

    def in_words(self, figure: float) -> str:
        return f"{figure:.2f} {self.unit}"


Target = Ratio | Bound

# What a submit over HTTP may cost, next to an application that does nothing but the same write.
HTTP: tuple[Target, ...] = tuple(
    Ratio(f"http-{connections}", "rate", "limit, HTTP", at_least=0.5) for connections in (1, 32)
)

# A claim's cost does not grow with types × queues, nor do others wait for it.
LANES: tuple[Target, ...] = (
    *(
        Bound(f"lanes-{name}", metric, at_most=limit, unit="ms")
        for name in ("5x2000", "200x200")
        for metric, limit in (("p50", 15), ("p99", 15), ("submit-max", 50))
    ),
    Bound("lanes-idle", "cpu", at_most=1, unit="% of a core"),
)

SQLITE: tuple[Target, ...] = (
    Ratio("submit-blocking", "rate", "huey", at_least=1),
    Ratio("submit-blocking", "rate", "persist-queue", at_least=1),
    Ratio("submit-one", "rate", "limit", at_least=0.5),
    Ratio("submit-concurrent", "rate", "limit", at_least=8),
    Ratio("submit-many", "rate", "limit", at_least=0.25),
    Ratio("drain", "rate", "huey", at_least=12),
    Ratio("drain", "rate", "limit", at_least=0.5),
    Ratio("history", "rate", "backstay, no history", at_least=0.98),
    Ratio("retention", "rate", "backstay, no retention", at_least=0.9),
    Bound("pickup-other", "p50", at_most=2, unit="ms"),
    Bound("pickup-other", "p99", at_most=5, unit="ms"),
    Bound("idle", "cpu", at_most=0.2, unit="% of a core"),
    Bound("idle", "rss", at_most=45, unit="MB"),
    *HTTP,
    *LANES,
)

POSTGRES: tuple[Target, ...] = (
    Ratio("submit-one", "rate", "pgqueuer", at_least=1.2),
    Ratio("submit-concurrent", "rate", OURS, at_least=8, other_workload="submit-one"),
    Ratio("submit-many", "rate", "pg-boss", at_least=2),
    Ratio("drain", "rate", "pg-boss", at_least=1),
    Ratio("drain", "rate", "graphile-worker", at_least=1.3),
    Ratio("drain", "rate", "pgqueuer", at_least=2.5),
    Ratio("drain", "rate", OURS, at_least=1.2, ours=OURS_TWICE),
    Ratio("drain", "rate", "limit, places", at_least=0.7),
    Bound("wal", "bytes", at_most=1_250, unit="bytes per job"),
    Ratio("history", "rate", "backstay, no history", at_least=0.98),
    Bound("pickup-other", "p50", at_most=3, unit="ms"),
    Bound("pickup-other", "p99", at_most=8, unit="ms"),
    Bound("idle", "cpu", at_most=0.2, unit="% of a core"),
    Bound("idle", "rss", at_most=45, unit="MB"),
    *HTTP,
    *LANES,
)

# As few as the indexes allow: docs/explanation/dynamodb.md has the arithmetic, and
# tests/engines/dynamodb/test_units.py pins it.
DYNAMODB: tuple[Target, ...] = ()

TARGETS = {"sqlite": SQLITE, "postgres": POSTGRES, "dynamodb": DYNAMODB}


@dataclass(frozen=True, slots=True)
class Verdict:
    target: str
    figure: str
    spread: str
    met: bool | None  # None: not measured in this run

    @property
    def word(self) -> str:
        return {True: "met", False: "MISSED", None: "not measured"}[self.met]


def verdicts(store: str, samples: Samples) -> list[Verdict]:
    return [_verdict(target, samples) for target in TARGETS[store]]


def _verdict(target: Target, samples: Samples) -> Verdict:
    spread = target.figure(samples)
    if spread is None:
        return Verdict(target.says(), "", "", None)
    return Verdict(
        target.says(),
        target.in_words(spread.median),
        f"{spread.low:.2f} - {spread.high:.2f}",
        target.is_met(spread.median),
    )
