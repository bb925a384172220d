"""The application that Holdfast's own worker command imports: one no-op job with a typed payload."""

from __future__ import annotations

import os

from holdfast import Context, Holdfast
from pydantic import BaseModel

from marks import Marks
from payload import number_of

app = Holdfast(os.environ["HOLDFAST_URL"])
MARKS = Marks.from_environment()


class Note(BaseModel):
    user_id: int
    text: str


@app.job("noop")
async def noop(payload: Note, ctx: Context) -> dict[str, int]:
    MARKS.mark(number_of(payload.user_id))
    return {"seen": payload.user_id}  # a result, so that keeping it is part of what is measured
