"""The bulk insert by hand once more, from where a caller of `submit_many` starts: payloads as dicts."""

from __future__ import annotations

import json
import time

from contenders import Figures, Order
from limits import create, insert_all
from payload import notes


def bulk(order: Order) -> Figures:
    connection = create(order.folder / "limit.db")
    payloads = notes(order.jobs)
    start = time.perf_counter()
    insert_all(connection, [(json.dumps(payload),) for payload in payloads])
    return {"rate": order.jobs / (time.perf_counter() - start)}


MEASURES = {"submit-many": bulk}
