"""The style sheet and the scripts, from memory, under addresses that change with their content."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources

from fastapi import Depends, Request, Response

from holdfast.dashboard import links
from holdfast.dashboard.routing import pages
from holdfast.server.guarding import anyone

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}

router = pages()


@functools.cache
def _read() -> dict[str, tuple[bytes, str]]:
    """Every file with the hash of its content. They are few and small, and part of the release."""
    folder = resources.files("holdfast.dashboard") / "static"
    found = {}
    for file in folder.iterdir():
        if file.name.rpartition(".")[2] in _TYPES:
            content = file.read_bytes()
            found[file.name] = (content, hashlib.sha256(content).hexdigest()[:12])
    return found


@functools.cache
def _release() -> str:
    """One mark for all: a module that imports another must not get an old one of it."""
    return hashlib.sha256("".join(mark for _, (_, mark) in sorted(_read().items())).encode()).hexdigest()[:12]


def address(request: Request, name: str) -> str:
    return links.url(request, f"/static/{_release()}/{name}")


@router.get("/static/{release}/{name}", dependencies=[Depends(anyone)])
async def asset(request: Request, release: str, name: str) -> Response:
    content, mark = _read().get(name, (None, ""))
    if content is None:
        return Response(status_code=404)
    forever = "public, max-age=31536000, immutable" if release == _release() else "no-cache"
    headers = {"ETag": f'"{mark}"', "Cache-Control": forever}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)
