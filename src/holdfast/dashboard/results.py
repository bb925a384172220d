"""Rows of result tables, a page at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from fastapi import Depends, Request, Response

from holdfast.dashboard import frame
from holdfast.results.row import OWN
from holdfast.server.guarding import App, Who, needs, visible

PAGE = 100
NUMBERS_SHOWN = 4  # of a vector; nobody reads 384
CELL_MAX = 400  # characters of one cell

router = frame.pages()


@router.get("/jobs/{job_id}/results/{table}", dependencies=[Depends(needs("read"))])
async def rows(request: Request, app: App, who: Who, job_id: str, table: str) -> Response:
    job = await visible(app, who, job_id)
    after = request.query_params.get("after") or None
    page = await app.result_rows(job.job_id, table, after, PAGE)
    names = [name for name in page[0] if name not in OWN] if page else []
    return frame.render(
        request,
        "rows.html",
        live=f"job:{job.job_id}" if after is None else None,
        job=job,
        table=table,
        names=names,
        rows=[[cell(row[name]) for name in names] for row in page],
        numeric=[bool(page) and isinstance(page[0][name], int | float) for name in names],
        after=after,
        following=page.next,
    )


def cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            text = value
        case bool():
            text = "yes" if value else "no"
        case datetime():
            text = value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case bytes():
            text = f"{len(value):,} bytes"
        case float():
            text = f"{value:.6g}"
        case list() if len(value) > NUMBERS_SHOWN and all(isinstance(each, float) for each in value):
            first = ", ".join(f"{number:.4g}" for number in value[:NUMBERS_SHOWN])
            text = f"[{first}, …] ({len(value)})"
        case _:
            text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"
