"""Files of jobs as a browser gets them: never as something that runs here.

Each answer is in a sandbox without scripts, forms or an origin of its own, and its type comes from a short list by the
end of its name; everything else is a download.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from fastapi import Depends, Request, Response
from fastapi.responses import StreamingResponse

from holdfast.dashboard import frame, shown
from holdfast.errors import ArtifactNotFound
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.routes.artifacts import POLICY

router = frame.pages()


@router.get("/jobs/{job_id}/artifacts/{name}", dependencies=[Depends(needs("read"))])
async def artifact(request: Request, app: App, who: Who, job_id: str, name: str) -> Response:
    job = await visible(app, who, job_id)
    file = next((each for each in await app.artifacts(job.job_id) if each.name == name), None)
    if file is None:
        raise ArtifactNotFound(f"job {job.job_id} has no artifact {name!r:.80}")
    how, media_type = shown.kind_of(name)
    kept = how == "download" or bool(request.query_params.get("download"))
    headers = {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
        "ETag": f'"{file.sha256}"',
        "Content-Disposition": f"{'attachment' if kept else 'inline'}; filename*=UTF-8''{quote(name, safe='')}",
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    pieces = app.open_artifact(job.job_id, name)
    first = await anext(aiter(pieces), b"")  # what cannot be read is an error page, not half a file
    headers["Content-Length"] = str(file.size)
    return StreamingResponse(_all(first, pieces), media_type=media_type, headers=headers)


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
