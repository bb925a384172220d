"""Common code of both analysing stages: their input, their progress, their rows and their result."""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from backstay import BlockingContext, Discard, ResultRow

from .conversations import conversation
from .export import Export, ExportError

THREADS = 1  # numpy's threads: workers run several jobs at a time, whose threads would compete for the cores


# The packages that take seconds to load, in an order in which each has its own share of the time.
PACKAGES = ("numpy", "scipy.sparse", "scipy.stats", "sklearn.metrics", "sklearn.decomposition", "sklearn.neighbors")
LOADED = 0.2  # of a stage: how far it is once they are loaded
ROWS_AT_ONCE = 1_000

Tell: TypeAlias = Callable[[float], object]  # called with the share of a step that is done


def load(ctx: BlockingContext) -> None:
    """Load the packages one by one: in a new process this takes longer than a small conversation."""
    missing = [name for name in PACKAGES if name not in sys.modules]
    for done, name in enumerate(missing):
        ctx.progress(0.01 + (LOADED - 0.01) * done / len(missing), stage=f"loading {name}")
        import_module(name)


def step(ctx: BlockingContext, begin: float, end: float, stage: str) -> Tell:
    """Begin a step of a stage; its progress leads from `begin` to `end`."""
    ctx.progress(begin, stage=stage)
    return lambda share: ctx.progress(begin + (end - begin) * share, stage=stage)


def read(ctx: BlockingContext, tell: Tell) -> Export:
    try:
        return conversation(ctx.job.subject, tell)
    except ExportError as error:
        raise Discard(str(error)) from error  # a retry cannot help: the file stays the same


def put(ctx: BlockingContext, tell: Tell, *tables: Sequence[ResultRow]) -> None:
    """Write the rows of these tables."""
    written, everything = 0, sum(len(rows) for rows in tables)
    for rows in tables:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            ctx.results(type(some[0])).put(some)
            written += len(some)
            tell(written / everything)


def results(ctx: BlockingContext, started: float, tables: Iterable[str], metrics: dict[str, int]) -> dict[str, Any]:
    metrics = {**metrics, "peak_memory_mb": peak_memory_mb()}
    for name, value in metrics.items():
        ctx.metric(name, value)
    return {
        "result_type": "SUCCESS",
        "output_location": {"dynamodb_tables": list(tables), "s3_artifacts": []},
        "summary_metrics": {"processing_time_seconds": round(time.monotonic() - started, 3), **metrics},
    }


def peak_memory_mb() -> int:
    """Return the most memory that this process has had, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most / (1024 * 1024 if sys.platform == "darwin" else 1024))  # a Mac counts bytes, Linux kilobytes
