"""How a route of the API is declared: strict in what it takes, and the same in what it answers.

`routes("jobs")` makes a router whose routes refuse a query parameter that they do not know or that stands there twice
and, before that, whoever lacks the scope. What is no JSON, or not of that type, the gate has refused already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor

from holdfast import checks, codec, limits
from holdfast.server import problems
from holdfast.server.fields import NAME
from holdfast.server.guarding import scopes_of
from holdfast.server.problems import Problem

_SHOWN_MAX = 60  # characters of a name that a message repeats


class _JobTypeConvertor(Convertor[str]):
    """What can be a job type and is not an id: one path then means one thing."""

    regex = rf"(?!(?:{checks.UUID.pattern}|batch)(?:/|$))[A-Za-z0-9._:-]{{1,128}}"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("job_type", _JobTypeConvertor())

JobId = Annotated[UUID, Path(description="The job's id.")]
JobTypeName = Annotated[str, Path(description="The job type.", pattern=NAME)]
Name = Annotated[str, Path(pattern=NAME)]
_ETAG = r'^(\*|(W/)?"[0-9]{1,18}"|[0-9]{1,18})$'
IfMatch = Annotated[
    str | None,
    Header(
        description="The ETag that was read: change the job only if it is still at that version.",
        json_schema_extra={"pattern": _ETAG},
    ),
]
After = Annotated[
    str | None,
    Query(
        description="`next` of the page before.",
        max_length=limits.KEY_LENGTH_MAX,
        json_schema_extra={"pattern": "^[!-~]+$"},
    ),
]
Subtree = Annotated[bool, Query(description="The job and all that it has submitted.")]


def routes(tag: str) -> APIRouter:
    return APIRouter(route_class=Strict, tags=[tag], strict_content_type=True)


class _Read(Request):
    """One whose body the gate has read as JSON."""

    async def json(self) -> Any:
        return self.scope["state"]["document"]


class Strict(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        guards = [each.dependency for each in self.dependencies if scopes_of(each.dependency) is not None]
        self.dependant.dependencies = [each for each in self.dependant.dependencies if each.call not in guards]
        handle = super().get_route_handler()
        known = frozenset(_query_names(self.dependant))

        async def strictly(request: Request) -> Response:
            for guard in guards:  # here, not with the rest: who may not ask is not told what is wrong with the question
                if guard is not None:
                    await guard(request)
            _check_query(request, known)
            return await handle(_Read(request.scope, request.receive))

        return strictly


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (each.alias for each in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


def _check_query(request: Request, known: frozenset[str]) -> None:
    unknown = next((name for name in request.query_params if name not in known), None)
    if unknown is not None:
        takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        raise Problem(422, "invalid-request", f"there is no query parameter {unknown!r:.{_SHOWN_MAX}} here; {takes}")
    sent = [name for name, _ in request.query_params.multi_items()]
    repeated = next((name for name in sent if sent.count(name) > 1), None)
    if repeated is not None:
        raise Problem(422, "invalid-request", f"the query parameter {repeated} stands there more than once: send one")


def expected_version(if_match: str | None) -> int | None:
    """The version that a change is meant for; None: whichever it is."""
    if if_match is None or if_match.strip() == "*":
        return None
    if re.match(_ETAG, if_match.strip()) is None:
        raise Problem(422, "invalid-request", 'If-Match: send the ETag of GET /jobs/{id}, such as "3"')
    return int(if_match.strip().removeprefix("W/").strip('"'))


def answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """As it was encoded, without another look at it."""
    return Response(codec.encode(document), status, headers=headers, media_type="application/json")


def answers(model: Any, *problem_statuses: int, status: int = 200, says: str = "") -> dict[str, Any]:
    """For a route: what it answers with, and the problems that it can have."""
    return {
        "response_model": None,
        "status_code": status,
        "responses": {
            status: {"model": model, "description": says or "Successful Response"},
            **problems.documented(*sorted({401, 403, 422, 429, 503, *problem_statuses})),
        },
    }
