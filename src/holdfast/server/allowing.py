"""Which methods a path takes, as the document says it: for the header Allow.

Where an id or a type may stand, the document has one path for both, with the methods of both, and a path of its own for
each type that it knows.
"""

from __future__ import annotations

from fastapi import Request

from holdfast.server import crew
from holdfast.server.guarding import found
from holdfast.server.typed_paths import BY_ID, BY_TYPE


async def methods(request: Request, path: str) -> frozenset[str]:
    table = request.app.state.table
    fitting = {row.path_format for row in table if row.pattern.match(path)}
    if fitting & {BY_ID, BY_TYPE} and not await _is_known(request, path.rpartition("/")[2]):
        fitting |= {BY_ID, BY_TYPE}
    return frozenset(method for row in table if row.path_format in fitting for method in row.methods)


async def _is_known(request: Request, job_type: str) -> bool:
    who = found(request)
    return who is not None and job_type in await crew.types_seen(request.app.state.holdfast, who)
