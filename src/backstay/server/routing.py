"""How routes are declared, and the table of all routes with the scope that each needs.

`routes("jobs")` makes a router whose routes check the scope, and then refuse unknown or repeated query parameters. The
gate has already refused bodies that are not JSON. A route that does not say who may call it is refused at startup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any
from uuid import UUID

import msgspec
import msgspec.inspect
from fastapi import APIRouter, FastAPI, Header, Path, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor

from backstay import codec, limits
from backstay.core import checks
from backstay.errors import ConfigurationError
from backstay.server import problems
from backstay.server.auth import Scope, opening_of, scopes_of
from backstay.server.problems import Problem
from backstay.server.request import Opening, Openings
from backstay.server.request_models import NAME

_SHOWN_MAX = 60  # characters of a name that a message repeats
components: dict[str, dict[str, Any]] = {}  # schemas of answers by name, of all routes that were declared


class _JobTypeConvertor(Convertor[str]):
    """Matches a job type that is neither an id nor a path of its own, so that a path has one meaning."""

    regex = rf"(?!(?:{checks.UUID.pattern}|batch|cancel|retry)(?:/|$))[A-Za-z0-9._:-]{{1,128}}"

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
        description="ETag of the job: change it only if it still has that version.",
        json_schema_extra={"pattern": _ETAG},
    ),
]
After = Annotated[
    str | None,
    Query(
        description="`next` of the previous page.",
        max_length=limits.KEY_LENGTH_MAX,
        json_schema_extra={"pattern": "^[!-~]+$"},
    ),
]
Subtree = Annotated[bool, Query(description="Include every job below it in its tree.")]


def routes(tag: str) -> APIRouter:
    return APIRouter(route_class=Strict, tags=[tag], strict_content_type=True)


class _Read(Request):
    """A request whose body the gate has decoded."""

    async def json(self) -> Any:
        return self.scope["state"]["document"]


class Strict(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        guards = [each.dependency for each in self.dependencies if scopes_of(each.dependency) is not None]
        self.dependant.dependencies = [each for each in self.dependant.dependencies if each.call not in guards]
        handle = super().get_route_handler()
        known = frozenset(_query_names(self.dependant))

        async def strictly(request: Request) -> Response:
            for guard in guards:  # first: a client without permission does not learn what is wrong with its request
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
        takes = f"this path takes {', '.join(sorted(known))}" if known else "this path takes none"
        raise Problem(422, "invalid-request", f"unknown query parameter {unknown!r:.{_SHOWN_MAX}}; {takes}")
    sent = [name for name, _ in request.query_params.multi_items()]
    repeated = next((name for name in sent if sent.count(name) > 1), None)
    if repeated is not None:
        raise Problem(422, "invalid-request", f"the query parameter {repeated} appears more than once: send it once")


def expected_version(if_match: str | None) -> int | None:
    """The version that a change is meant for; None: any."""
    if if_match is None or if_match.strip() == "*":
        return None
    if re.match(_ETAG, if_match.strip()) is None:
        raise Problem(422, "invalid-request", 'If-Match: send the ETag of GET /jobs/{id}, such as "3"')
    return int(if_match.strip().removeprefix("W/").strip('"'))


def answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response without validating it again."""
    return Response(codec.encode(document), status, headers=headers, media_type="application/json")


def answers(model: Any, *problem_statuses: int, status: int = 200, says: str = "") -> dict[str, Any]:
    """For a route: its response model, and the problems that it can answer with."""
    return {
        "response_model": None,
        "status_code": status,
        "responses": {
            status: described(model, says or "Successful Response"),
            **problems.documented(*sorted({401, 403, 422, 429, 503, *problem_statuses})),
        },
    }


def described(model: Any, says: str) -> dict[str, Any]:
    """A response in OpenAPI, generated from the encoded type; None: it has no body."""
    if model is None:
        return {"description": says}
    return {"description": says, "content": {"application/json": {"schema": _schema(model)}}}


@cache
def _schema(model: Any) -> dict[str, Any]:
    [schema], found = msgspec.json.schema_components([model], ref_template="#/components/schemas/{name}")
    leave_out_defaults = _leaving_out_defaults(msgspec.inspect.type_info(model))
    for name, component in found.items():
        if "enum" in component:
            component["type"] = "string"
        for field, part in component.get("properties", {}).items():
            if "default" in part:
                del part["default"]
                if name not in leave_out_defaults:  # it is sent nevertheless
                    component["required"].append(field)
        if components.setdefault(name, component) != component:
            raise TypeError(f"two kinds of answer have the name {name}")
    return schema


def _leaving_out_defaults(kind: Any) -> set[str]:
    """The names of the structs in a type that leave out fields with their default value when they are encoded."""
    if isinstance(kind, msgspec.inspect.StructType):
        own = {kind.cls.__name__} if kind.cls.__struct_config__.omit_defaults else set()
        return own.union(*(_leaving_out_defaults(field.type) for field in kind.fields))
    parts = (getattr(kind, name, ()) for name in ("type", "item_type", "item_types", "types", "value_type"))
    flat = (each for part in parts for each in (part if isinstance(part, tuple) else (part,)))
    return set().union(*map(_leaving_out_defaults, flat))


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
    """Every route, with the prefixes and dependencies of the routers around it."""
    try:
        from fastapi.routing import iter_route_contexts
    except ImportError:  # versions in which including a router copies its routes
        yield from api.routes
    else:
        yield from iter_route_contexts(api.routes)


def _row(route: Any) -> Row:
    path = getattr(route, "path", "?")
    dependencies = [each.dependency for each in getattr(route, "dependencies", ())]
    guards = [each for each in dependencies if scopes_of(each) is not None]
    original = getattr(route, "original_route", route)
    if len(guards) != 1 or not isinstance(original, APIRoute):
        raise ConfigurationError(
            f"route {path} does not say who may call it: give it one of needs(…), unless_local(…) and anyone"
        )
    return Row(
        path=path,
        path_format=route.path_format,
        methods=tuple(sorted(route.methods)),
        scopes=scopes_of(guards[0]) or (),
        opening=opening_of(guards[0]),
        in_schema=original.include_in_schema and getattr(route, "include_in_schema", True),
        pattern=route.path_regex,
        endpoint=route.endpoint,
    )
