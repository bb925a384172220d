"""The table of routes: every path and method, with what it takes to call it. A route that does not say is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from holdfast.errors import ConfigurationError
from holdfast.server import guarding
from holdfast.server.gating.opening import Opening, Openings
from holdfast.server.principals import Scope


@dataclass(frozen=True, slots=True)
class Row:
    """One route. `scopes`: one of them is enough; none: everyone may call it."""

    path: str
    path_format: str  # as OpenAPI has it
    methods: tuple[str, ...]
    scopes: tuple[Scope, ...]
    opening: Opening | None
    in_schema: bool
    pattern: re.Pattern[str]
    endpoint: Callable[..., Any]


def rows(api: FastAPI) -> list[Row]:
    return [_row(route) for route in _routes(api)]


def openings(table: list[Row]) -> Openings:
    return Openings([(row.pattern, row.opening) for row in table if row.opening is not None])


def _routes(api: FastAPI) -> Iterator[Any]:
    """Each as it answers, with the prefixes and dependencies of the routers around it."""
    try:
        from fastapi.routing import iter_route_contexts
    except ImportError:  # where including a router copies its routes
        yield from api.routes
    else:
        yield from iter_route_contexts(api.routes)


def _row(route: Any) -> Row:
    path = getattr(route, "path", "?")
    dependencies = [each.dependency for each in getattr(route, "dependencies", ())]
    guards = [each for each in dependencies if guarding.scopes_of(each) is not None]
    original = getattr(route, "original_route", route)
    if len(guards) != 1 or not isinstance(original, APIRoute):
        raise ConfigurationError(
            f"route {path} does not say who may call it: give it one of needs(…), unless_local(…) and anyone"
        )
    return Row(
        path=path,
        path_format=route.path_format,
        methods=tuple(sorted(route.methods)),
        scopes=guarding.scopes_of(guards[0]) or (),
        opening=guarding.opening_of(guards[0]),
        in_schema=original.include_in_schema and getattr(route, "include_in_schema", True),
        pattern=route.path_regex,
        endpoint=route.endpoint,
    )
