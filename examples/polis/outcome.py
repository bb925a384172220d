"""Common code of both analysing stages."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from backstay import BlockingContext, Discard, ResultRow

from .conversations import conversation
from .export import Export, ExportError

THREADS = 1  # numpy's threads: workers run several jobs at a time, whose threads would compete for the cores


def read(ctx: BlockingContext) -> Export:
    try:
        return conversation(ctx.job.subject)
    except ExportError as error:
        raise Discard(str(error)) from error  # a retry cannot help: the file stays the same


def put(ctx: BlockingContext, rows: Sequence[ResultRow]) -> None:
    if rows:
        ctx.results(type(rows[0])).put(rows)


def results(ctx: BlockingContext, started: float, tables: Iterable[str], metrics: dict[str, int]) -> dict[str, Any]:
    for name, value in metrics.items():
        ctx.metric(name, value)
    return {
        "result_type": "SUCCESS",
        "output_location": {"tables": list(tables), "artifacts": []},
        "summary_metrics": {"processing_time_seconds": round(time.monotonic() - started, 3), **metrics},
    }
