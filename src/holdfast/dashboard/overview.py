"""The first page: how it goes."""

from __future__ import annotations

from fastapi import Depends, Request, Response

from holdfast.dashboard import frame
from holdfast.server.guarding import needs

router = frame.pages()


@router.get("", dependencies=[Depends(needs("read"))])
@router.get("/", dependencies=[Depends(needs("read"))])
async def overview(request: Request) -> Response:
    return frame.render(request, "overview.html", live="all")
