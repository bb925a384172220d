"""Finding the route of a request, without trying them all."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from backstay import Backstay
from backstay.server.application import assemble
from backstay.server.routing import Routes, Row

ID = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
WORDS = (
    *("", "jobs", "batch", "cancel", "retry", "letter", ID, ID.upper(), ID.replace("-", ""), "stream", "tree"),
    *("results", "artifacts", "queues", "schedules", "pause", "workers", "claim", "dead", "dashboard", "login"),
    *("static", "x y", "ü"),
)


def _server() -> tuple[Routes, list[Row]]:
    app = Backstay("sqlite:///never-opened.db")
    table = assemble(app).inner.state.table
    return Routes(assemble(app).inner, app, table), table


ROUTES, TABLE = _server()


def _tried(method: str, path: str) -> Any:
    """The first literal path that fits, else the first of all that fits."""
    fitting = [row for row in TABLE if method in row.methods and row.pattern.match(path)]
    return next((row for row in sorted(fitting, key=lambda row: "{" in row.path)), None)


@settings(max_examples=1_000)
@given(
    method=st.sampled_from(METHODS),
    first=st.sampled_from(("jobs", "dashboard", "queues", "workers", "nowhere", "")),
    parts=st.lists(st.sampled_from(WORDS), max_size=12),
)
def test_a_route_is_found_as_if_all_had_been_tried_in_turn(method: str, first: str, parts: list[str]) -> None:
    path = "/" + "/".join((first, *parts))
    found = ROUTES.find(method, path)
    tried = _tried(method, path)
    assert (None if found is None else found[0].endpoint) == (None if tried is None else tried.endpoint)


def test_every_route_is_found_by_its_own_path() -> None:
    for row in TABLE:
        path = re.sub(r"\{(\w+)(:\w+)?\}", lambda each: ID if each[1] == "job_id" else "a", row.path)
        for method in row.methods:
            found = ROUTES.find(method, path)
            assert found is not None and found[0].endpoint is row.endpoint, (method, row.path)
