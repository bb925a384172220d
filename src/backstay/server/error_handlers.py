"""Turns every exception of a route into a problem document, and knows the methods of a path for `Allow`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast
from uuid import UUID

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from backstay import codec
from backstay.errors import PROBLEM_MEDIA_TYPE, BackstayError
from backstay.server import problems, visibility
from backstay.server.auth import found, is_operator
from backstay.server.openapi import BY_ID, BY_TYPE
from backstay.server.problems import Problem
from backstay.server.request import below


async def methods(request: Request, path: str) -> frozenset[str]:
    table = request.app.state.table
    fitting = {row.path_format for row in table if row.pattern.match(path)}
    if fitting & {BY_ID, BY_TYPE} and not await _is_known(request, path.rpartition("/")[2]):
        fitting |= {BY_ID, BY_TYPE}
    return frozenset(method for row in table if row.path_format in fitting for method in row.methods)


async def _is_known(request: Request, job_type: str) -> bool:
    who = found(request)
    return who is not None and job_type in await visibility.types_seen(request.app.state.backstay, who)


_FRAMEWORK = {
    404: ("not-found", "no such path: GET /openapi.json lists them all"),
    405: ("method-not-allowed", "this path takes other methods: see the header Allow"),
}
_MIXED_UP = (
    "not-found",
    "a job is changed by its id and submitted by its type: this path uses the wrong one",
)


def install(api: FastAPI) -> None:
    api.add_exception_handler(Problem, _problem)
    api.add_exception_handler(BackstayError, _our_error)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _of_the_framework)
    api.add_exception_handler(Exception, _mistake_of_ours)


def response(problem: Problem, instance: str | None = None) -> Response:
    return Response(
        codec.encode(problem.document(instance)), problem.status, headers=problem.headers, media_type=PROBLEM_MEDIA_TYPE
    )


def _answer(request: Request, problem: Problem) -> Response:
    return response(problem, request.url.path)


async def _problem(request: Request, error: Exception) -> Response:
    return _answer(request, cast(Problem, error))


async def _our_error(request: Request, error: Exception) -> Response:
    return _answer(
        request, problems.of_error(cast(BackstayError, error), ("body",), to_operator=is_operator(found(request)))
    )


async def _invalid(request: Request, error: Exception) -> Response:
    return _answer(request, invalid(cast(RequestValidationError, error).errors()))


def invalid(errors: Iterable[Mapping[str, Any]]) -> Problem:
    """What a model found wrong: the first in words, all of them by their places."""
    found = list(mistakes(errors))
    first = found[0] if found else {"loc": "", "msg": "it does not match"}
    detail = f"{first['loc']}: {first['msg']}" if first["loc"] else first["msg"]
    return Problem(422, "invalid-request", detail, errors=found)


async def _of_the_framework(request: Request, error: Exception) -> Response:
    found = cast(HTTPException, error)
    if found.status_code == 405:
        return _answer(request, await _without_such_a_method(request))
    slug, detail = _FRAMEWORK.get(found.status_code, ("http", None))
    if found.status_code == 404:
        detail = await _malformed_id(request) or detail
    return _answer(request, Problem(found.status_code, slug, detail, headers=found.headers))


async def _malformed_id(request: Request) -> str | None:
    """What to say of a path that would be one if its job id were an id."""
    path = below(request.scope["path"], str(request.scope.get("root_path", "")).rstrip("/"))
    before, _, after = path.removeprefix("/jobs/").partition("/")
    if path.startswith("/jobs/") and after and await methods(request, f"/jobs/{UUID(int=0)}/{after}"):
        return f"{before!r:.100} is not a job id: ids are UUIDs"
    return None


async def _without_such_a_method(request: Request) -> Problem:
    """405 with the methods that the document has for the path. One that it has, and no route took, is for a job where a
    type stands, or the other way round: what was asked for is not there."""
    path = below(request.scope["path"], str(request.scope.get("root_path", "")).rstrip("/"))
    allowed = await methods(request, path)
    if request.method in allowed:
        return Problem(404, *_MIXED_UP)
    return Problem(405, *_FRAMEWORK[405], headers={"Allow": ", ".join(sorted(allowed))})


async def _mistake_of_ours(request: Request, _: Exception) -> Response:
    """The gate gets the exception as well, and logs where it was raised."""
    request_id = request.scope.get("state", {}).get("request_id", "-")
    return _answer(request, Problem(500, "internal", f"the log of the server says more, under {request_id}"))


def mistakes(found: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    """What a model says is wrong: where and what, never the value, which may be a secret."""
    for number, each in enumerate(found):
        if number == problems.PLACES_MAX:
            return
        yield {"loc": ".".join(str(part) for part in each["loc"]), "msg": str(each["msg"])}
