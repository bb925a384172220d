"""The OpenAPI document: every status that can be, one schema per registered job type, examples."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from holdfast.app import Holdfast
from holdfast.server.guarding import needs


def router(api: FastAPI, app: Holdfast) -> APIRouter:
    routes = APIRouter(dependencies=[Depends(needs("read"))])

    @routes.get("/openapi.json", summary="This document", response_model=dict[str, Any])
    async def document(request: Request) -> JSONResponse:
        return JSONResponse(api.openapi())

    return routes
