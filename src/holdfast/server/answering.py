"""What every answer of the routes has in common: problems for whatever was raised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from holdfast import codec
from holdfast.errors import HoldfastError
from holdfast.server import allowing, problems
from holdfast.server.gating.incoming import below
from holdfast.server.guarding import found
from holdfast.server.problems import MEDIA_TYPE, Problem

_FRAMEWORK = {
    404: ("not-found", "there is no such path: GET /openapi.json lists them all"),
    405: ("method-not-allowed", "this path takes other methods: the header Allow names them"),
}
_MIXED_UP = (
    "not-found",
    "a job is changed by its id, and submitted by its type: this is the other of the two",
)


def install(api: FastAPI) -> None:
    api.add_exception_handler(Problem, _problem)
    api.add_exception_handler(HoldfastError, _our_error)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _of_the_framework)
    api.add_exception_handler(Exception, _mistake_of_ours)


def response(problem: Problem, instance: str | None = None) -> Response:
    return Response(
        codec.encode(problem.document(instance)), problem.status, headers=problem.headers, media_type=MEDIA_TYPE
    )


def _answer(request: Request, problem: Problem) -> Response:
    return response(problem, request.url.path)


async def _problem(request: Request, error: Exception) -> Response:
    return _answer(request, cast(Problem, error))


async def _our_error(request: Request, error: Exception) -> Response:
    return _answer(request, problems.of_error(cast(HoldfastError, error), ("body",), to=found(request)))


async def _invalid(request: Request, error: Exception) -> Response:
    return _answer(request, invalid(cast(RequestValidationError, error).errors()))


def invalid(errors: Iterable[Mapping[str, Any]]) -> Problem:
    """What a model found wrong: the first in words, all of them by their places."""
    found = list(mistakes(errors))
    first = found[0] if found else {"loc": "", "msg": "it does not fit"}
    detail = f"{first['loc']}: {first['msg']}" if first["loc"] else first["msg"]
    return Problem(422, "invalid-request", detail, errors=found)


async def _of_the_framework(request: Request, error: Exception) -> Response:
    found = cast(HTTPException, error)
    if found.status_code == 405:
        return _answer(request, await _without_such_a_method(request))
    slug, detail = _FRAMEWORK.get(found.status_code, ("http", None))
    return _answer(request, Problem(found.status_code, slug, detail, headers=found.headers))


async def _without_such_a_method(request: Request) -> Problem:
    """405 with the methods that the document has for the path. One that it has, and no route took, is for a job where a
    type stands, or the other way round: what was asked for is not there."""
    path = below(request.scope["path"], str(request.scope.get("root_path", "")).rstrip("/"))
    allowed = await allowing.methods(request, path)
    if request.method in allowed:
        return Problem(404, *_MIXED_UP)
    return Problem(405, *_FRAMEWORK[405], headers={"Allow": ", ".join(sorted(allowed))})


async def _mistake_of_ours(request: Request, _: Exception) -> Response:
    """The gate hears of it too, and logs where it was made."""
    request_id = request.scope.get("state", {}).get("request_id", "-")
    return _answer(request, Problem(500, "internal", f"the log of the server says more, under {request_id}"))


def mistakes(found: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    """What a model says is wrong: where and what, never the value, which may be a secret."""
    for number, each in enumerate(found):
        if number == problems.PLACES_MAX:
            return
        yield {"loc": ".".join(str(part) for part in each["loc"]), "msg": str(each["msg"])}
