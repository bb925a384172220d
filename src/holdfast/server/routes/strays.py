"""What `/jobs/{x}` answers where x is a type and an id is meant, or the other way round: that there is none.

Without these it would be "no such method", on a path that has the method for others.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

from holdfast.app import Holdfast
from holdfast.errors import JobNotFound, UnknownJobType
from holdfast.server.guarding import needs


def router(_: Holdfast) -> APIRouter:
    api = APIRouter(include_in_schema=False)

    @api.delete("/jobs/{job_type:job_type}", dependencies=[Depends(needs("submit", "admin"))])
    @api.patch("/jobs/{job_type:job_type}", dependencies=[Depends(needs("admin"))])
    async def no_id(job_type: str) -> Any:
        raise JobNotFound(f"{job_type!r:.140} is no id of a job: ids are UUIDs, as the submit has answered")

    @api.post("/jobs/{job_id:uuid}", dependencies=[Depends(needs("submit"))])
    async def no_type(job_id: str) -> Any:
        raise UnknownJobType(f"{job_id!r:.140} is an id, and no job type: POST /jobs/{{type}} submits a job")

    return api
