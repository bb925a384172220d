"""The bulk insert by hand once more, by COPY."""

from __future__ import annotations

import asyncio
import time

from contenders import Figures, Order
from postgres_limits import PAYLOAD, create


def bulk(order: Order) -> Figures:
    return asyncio.run(_bulk(order))


async def _bulk(order: Order) -> Figures:
    connection = await create(order)
    rows = [(PAYLOAD,)] * order.jobs
    start = time.perf_counter()
    await connection.copy_records_to_table("job", records=rows, columns=["payload"])
    return {"rate": order.jobs / (time.perf_counter() - start)}


MEASURES = {"submit-many": bulk}
