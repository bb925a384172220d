"""Measures submits over HTTP: `backstay serve` and a bare application with the same write, from one connection and from
many."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager

from bench.harness import http_server
from bench.harness.contenders import Figures, Order
from bench.harness.http_server import Server
from bench.harness.payload import note
from bench.harness.setup import JOB_TYPE, open_setup

APP = "bench.harness.app:app"
BODY = json.dumps({"payload": note(0)})


def backstay(order: Order, connections: int) -> Figures:
    setup = open_setup(order)
    figures = _figures(http_server.backstay(APP, setup.store.url, setup.log), order, connections)
    assert setup.store.count("pending") == order.jobs + http_server.WARM_UP
    return figures


def bare(order: Order, connections: int) -> Figures:
    setup = open_setup(order)
    return _figures(http_server.bare(setup.store, setup.log), order, connections)


def _figures(opened: AbstractContextManager[Server], order: Order, connections: int) -> Figures:
    with opened as server:
        found = http_server.rates(
            server,
            method="POST",
            paths=[f"/jobs/{JOB_TYPE}"],
            expects=201,
            body=BODY,
            connections=connections,
            requests=order.jobs,
        )
    return {"rate": found["rate"], "cpu": found["server_cpu_ms"]}


CONNECTIONS = (1, 32)
MEASURES = {f"http-{number}": lambda order, number=number: backstay(order, number) for number in CONNECTIONS}
BARE = {f"http-{number}": lambda order, number=number: bare(order, number) for number in CONNECTIONS}
