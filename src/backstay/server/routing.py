"""How routes are declared, found and called.

`routes("jobs")` makes a router; FastAPI reads what its functions take, for the OpenAPI document. Requests do not pass
through FastAPI: `Routes` finds the route by the shape of the path, checks the scope, then refuses unknown or repeated
query parameters, and calls the function with what was read at start of its parameters. The gate has already refused
bodies that are not JSON. A route that does not say who may call it is refused at startup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import iscoroutinefunction
from typing import Annotated, Any
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
import msgspec.inspect
from fastapi import APIRouter, FastAPI, Header, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.convertors import Convertor, PathConvertor, register_url_convertor
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from backstay import codec, limits
from backstay.app import Backstay
from backstay.core import checks
from backstay.errors import ConfigurationError
from backstay.server import problems, visibility
from backstay.server.auth import Guard, Principal, Scope, Source, incoming
from backstay.server.problems import Problem
from backstay.server.request import Incoming, Opening, Openings
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
_AFTER_NAME = r"^[A-Za-z0-9._:-]{1,256}$"  # a name, which is longer where it is sealed
AfterName = Annotated[str | None, Query(description="`next` of the previous page.", pattern=_AFTER_NAME)]
NameFilter = Annotated[str | None, Query(pattern=NAME)]
FindLimit = Annotated[int, Query(ge=1, le=limits.FIND_LIMIT_MAX, description="Maximum number of items.")]
ListLimit = Annotated[int, Query(ge=1, le=limits.LIST_LIMIT_MAX, description="Maximum number of items.")]
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


def for_every_app(make: Callable[[], APIRouter]) -> Callable[[Backstay], APIRouter]:
    """Build a router once per process: its routes find the app in each request, and building them takes long."""
    built = cache(make)
    return lambda _: built()


class Strict(APIRoute):
    """A route that refuses unknown and repeated query parameters."""


def expected_version(if_match: str | None) -> int | None:
    """Return the version that a change is meant for; None means any."""
    if if_match is None or if_match.strip() == "*":
        return None
    if re.match(_ETAG, if_match.strip()) is None:
        raise Problem(422, "invalid-request", 'If-Match: send the ETag of GET /jobs/{id}, such as "3"')
    return int(if_match.strip().removeprefix("W/").strip('"'))


class _Json(Response):
    """Encoded JSON. The gate adds the rest of the headers, and nothing looks at these before it."""

    def __init__(self, body: bytes, status: int, headers: Mapping[str, str] | None) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [
            (b"content-length", str(len(body)).encode()),
            (b"content-type", b"application/json"),
        ]
        if headers:
            self.raw_headers += [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response without validating it again."""
    return _Json(codec.encode(document), status, headers)


def answers(model: Any, *problem_statuses: int, status: int = 200, says: str = "") -> dict[str, Any]:
    """Describe the answers of a route: its response model, and the problems that it can answer with."""
    return {
        "response_model": None,
        "status_code": status,
        "responses": {
            status: described(model, says or "Successful Response"),
            **problems.documented(*sorted({401, 403, 422, 429, 503, *problem_statuses})),
        },
    }


def described(model: Any, says: str) -> dict[str, Any]:
    """Describe a response for OpenAPI, generated from the encoded type; None means that it has no body."""
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
    """Return the names of the structs in a type that omit fields with their default value when they are encoded."""
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
    guard: Guard
    checks: tuple[Callable[[Request], None], ...]  # after the guard
    route: APIRoute


def rows(api: FastAPI) -> list[Row]:
    return [_row(route) for route in _routes(api)]


def openings(table: list[Row]) -> Openings:
    opened = [(row, row.opening) for row in table if row.opening is not None]
    return Openings(
        {row.path: opening for row, opening in opened if "{" not in row.path},
        [(row.pattern, opening) for row, opening in opened if "{" in row.path],
    )


def _routes(api: FastAPI) -> Iterator[Any]:
    """Return every route, with the prefixes and dependencies of the routers around it."""
    try:
        from fastapi.routing import iter_route_contexts
    except ImportError:  # versions in which including a router copies its routes
        yield from api.routes
    else:
        yield from iter_route_contexts(api.routes)


def _row(route: Any) -> Row:
    path = getattr(route, "path", "?")
    required: list[Any] = [each.dependency for each in getattr(route, "dependencies", ())]
    guards = [each for each in required if isinstance(each, Guard)]
    original = getattr(route, "original_route", route)
    if len(guards) != 1 or not isinstance(original, APIRoute):
        raise ConfigurationError(
            f"route {path} does not say who may call it: give it one of needs(…), unless_local(…) and anyone"
        )
    [guard] = guards
    return Row(
        path=path,
        path_format=route.path_format,
        methods=tuple(sorted(route.methods)),
        scopes=guard.scopes,
        opening=guard.opening,
        in_schema=original.include_in_schema and getattr(route, "include_in_schema", True),
        pattern=route.path_regex,
        endpoint=route.endpoint,
        guard=guard,
        checks=tuple(each for each in required if each is not guard),
        route=original,
    )


# Calling


class _Parameter:
    """A parameter that the client sends, validated as FastAPI documents it."""

    __slots__ = ("_validate", "alias", "default", "is_required", "key", "name", "where")

    def __init__(self, where: str, field: Any) -> None:
        info = field.field_info
        self.where = where
        self.name: str = field.name
        self.alias: str = field.alias
        self.key = field.alias.lower().encode()  # of a header
        self.is_required: bool = info.is_required()
        self.default = None if self.is_required else info.get_default(call_default_factory=True)
        kind: Any = Annotated[info.annotation, info]
        self._validate = TypeAdapter(kind).validator.validate_python

    def put(self, value: Any, values: dict[str, Any], mistakes: list[Any]) -> None:
        try:
            values[self.name] = self._validate(value)
        except ValidationError as error:
            place = ("body",) if self.where == "body" else (self.where, self.alias)
            for each in error.errors(include_url=False, include_input=False, include_context=False):
                mistakes.append({"loc": (*place, *each["loc"]), "msg": each["msg"]})

    def miss(self, mistakes: list[Any]) -> None:
        place = ("body",) if self.where == "body" else (self.where, self.alias)
        mistakes.append({"loc": place, "msg": "Field required"})


class _Received(Request):
    """For routes that ask for the request itself; the gate has read its body."""

    async def body(self) -> bytes:
        return incoming(self).body


class Call:
    """What is known of a route before any request: how to read its arguments."""

    def __init__(self, row: Row, app: Backstay) -> None:
        dependant = row.route.dependant
        given = {each.name: each.call for each in dependant.dependencies if each.name is not None}
        self._app = app
        self._guard = row.guard
        self.endpoint = row.endpoint
        self._sources = [(name, source.read) for name, source in given.items() if isinstance(source, Source)]
        self._checks = row.checks
        self._path = [_Parameter("path", each) for each in dependant.path_params]
        self._query = {each.alias: _Parameter("query", each) for each in dependant.query_params}
        self._headers = [_Parameter("header", each) for each in dependant.header_params]
        bodies = [_Parameter("body", each) for each in dependant.body_params]
        self._body = bodies[0] if bodies else None
        self._is_strict = isinstance(row.route, Strict)
        self._request_name = dependant.request_param_name
        self._answers_error = getattr(row.route, "answer_error", None)
        self._defaults = {
            each.name: each.default for each in (*self._query.values(), *self._headers, *bodies) if not each.is_required
        }
        self._needs_query = any(each.is_required for each in self._query.values())
        self._is_plain = self._request_name is None and not self._checks
        if len(bodies) > 1 or len(self._sources) < len(given) or not iscoroutinefunction(row.endpoint):
            raise TypeError(f"{row.path}: a route is a coroutine with at most one body; its dependencies are sources")

    async def __call__(
        self, request: Incoming, params: dict[str, Any], scope: ASGIScope, receive: Receive, send: Send
    ) -> Response:
        if self._answers_error is None:
            return await self._called(request, params, scope, receive, send)
        try:
            return await self._called(request, params, scope, receive, send)
        except Exception as error:
            found: Response = self._answers_error(_Received(scope, receive, send), error)
            return found

    async def _called(
        self, request: Incoming, params: dict[str, Any], scope: ASGIScope, receive: Receive, send: Send
    ) -> Response:
        self._guard.check(request)  # a client without permission does not learn what is wrong with its request
        query = self._queried(scope["query_string"]) if scope["query_string"] else None
        values = self._defaults.copy()
        if not self._is_plain:
            whole = _Received(scope, receive, send)
            for check in self._checks:
                check(whole)
            if self._request_name is not None:
                values[self._request_name] = whole
        for name, read in self._sources:
            values[name] = read(request, self._app)
        self._read(request, params, query, values)
        found: Response = await self.endpoint(**values)
        return found

    def _queried(self, text: bytes) -> dict[str, str]:
        pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True)
        found = dict(pairs)
        if self._is_strict:
            for name in found:
                if name not in self._query:
                    known = sorted(self._query)
                    takes = f"this path takes {', '.join(known)}" if known else "this path takes none"
                    raise Problem(422, "invalid-request", f"unknown query parameter {name!r:.{_SHOWN_MAX}}; {takes}")
            if len(found) < len(pairs):
                names = [name for name, _ in pairs]
                repeated = next(name for name in names if names.count(name) > 1)
                raise Problem(
                    422, "invalid-request", f"the query parameter {repeated} appears more than once: send it once"
                )
        return found

    def _read(
        self, request: Incoming, params: dict[str, Any], query: dict[str, str] | None, values: dict[str, Any]
    ) -> None:
        """Put what the client sent into `values`, or refuse it."""
        mistakes: list[Any] = []
        for each in self._path:
            each.put(params[each.name], values, mistakes)
        if query or self._needs_query:
            for name, parameter in self._query.items():
                if query and name in query:
                    parameter.put(query[name], values, mistakes)
                elif parameter.is_required:
                    parameter.miss(mistakes)
        for each in self._headers:
            if each.key in request.headers:
                each.put(request.headers[each.key].decode("latin-1"), values, mistakes)
            elif each.is_required:
                each.miss(mistakes)
        if self._body is not None:
            if request.document is not None:
                self._body.put(request.document, values, mistakes)
            elif self._body.is_required:
                self._body.miss(mistakes)
        if mistakes:
            raise problems.invalid(mistakes)


_Found = tuple[Call, re.Pattern[str], dict[str, Any]]


class Routes:
    """Finds and calls the route of a request: the first declared one that matches, among the few with the same method,
    number of path segments and first segment."""

    def __init__(self, api: FastAPI, app: Backstay, table: list[Row]) -> None:
        self._api = api
        self._app = app
        self._table = table
        self._by_path: dict[tuple[str, str], Call] = {}  # those without parameters
        self._by_shape: dict[tuple[str, str, int], list[_Found]] = {}
        for row in table:
            call = Call(row, app)
            for method in row.methods:
                self._add(method, row, call)

    def _add(self, method: str, row: Row, call: Call) -> None:
        first, count = _shape(row.path)
        if "{" not in row.path:
            self._by_path.setdefault((method, row.path), call)
            return
        if first.startswith("{"):
            raise TypeError(f"{row.path}: the first part of a path is fixed")
        found = (call, row.pattern, row.route.param_convertors)
        is_open = any(isinstance(each, PathConvertor) for each in row.route.param_convertors.values())
        for number in range(count, _PARTS_MAX + 1) if is_open else (count,):
            self._by_shape.setdefault((method, first, number), []).append(found)

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        request: Incoming = scope["state"]["incoming"]
        found = self.find(request.method, request.path)
        if found is None:
            raise await self._nowhere(request)
        call, params = found
        scope["app"] = self._api
        scope["path_params"] = params
        response = await call(request, params, scope, receive, send)
        await response(scope, receive, send)

    def find(self, method: str, path: str) -> tuple[Call, dict[str, Any]] | None:
        """Return the route of a request, and the parameters in its path."""
        call = self._by_path.get((method, path))
        if call is not None:
            return call, {}
        first, count = _shape(path)
        for call, pattern, convertors in self._by_shape.get((method, first, min(count, _PARTS_MAX)), ()):
            fit = pattern.match(path)
            if fit is not None:
                return call, {name: convertors[name].convert(text) for name, text in fit.groupdict().items()}
        return None

    async def _nowhere(self, request: Incoming) -> Problem:
        """Return 404, or 405 with the methods that are documented for the path. If the method is among these and still
        no route took the request, an id is where a type should be, or the reverse: then it is 404."""
        allowed = await self.methods(request, request.path)
        if request.method in allowed:
            return Problem(404, *_MIXED_UP)
        if allowed:
            return Problem(405, *_NOT_ALLOWED, headers={"Allow": ", ".join(sorted(allowed))})
        before, _, after = request.path.removeprefix("/jobs/").partition("/")
        if request.path.startswith("/jobs/") and after and await self.methods(request, f"/jobs/{UUID(int=0)}/{after}"):
            return Problem(404, "not-found", f"{before!r:.100} is not a job id: ids are UUIDs")
        return Problem(404, "not-found", "no such path: GET /openapi.json lists them all")

    async def methods(self, request: Incoming, path: str) -> frozenset[str]:
        fitting = {row.path_format for row in self._table if row.pattern.match(path)}
        if fitting & {BY_ID, BY_TYPE} and not await self._is_known(request, path.rpartition("/")[2]):
            fitting |= {BY_ID, BY_TYPE}
        return frozenset(method for row in self._table if row.path_format in fitting for method in row.methods)

    async def _is_known(self, request: Incoming, job_type: str) -> bool:
        who: Principal | None = request.principal
        return who is not None and job_type in await visibility.types_seen(self._app, who)


_PARTS_MAX = 8  # no route has more, but for what is the rest of a path
BY_ID, BY_TYPE = "/jobs/{job_id}", "/jobs/{job_type}"
_NOT_ALLOWED = ("method-not-allowed", "this path takes other methods: see the header Allow")
_MIXED_UP = (
    "not-found",
    "a job is changed by its id and submitted by its type: this path uses the wrong one",
)


def _shape(path: str) -> tuple[str, int]:
    """Return the first segment of a path, and the number of segments."""
    return path[1:].partition("/")[0], path.count("/")
